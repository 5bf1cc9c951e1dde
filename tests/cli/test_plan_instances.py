"""``ckplan plan`` on graphs of numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckplan.planner import simulate
from ckplan.planner.instances import load_problem, problem_to_json
from tests.cli.test_commands import run
from tests.planner.networks import vgg19
from tests.planner.problems import chain


def node_link(with_ids: bool) -> dict[str, Any]:
    """A chain of six forward and six backward nodes; each backward node reads what its twin made."""
    nodes: list[dict[str, Any]] = [{"cost_ram": 64, "cost_cpu": 2, "backward": index >= 6} for index in range(12)]
    links = [(index, index + 1) for index in range(11)] + [(index, 11 - index) for index in range(5)]
    if with_ids:
        for index, node in enumerate(nodes):
            node["id"] = f"n{index}"
    names = [node.get("id", index) for index, node in enumerate(nodes)]
    return {"nodes": nodes, "links": [{"source": names[a], "target": names[b]} for a, b in links]}


@pytest.fixture(params=["ours", "node-link", "node-link with ids", "kusumoto"])
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A planning graph in each form that the documentation names."""
    if request.param == "kusumoto":
        (tmp_path / "graph.txt").write_text(vgg19().text())
        return tmp_path / "graph.txt"
    data = problem_to_json(chain(8)) if request.param == "ours" else node_link(request.param.endswith("ids"))
    (tmp_path / "graph.json").write_text(json.dumps(data))
    return tmp_path / "graph.json"


def test_a_graph_of_numbers_is_planned_within_a_share_of_its_peak(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = run("plan", graph, "-o", out, "--strategy", "evict", "--budget", "80%")
    assert result.exit_code == 0, result.stderr
    problem, plan = load_problem(graph), json.loads(out.read_text())
    ids = {op.name: index for index, op in enumerate(problem.ops)}
    peak = simulate(problem, [ids[name] for name in plan["schedule"]]).peak_activations
    base = simulate(problem, range(len(problem.ops))).peak_activations
    assert peak == plan["predicted_peak_activations"] <= 0.8 * base


def test_the_plan_is_printed_as_json(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = run("plan", graph, "-o", out, "--strategy", "speed", "--json")
    assert json.loads(result.stdout) == json.loads(out.read_text())


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--loss", "mse"], "--loss"), (["--budget", "1MB", "--of", "total"], "--of"), (["--cost", "measured"], "--cost")],
)
def test_options_of_models_are_refused(options: list[str], named: str, tmp_path: Path) -> None:
    graph, out = tmp_path / "graph.json", tmp_path / "plan.json"
    graph.write_text(json.dumps(node_link(False)))
    result = run("plan", graph, "-o", out, *options)
    assert result.exit_code == 2
    assert "'graph.json' is a graph of numbers" in result.stderr
    assert named in result.stderr
    assert not out.exists()


def test_a_file_that_is_no_graph_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text('{"nodes": [{}]}')
    result = run("plan", tmp_path / "graph.json", "-o", tmp_path / "plan.json")
    assert result.exit_code == 3
    assert "graph.json" in result.stderr
    assert len(result.stderr.splitlines()) == 1
