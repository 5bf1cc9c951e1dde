"""Calibrated costs: from times of kernels, by way of the cache, to seconds of every node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan.errors import UsageError
from ckplan.meter.running.errors import RunFailedError
from ckplan.meter.seconds import calibration
from ckplan.meter.seconds.calibration import calibrated_costs, calibration_file
from ckplan.meter.seconds.kernel_models import kernel_of, signature
from ckplan.model.costs import node_cost, seconds
from ckplan.pipeline import Goal, step_of
from tests.cli.conftest import write_model
from tests.cli.test_commands import run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def graph(tmp_path: Path) -> ir.Model:
    return ckplan.build_training_graph(ckplan.load(write_model(tmp_path / "m.onnx"), dims={"batch": 64}).model).model


def parsed(body: str) -> ir.Model:
    """A model of one input `x` and the constants `two` and `three`."""
    constants = "float two = {2.0}, float three = {3.0}"
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[4,8] x) => (float[4,8] y) <{constants}> {{ {body} }}'
    return ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text), data_prop=True))


def known(graph: ir.Model, taken: dict[str, float]) -> None:
    """Keep times of the kernels of some nodes, by operator, and 1 for all others and for what a control edge takes."""
    nodes = [*graph.graph, calibration._size()]
    times = {key: taken.get(node.op_type, 1.0) for node in nodes if (key := signature(node)) is not None}
    calibration_file().parent.mkdir(parents=True)
    calibration_file().write_text(json.dumps(times))


def sine(shape: tuple[int, ...]) -> ir.Node:
    """A node that reads and makes one tensor."""
    x = ir.Value(name="x", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Sin", [x])
    node.outputs[0].name, node.outputs[0].shape, node.outputs[0].type = "y", x.shape, x.type
    return node


def never(kernels: object, opsets: object) -> list[float | None]:
    raise AssertionError("timed kernels again")


def test_nodes_that_run_alike_have_one_signature() -> None:
    a, b, c, d, e = parsed("a = Pow(x, two) b = Pow(a, two) c = Pow(b, three) d = Sin(c) y = Sin(d)").graph
    assert signature(a) == signature(b) != signature(c)
    assert signature(d) == signature(e) != signature(a)


def test_a_signature_tells_shapes_attributes_and_unused_outputs() -> None:
    model = parsed("a = Softmax <axis = 0> (x) b = Softmax <axis = 1> (a) c = Transpose(b) d = Sin(c) y = Transpose(d)")
    made = [signature(node) for node in model.graph]
    assert len(set(made)) == len(made)


def test_nodes_that_hold_graphs_have_none() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (bool c, float[4,8] x) => (float[4,8] y) { y = If (c) '
        "<then_branch = a () => (float[4,8] z) { z = Sin(x) }, else_branch = b () => (float[4,8] z) { z = Cos(x) }> }"
    )
    (node,) = ir.from_proto(onnx.parser.parse_model(text)).graph
    assert signature(node) is None


@pytest.mark.parametrize(("shape", "timed"), [((1 << 12, 1 << 12), True), ((1 << 15, 1 << 14), False)])
def test_what_is_too_large_for_any_machine_is_not_timed(shape: tuple[int, ...], timed: bool) -> None:
    assert (signature(sine(shape)) is not None) == timed


def test_kernels_read_numbers_that_suit_them() -> None:
    """Indices within what they index, truth values, halves: onnxruntime runs each of these."""
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g '
        "(float[50,8] table, int64[4,3] ids, int64[4,3,8] ids3, bool[4,3,8] mask) => (float[4,3,8] y) { "
        "a = Gather(table, ids) b = Cast <to = 10> (a) c = Sqrt(b) d = Cast <to = 1> (c) "
        "e = GatherElements <axis = 1> (d, ids3) f = Mul(d, e) y = Where(mask, f, d) }"
    )
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    calibrated_costs(model)
    assert len(json.loads(calibration_file().read_text())) == len(model.graph) + 1
    assert None not in json.loads(calibration_file().read_text()).values()


def test_copies_of_a_large_kernel_are_few_and_read_apart() -> None:
    kernels = [kernel_of(sine((rows, 64)), {"": 21}) for rows in (4, 1 << 11, 1 << 20)]
    small, middle, large = kernels
    assert small.copies > middle.copies > large.copies == 1
    assert [len(kernel.model.graph.inputs) for kernel in kernels] == [1, middle.copies, 1]


def test_kept_times_price_nodes_and_the_edge_that_comes_with_them(
    graph: ir.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(graph, {"Tanh": 5.0, "MatMul": 7.0, "Size": 0.25})
    monkeypatch.setattr(calibration, "_timed", never)
    found = calibrated_costs(graph)
    assert found.keys() == {str(node.name) for node in graph.graph}
    for node in graph.graph:
        assert found[str(node.name)] == {"Tanh": 5.25, "MatMul": 7.25}.get(node.op_type, 1.25)


def test_what_cannot_be_timed_is_scaled_as_the_others_are(graph: ir.Model) -> None:
    known(graph, {"Size": 0.0})
    (untimed,) = {key for node in graph.graph if node.op_type == "MatMul" and (key := signature(node)) is not None}
    times = json.loads(calibration_file().read_text())
    calibration_file().write_text(json.dumps({**times, untimed: None}))
    analytic = {node: seconds(node_cost(node)) for node in graph.graph}
    ratio = np.median([1 / taken for node, taken in analytic.items() if node.op_type != "MatMul" and taken > 0])
    found = calibrated_costs(graph)
    for node in graph.graph:
        assert found[str(node.name)] == pytest.approx(analytic[node] * ratio if node.op_type == "MatMul" else 1.0)


def test_kernels_are_timed_once_on_a_machine(graph: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found = calibrated_costs(graph)
    kept = json.loads(calibration_file().read_text())
    products = [signature(node) for node in graph.graph if node.op_type in ("MatMul", "Tanh")]
    assert all(kept[key] is not None and kept[key] > 0 for key in products if key is not None)
    monkeypatch.setattr(calibration, "_timed", never)
    assert calibrated_costs(graph) == found
    next(node for node in graph.graph if node.op_type == "Tanh").op_type = "Sin"
    with pytest.raises(AssertionError, match="timed kernels again"):
        calibrated_costs(graph)


def test_a_kernel_that_onnxruntime_does_not_run_is_none(graph: ir.Model) -> None:
    node = next(node for node in graph.graph if node.op_type == "Tanh")
    node.op_type = "NoSuchOperator"
    found = calibrated_costs(graph)
    assert json.loads(calibration_file().read_text())[signature(node)] is None
    assert found[str(node.name)] > 0


def test_a_kernel_that_ends_the_process_costs_one_time(graph: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, asked = [], 0

    class Fake:
        def finish(self) -> None: ...

    @contextmanager
    def start(job: str, request: object) -> Iterator[Fake]:
        starts.append(job)
        yield Fake()

    def ask(process: Fake, kernel: object) -> float:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise RunFailedError("the process died")
        return float(asked)

    monkeypatch.setattr(calibration, "started", start)
    monkeypatch.setattr(calibration, "_ask", ask)
    kernels = [kernel_of(node, {"": 21}) for node in list(graph.graph)[:4]]
    assert calibration._timed(kernels, {"": 21}) == [2.0, None, 5.0, 6.0]
    assert starts == ["ckplan.meter.seconds.kernels"] * 2


@pytest.mark.parametrize("content", ["", "[]", '{"a"', '{"Tanh": "long"}', '{"Tanh": NaN}', '{"Tanh": -1.0}'])
def test_a_damaged_cache_is_timed_anew(content: str, graph: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_timed", lambda kernels, opsets: [0.5] * len(list(kernels)))
    calibration_file().parent.mkdir(parents=True)
    calibration_file().write_text(content)
    assert set(calibrated_costs(graph).values()) == {1.0}
    assert set(json.loads(calibration_file().read_text()).values()) == {0.5}


def test_a_goal_of_time_is_calibrated_and_one_of_bytes_is_not() -> None:
    assert Goal(overhead=0.1).cost() == "calibrated"
    assert Goal(overhead=0.1).cost(device="cuda") == "flops"
    assert Goal(overhead=0.1).cost("measured") == "measured"
    assert Goal(budget=1).cost() == "flops"


def test_a_step_is_priced_by_the_graph_that_is_planned(graph: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_timed", lambda kernels, opsets: [0.5] * len(list(kernels)))
    step = step_of(graph).priced("calibrated")
    assert [op.cost for op in step.problem.ops] == [1.0] * len(step.fused.graph)
    with pytest.raises(UsageError, match="the cost is 'guessed'; choose one of flops"):
        step_of(graph).priced("guessed")
    with pytest.raises(UsageError, match="times kernels of this machine's CPU, and `--device cuda` plans for others"):
        step_of(graph).priced("calibrated", "cuda")


@pytest.mark.parametrize("command", ["plan", "rewrite"])
def test_a_plan_for_an_overhead_says_that_it_is_calibrated(
    command: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_timed", lambda kernels, opsets: [0.5] * len(list(kernels)))
    asked = [command, model, "--dim", "batch=64", "--overhead", "10%"]
    result = run(*asked, "-o", tmp_path / "one")
    assert result.exit_code == 0, result.stderr
    assert "costs are calibrated" in " ".join(result.stderr.split())
    result = run(*asked, "-o", tmp_path / "two", "--cost", "flops")
    assert result.exit_code == 0, result.stderr
    assert "costs are calibrated" not in " ".join(result.stderr.split())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.onnx")
