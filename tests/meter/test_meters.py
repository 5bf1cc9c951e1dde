"""Meters are of one type: each stands in one tuple, and another is one file and one registration."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ckplan.errors import EnvironmentUnavailableError, UsageError
from ckplan.meter import measure
from ckplan.meter.memory import meters
from ckplan.meter.memory.meters import METERS, register_meter
from ckplan.meter.meter import Figure, in_order
from ckplan.report import json as as_json
from ckplan.report.documents.measurements import measurement
from ckplan.report.documents.verifications import figures
from ckplan.report.writers import writer
from tests.meter.counting import METER, Size
from tests.meter.models import chain
from tests.report import examples


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "_OTHERS", [])
    # Children find what is installed; this module is not.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent.parent))


def test_the_meters_have_names_and_figures_of_their_own() -> None:
    assert [meter.name for meter in METERS] == ["counters", "heap", "gpu", "resident"]
    titles = [figure.title for meter in METERS for figure in meter.figures]
    assert len(titles) == len(set(titles))
    assert all(meter.figures for meter in METERS)


def test_a_registered_meter_measures_and_is_shown_everywhere(tmp_path: Path) -> None:
    register_meter(METER)
    path = chain(tmp_path / "m.onnx", 2)
    told: list[str] = []
    found = measure(path, device="cpu", runs=1, threads=1, progress=told.append)
    assert found.readings["size"] == Size(path.stat().st_size)
    assert "running m.onnx: size of the file" in told
    data = json.loads(json.dumps(as_json.measurement(found)))
    assert data["size"] == {"bytes": path.stat().st_size}
    assert data["heap"]["run"] == found.heap.run  # type: ignore[union-attr]
    assert "the file itself" in writer("text")(measurement(found))


def test_a_job_may_lie_in_a_module_of_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain.py").write_text("def job(channel):\n    return {'bytes': 7}\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    register_meter(replace(METER, job="plain"))
    found = measure(chain(tmp_path / "m.onnx", 2), device="cpu", runs=1, threads=1)
    assert found.readings["size"] == Size(7)


def test_a_meter_that_fails_costs_its_figure_only(tmp_path: Path) -> None:
    register_meter(replace(METER, job="tests.meter.nothing_of_this_name"))
    found = measure(chain(tmp_path / "m.onnx", 2), device="cpu", runs=1, threads=1)
    assert "size" not in found.readings
    assert found.peak_activations
    assert any(note.startswith("no figure from the size meter: ") for note in found.notes)


def test_a_meter_whose_record_cannot_be_made_costs_its_figure_only(tmp_path: Path) -> None:
    register_meter(replace(METER, read=lambda told: told["nothing"]))
    found = measure(chain(tmp_path / "m.onnx", 2), device="cpu", runs=1, threads=1)
    assert any(
        note.startswith("no figure from the size meter: what reads its figures fails (KeyErr") for note in found.notes
    )


def test_a_figure_that_fails_is_named() -> None:
    register_meter(replace(METER, figures=(Figure("  weight", lambda found: found.readings["no"]),)))
    with pytest.raises(EnvironmentUnavailableError, match=r"figure 'weight' of the size meter fails \(KeyError"):
        figures(examples.verification())


def test_two_meters_of_one_name_are_refused() -> None:
    register_meter(METER)
    for taken in (METER, METERS[0]):
        with pytest.raises(UsageError, match=f"two meters are called `{taken.name}`"):
            register_meter(taken)


def test_parts_stand_under_what_they_are_parts_of() -> None:
    def figure(title: str, under: str = "") -> Figure:
        return Figure(title, lambda found: 0, under=under)

    made = in_order([figure("a"), figure("  first"), figure("b"), figure("  second", "a"), figure("c", "nothing")])
    assert [one.title for one in made] == ["a", "  first", "  second", "b", "c"]


def test_both_files_are_compared_by_what_the_meters_tell() -> None:
    titles = [row.cells[0].text for row in figures(examples.verification()).rows]
    assert titles[:5] == [
        "activations, peak", "  predicted", "  in priority order", "  heap (second meter)", "all live memory, peak",
    ]  # fmt: skip
    assert "  parameters" not in titles
