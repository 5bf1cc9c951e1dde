"""``ckplan pareto`` through the entry that the shell uses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ckplan.answers.pareto import pareto
from ckplan.pipeline import open_step
from ckplan.planner import Problem
from ckplan.planner.strategies.keep_all import KeepAll
from ckplan.planner.strategies.sqrt import Sqrt
from tests.cli.test_commands import failure, run

FEW = ("--strategy", "none", "--strategy", "memory", "--strategy", "list", "--dim", "batch=64")


def test_the_frontier_as_table_and_picture(model: Path, tmp_path: Path) -> None:
    picture = tmp_path / "frontier.svg"
    result = run("pareto", model, "-o", picture, *FEW)
    assert result.exit_code == 0, result.stderr
    assert "What each strategy would give" in result.stdout
    assert "Frontier" in result.stdout
    assert "list: strategy `list` was given no tensors" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_the_frontier_as_json(model: Path) -> None:
    result = run("pareto", model, "--json", *FEW)
    data = json.loads(result.stdout)
    assert (data["schema"], data["command"], data["picture"]) == (1, "pareto", None)
    points = [(point["overhead"], point["peak_activations"]) for point in data["frontier"]]
    assert len(points) > 1
    assert points == sorted(points)
    assert [peak for _, peak in points] == sorted((peak for _, peak in points), reverse=True)
    assert points[0][0] == 0
    assert points[-1][1] >= data["lower_bound"]
    for strategy in data["strategies"]:
        if "reason" not in strategy:
            assert any(o <= strategy["overhead"] and p <= strategy["peak_activations"] for o, p in points)
    assert [entry["strategy"] for entry in data["strategies"]] == ["none", "memory", "list"]


@pytest.mark.parametrize("name", ["frontier.png", "frontier"])
def test_other_pictures_are_refused_before_the_work(name: str, tmp_path: Path) -> None:
    result = run("pareto", tmp_path / "no such model.onnx", "-o", tmp_path / name)
    assert result.exit_code == 2
    assert ".svg, the one kind that is written" in failure(result)
    assert name in failure(result)


def test_an_existing_picture_is_kept(model: Path, tmp_path: Path) -> None:
    picture = tmp_path / "frontier.SVG"
    picture.write_text("mine")
    result = run("pareto", model, "-o", picture)
    assert result.exit_code == 2
    assert "--force" in failure(result)
    assert picture.read_text() == "mine"


def test_an_interruption_shows_what_was_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Sqrt, problem: Problem) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sqrt, "schedules", interrupt)
    result = run("pareto", model, "--strategy", "memory", "--strategy", "sqrt", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["interrupted"]
    assert data["strategies"][1] == {"strategy": "sqrt", "reason": "interrupted"}
    assert "note: the search was interrupted" in result.stderr


def test_the_time_limit_is_kept(model: Path) -> None:
    result = run("pareto", model, "--time-limit", "1e-9", "--json")
    data = json.loads(result.stdout)
    assert data["frontier"]
    assert {strategy["reason"] for strategy in data["strategies"]} == {"the time was up before it was tried"}


def test_progress_names_what_is_done(model: Path) -> None:
    said: list[str] = []
    found = pareto(open_step(model), [KeepAll()], progress=said.append)
    assert said[0] == "finding the lowest peak"
    assert said[-1] == "planning with `none`, 1 of 1"
    assert not found.interrupted
