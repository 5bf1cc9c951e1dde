"""Planning problems as files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from ckplan.errors import InfeasibleError, ModelError
from ckplan.planner import Kind, Problem, simulate
from ckplan.planner.instances import (
    forward_cost,
    forward_overhead,
    load_problem,
    naive_bytes,
    parse_kusumoto,
    parse_node_link,
    problem_from_json,
    problem_to_json,
)
from ckplan.planner.order import best_order
from ckplan.planner.problem import Op, Tensor
from ckplan.planner.strategies import parse_strategy
from tests.planner.networks import Network, resnet50, small_unet, vgg19
from tests.planner.problems import chain, problems


def fields(problem: Problem) -> tuple[object, ...]:
    return problem.ops, problem.tensors, problem.collection


@settings(deadline=None)
@given(problems())
def test_problems_survive_json(problem: Problem) -> None:
    assert fields(problem_from_json(json.loads(json.dumps(problem_to_json(problem))))) == fields(problem)


def test_the_collection_survives_json() -> None:
    problem = Problem(chain(2).ops, chain(2).tensors, collection=("a0",))
    assert fields(problem_from_json(problem_to_json(problem))) == fields(problem)


@pytest.mark.parametrize("cost", [-7.0, math.inf, math.nan])
def test_costs_that_cannot_be_are_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="op 'a' cannot cost"):
        Problem((Op("a", (), (0,), cost),), (Tensor("t", 4),))


def test_damaged_problems_are_refused() -> None:
    data = problem_to_json(chain(2))
    with pytest.raises(ModelError, match="schema 7"):
        problem_from_json({**data, "schema": 7})
    with pytest.raises(ModelError, match="it lacks 'tensors'"):
        problem_from_json({key: value for key, value in data.items() if key != "tensors"})
    with pytest.raises(ModelError, match="refers to tensor 999"):
        problem_from_json({**data, "ops": [{**data["ops"][0], "inputs": [999]}]})
    with pytest.raises(ModelError, match="of what it does not read"):
        problem_from_json({**data, "ops": [{**data["ops"][0], "inplace": [[data["ops"][0]["outputs"][0], [5]]]}]})
    with pytest.raises(ModelError, match="before it is made"):
        problem_from_json({**data, "ops": data["ops"][::-1]})
    with pytest.raises(ModelError, match="larger than any memory"):
        problem_from_json({**data, "tensors": [[name, 1 << 60, kind] for name, _, kind in data["tensors"]]})
    with pytest.raises(ModelError, match="'sparse'"):
        problem_from_json({**data, "tensors": [["x", 1, "sparse"]]})


# Sums over the authors' own files of these networks; the lowest peaks are of keeping all that is read again.
@pytest.mark.parametrize(
    ("network", "naive", "cost", "keep_all"),
    [(vgg19, 8_009_017_352, 190, 0.2662), (resnet50, 9_211_209_736, 653, 0.3765)],
)
def test_networks_have_the_published_sizes(network: type, naive: int, cost: int, keep_all: float) -> None:
    problem = parse_kusumoto(network().text())
    assert naive_bytes(problem) == naive
    assert forward_cost(problem) == cost
    timeline = simulate(problem, best_order(problem))
    assert timeline.peak_activations / naive == pytest.approx(keep_all, abs=1e-3)
    assert forward_overhead(problem, [*range(len(problem.ops)), *problem.forward]) == 1


def test_the_order_of_functions_in_a_file_does_not_matter() -> None:
    net = small_unet()
    sorted_file, shuffled = (parse_kusumoto(net.text(seed)) for seed in (None, 3))
    for problem in (sorted_file, shuffled):
        assert len(problem.forward) == len(net.functions)
    assert (
        simulate(sorted_file, range(len(sorted_file.ops))).peak_activations
        == simulate(shuffled, range(len(shuffled.ops))).peak_activations
    )


def residual() -> Network:
    """A ReLU whose output is read twice, by a convolution and by the Add after it."""
    net = Network(batch=1)
    x = net.same("ReLU", net.conv(net.image(2, 4), 2, 3))
    net.loss(net.flatten(net.call("Add", [x, net.conv(x, 2, 3)], net.shapes[x])))
    return net


def test_gradients_of_several_readers_are_summed_in_place() -> None:
    problem = parse_kusumoto(residual().text())
    names = [tensor.name for tensor in problem.tensors]
    # Variable 3 is the image's convolution, 4 the ReLU, 7 the inner convolution.
    first = names.index("v4/grad")
    partial = next(op for op in problem.ops if first in op.outputs)
    complete = next(op for op in problem.ops if first in op.inputs)
    assert partial.name.startswith("Add")
    assert complete.name.startswith("Convolution2DFunction")
    total = next(tensor for tensor, bases in complete.inplace.items() if bases == (first,))
    assert names[total].startswith("v4/grad")
    assert problem.consumers[total] == (problem.ops.index(next(op for op in problem.ops if op.name == "ReLU_1/grad")),)


def test_each_activation_has_its_own_gradient_op_and_parameters_are_outside() -> None:
    problem = parse_kusumoto(residual().text())
    pieces = [op for op in problem.ops if op.name.startswith("Add_3/grad")]
    assert [op.cost for op in pieces] == [0.5, 0.5]
    assert all(len(op.outputs) == 1 for op in pieces)
    kinds = {tensor.name: tensor.kind for tensor in problem.tensors}
    assert kinds["/0/W"] is Kind.PARAMETER
    assert kinds["/0/W/grad"] is Kind.OUTPUT
    assert kinds["input0"] is Kind.INPUT
    assert kinds["input0/grad"] is Kind.OUTPUT
    assert [tensor.kind for tensor in problem.tensors if tensor.name in ("v11", "v11/grad")] == [
        Kind.OUTPUT,
        Kind.INPUT,
    ]


def edited(line: int, text: str) -> str:
    lines = residual().text().splitlines()
    lines[line - 1] = text
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 0"),
        ("not a graph", "line 1"),
        (edited(1, "2 3 4"), "line 1: .*2 numbers"),
        (edited(3, "99 4 _"), "line 3: .*no variable 99"),
        (edited(14, "sideways"), "line 14: .*neither forward nor backward"),
        (residual().text()[:-60], "line"),
        (residual().text() + "more\n", "more lines than announced"),
        (residual().text().replace("backward", "forward", 1), "do not pair up"),
    ],
)
def test_damaged_graphs_are_refused(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_kusumoto(text)


def graph(edges: list[tuple[int, int]], **extra: Any) -> dict[str, Any]:
    count = max(max(edge) for edge in edges) + 1
    nodes = [
        {"id": node, "name": f"n{node}", "cost_cpu": node + 1, "cost_ram": 10 * node + 10} for node in range(count)
    ]
    return {"directed": True, "nodes": nodes, "links": [{"source": a, "target": b} for a, b in edges], **extra}


def test_a_graph_is_taken_as_it_is() -> None:
    problem = parse_node_link(graph([(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert sorted(op.name for op in problem.ops) == ["n0", "n1", "n2", "n3"]
    assert not problem.backward
    assert problem.cost == 1 + 2 + 3 + 4
    assert [problem.tensors[t].bytes for t in problem.ops[-1].inputs] == [20, 30]


def test_marked_nodes_are_the_backward_pass() -> None:
    data = graph([(0, 1), (1, 2), (2, 3), (0, 3)])
    for node in (2, 3):
        data["nodes"][node]["backward"] = True
    problem = parse_node_link(data)
    assert [op.name for op in problem.ops if op.backward] == ["n2", "n3"]
    assert problem.stashed == (1, 0)
    with pytest.raises(ModelError, match="has a backward pass already"):
        parse_node_link(data, add_backward=True)


def test_marks_may_be_the_texts_of_a_table() -> None:
    data = graph([(0, 1), (1, 2), (2, 3), (0, 3)])
    for node, mark in enumerate(("false", "False", "true", "True")):
        data["nodes"][node]["backward"] = mark
    assert [op.name for op in parse_node_link(data).ops if op.backward] == ["n2", "n3"]


def test_a_backward_pass_is_made() -> None:
    problem = parse_node_link(graph([(0, 1), (0, 2), (1, 3), (2, 3)]), add_backward=True, backward_cost=2.0)
    reads = {op.name: {problem.tensors[t].name for t in op.inputs} for op in problem.ops if op.backward}
    assert reads == {
        "n3/grad": {"n3"},
        "n2/grad": {"n1", "n2", "n3", "n3/grad"},
        "n1/grad": {"n1", "n2", "n3", "n3/grad"},
        "n0/grad": {"n0", "n1", "n2", "n1/grad", "n2/grad"},
    }
    assert problem.cost == 3 * (1 + 2 + 3 + 4)
    assert naive_bytes(problem) == 2 * sum(tensor.bytes for tensor in problem.tensors if "/" not in tensor.name)


def test_attributes_of_a_graph_may_have_other_names() -> None:
    data = {"nodes": [{"id": "a", "mass": 5, "pace": 7}, {"id": "b", "mass": 6}], "edges": []}
    problem = parse_node_link(data, size="mass", cost="pace")
    assert [tensor.bytes for tensor in problem.tensors] == [5, 6]
    assert sorted(op.cost for op in problem.ops) == [1, 7]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"nodes": [{"id": 1}], "links": []}, "node 1 has none of the attributes"),
        ({"nodes": [{"id": 1, "size": 2}], "links": [{"source": 1, "target": 5}]}, "the target 5, which is no node"),
        ({"nodes": [{"id": 1, "size": 2}], "links": [{"source": 1}]}, "link number 0 lacks 'target'"),
        ({"nodes": [{"id": 1, "size": 2}], "links": [{"source": [1], "target": 1}]}, r"source \[1\], which is no node"),
        ({"nodes": [{"id": 1, "size": 2}], "links": [[0, 0]]}, "number 0 of 'links' is no object"),
        ({"nodes": [{"id": 1, "size": 2}]}, "it lacks 'links'"),
        ({"nodes": {"1": {"size": 2}}, "links": []}, "'nodes' is no list"),
        ({"nodes": [{"id": [1], "size": 2}], "links": []}, "the id of node number 0 is neither a text nor a number"),
        ({"nodes": [{"id": 1, "size": "2 KiB"}], "links": []}, "node 1 has the size '2 KiB', which is no number"),
        ({"nodes": [{"id": 1, "size": 1.5}], "links": []}, "the size 1.5, and bytes are a whole number; give bytes"),
        ({"nodes": [{"id": 1, "size": float("nan")}], "links": []}, "has the size nan, and bytes"),
        ({"nodes": [{"id": 1, "size": 2, "cost": []}], "links": []}, r"node 1 has the cost \[\], which is no number"),
        ({"nodes": [{"id": 1, "size": 2, "backward": "maybe"}], "links": []}, "the mark backward 'maybe'; give true"),
        (graph([(0, 1), (1, 1)]), "cycle: node 1 reads what it makes"),
        ({"nodes": [{"id": 1, "size": 2}, {"id": 1, "size": 2}], "links": []}, "same id"),
        ({"links": []}, "it lacks 'nodes'"),
        (graph([(0, 1), (1, 2), (2, 1)]), "cycle"),
        ({"nodes": [{"id": 1, "size": -2}], "links": []}, "'1' cannot take -2 bytes"),
    ],
)
def test_bad_graphs_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_node_link(data)


def test_a_forward_node_may_not_read_a_gradient() -> None:
    data = graph([(0, 1), (1, 2)])
    data["nodes"][1]["backward"] = True
    with pytest.raises(ModelError, match="not a training graph"):
        parse_node_link(data)


@pytest.mark.parametrize("name", ["mirror", "segments", "chen", "lower_sets", "revolve"])
def test_graphs_without_a_backward_pass_are_run_as_they_are(name: str) -> None:
    problem = parse_node_link(graph([(0, 1), (0, 2), (1, 3), (2, 3)]))
    peak = simulate(problem, range(4)).peak_activations
    for case in (problem, Problem((), ())):
        assert parse_strategy(name).solve(case).recomputed == 0
    assert parse_strategy(name).solve(problem, peak).schedule == (0, 1, 2, 3)
    with pytest.raises(InfeasibleError):
        parse_strategy(name).solve(problem, peak - 1)


def test_files_are_told_apart(tmp_path: Path) -> None:
    data = graph([(0, 1)])
    problem = chain(3)
    contents = {
        "a.json": (json.dumps(problem_to_json(problem)), problem),
        "b.json": (json.dumps(data), parse_node_link(data)),
        "c.txt": (small_unet().text(), parse_kusumoto(small_unet().text())),
    }
    for name, (text, expected) in contents.items():
        (tmp_path / name).write_text(text)
        assert fields(load_problem(tmp_path / name)) == fields(expected)


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*missing\.json"):
        load_problem(tmp_path / "missing.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ModelError, match=r"bad\.json: not JSON"):
        load_problem(tmp_path / "bad.json")
    (tmp_path / "bad.txt").write_text("1 1\n")
    with pytest.raises(ModelError, match=r"bad\.txt: line 1"):
        load_problem(tmp_path / "bad.txt")
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"bytes\.json is not text"):
        load_problem(tmp_path / "bytes.json")


@pytest.mark.parametrize("text", ["{", "1 1", '{"nodes": [{"id": 1}]}', '{"format": "other"}'])
def test_errors_say_what_to_write(tmp_path: Path, text: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"; write it in one of the forms that `ckplan plan --help` names"):
        load_problem(path)


@pytest.mark.parametrize("place", [["tensors", 0, 1], ["tensors", 0, 2], ["tensors", 0], ["ops", 0, "cost"]])
@pytest.mark.parametrize("value", [1e999, [], {}, None, "\n::error"])
def test_a_forged_instance_is_named(tmp_path: Path, place: list[Any], value: object) -> None:
    data = problem_to_json(chain(3))
    holder: Any = data
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError, match=r"instance\.json"):
        load_problem(path)


def test_links_are_by_position_where_nodes_have_no_id() -> None:
    data = {
        "nodes": [{"name": "a", "size": 4}, {"name": "b", "size": 8, "cost": 2.0}, {"size": 2}],
        "links": [{"source": 0, "target": 1}, {"source": 1, "target": 2}],
    }
    problem = parse_node_link(data)
    assert [op.name for op in problem.ops] == ["a", "b", "2"]
    assert [op.inputs for op in problem.ops] == [(), (0,), (1,)]
    assert parse_node_link({**data, "nodes": [{**node, "id": i} for i, node in enumerate(data["nodes"])]}).ops == (
        problem.ops
    )
