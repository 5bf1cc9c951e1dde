"""Measured costs: from a profiled run to seconds of every node, by way of the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest

import ckplan
from ckplan.meter.seconds import costs
from ckplan.meter.seconds.costs import mapped, measured_costs
from ckplan.model.costs import node_cost, seconds
from tests.cli.conftest import write_model


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ir.Model:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ckplan.build_training_graph(ckplan.load(write_model(tmp_path / "m.onnx"), dims={"batch": 64}).model).model


def analytic(graph: ir.Model) -> dict[str, float]:
    return {str(node.name): seconds(node_cost(node)) for node in graph.graph}


def test_what_was_measured_is_taken(graph: ir.Model) -> None:
    node = next(node for node in graph.graph if node.op_type == "Tanh")
    assert mapped(graph, {f"Tanh {node.name}": 0.5})[str(node.name)] == 0.5


def test_the_rest_is_scaled_by_the_median_of_its_operator(graph: ir.Model) -> None:
    base = analytic(graph)
    tanh = [str(node.name) for node in graph.graph if node.op_type == "Tanh"]
    products = [str(node.name) for node in graph.graph if node.op_type == "MatMul"]
    measured = {f"Tanh {name}": factor * base[name] for name, factor in zip(tanh[:3], (2, 3, 100), strict=True)}
    measured[f"MatMul {products[0]}"] = 7 * base[products[0]]
    found = mapped(graph, measured)
    assert found.keys() == base.keys()
    assert found[tanh[5]] == pytest.approx(3 * base[tanh[5]])
    assert found[products[5]] == pytest.approx(7 * base[products[5]])
    other = next(str(n.name) for n in graph.graph if n.op_type not in ("Tanh", "MatMul") and base[str(n.name)] > 0)
    assert found[other] == pytest.approx(5 * base[other])  # the median of 2, 3, 7 and 100


def test_a_fused_node_is_not_taken_for_the_one_that_it_is_named_after(graph: ir.Model) -> None:
    node = next(node for node in graph.graph if node.op_type == "MatMul")
    assert mapped(graph, {f"FusedMatMul {node.name}": 9.0}) == pytest.approx(analytic(graph))


def test_a_run_is_measured_once(graph: ir.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured_costs(graph, "cpu", threads=1)
    assert found.keys() == analytic(graph).keys()
    assert max(found.values()) > 0
    assert [path.suffix for path in (tmp_path / "cache" / "ckplan").iterdir()] == [".json"]

    def never(job: str, request: object) -> None:
        raise AssertionError(f"ran {job} again")

    monkeypatch.setattr(costs, "run_job", never)
    assert measured_costs(graph, "cpu", threads=1) == found
    with pytest.raises(AssertionError, match=r"ran ckplan\.meter\.memory\.counters again"):
        measured_costs(graph, "cpu", threads=2)
    next(node for node in graph.graph if node.op_type == "Tanh").op_type = "Sin"
    with pytest.raises(AssertionError, match=r"ran ckplan\.meter\.memory\.counters again"):
        measured_costs(graph, "cpu", threads=1)


DAMAGED = (
    "",
    "[]",
    '{"a"',
    "[" * 100_000,
    *(f'{{"Tanh act0": {told}}}' for told in ('"long"', "NaN", "1e999", "-1.0")),
)


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_cache_is_measured_anew(
    content: str, graph: ir.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [{"op": ["Tanh"], "name": ["act0"], "seconds": [0.25]}]
    monkeypatch.setattr(costs, "run_job", lambda job, request: [{"runs": runs}])
    first = measured_costs(graph)
    (kept,) = (tmp_path / "cache" / "ckplan").iterdir()
    kept.write_text(content)
    assert measured_costs(graph) == first
    assert first["act0"] == 0.25
    assert kept.read_text() == '{"Tanh act0": 0.25}'
    assert list(kept.parent.iterdir()) == [kept]


def test_processes_share_a_cache(tmp_path: Path) -> None:
    write_model(tmp_path / "m.onnx", layers=2)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    options = ["--cost", "measured", "--device", "cpu", "--quiet"]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "ckplan", "plan", "m.onnx", "-o", f"{number}.json", *options],
            cwd=tmp_path,
            env=environment,
        )
        for number in range(3)
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    (kept,) = (tmp_path / "cache" / "ckplan").iterdir()
    assert all(seconds >= 0 for seconds in json.loads(kept.read_text()).values())


def test_a_cache_that_cannot_be_written_is_done_without(
    graph: ir.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be")
    runs = [{"op": ["Tanh"], "name": ["act0"], "seconds": [0.25]}]
    monkeypatch.setattr(costs, "run_job", lambda job, request: [{"runs": runs}])
    assert measured_costs(graph)["act0"] == 0.25
