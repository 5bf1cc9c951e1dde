"""Shapes are declared of what is written over, and hidden otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan.autodiff import build_training_graph
from ckplan.keys import PHASE, ROLE
from ckplan.model import load
from ckplan.pipeline import StepOptions, open_step
from ckplan.planner.peak import live_bytes
from ckplan.planner.simulate import lifetimes
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime import problem_of
from ckplan.runtime.executing.executed import executed_model, executed_timeline
from ckplan.runtime.sizes import (
    bytes_of,
    dimensions_of,
    hide_dimensions,
    parts_of_dimension,
    shape_class,
    shape_classes,
    show_dimensions,
)
from ckplan.writer import emit
from ckplan.writer.buffer_names import hide_held_over, hide_sources
from ckplan.writer.control_edges import ControlEdges, is_control, read_instead

SAMPLES = Path(__file__).parents[2] / "sample_models"


@pytest.fixture(scope="module")
def planned() -> ckplan.pipeline.planned.Planned:
    return ckplan.rewrite(SAMPLES / "gpt_tiny.onnx", strategy="memory", dims={"batch": 2})


def test_a_file_that_declares_few_shapes_tells_its_sizes(
    planned: ckplan.pipeline.planned.Planned, tmp_path: Path
) -> None:
    path = tmp_path / "planned.onnx"
    ckplan.save(planned.model, path)
    onnx.checker.check_model(path, full_check=True)
    read = ir.load(path)
    made = [value for node in read.graph if not is_control(node) for value in node.outputs if value.name]
    assert sum(value.shape is None for value in made) > len(made) / 3
    assert all(dimensions_of(value) is not None for value in made)
    assert problem_of(read).tensors == problem_of(planned.model).tensors
    assert executed_timeline(executed_model(read)).peak_activations == planned.after.peak_activations


def test_no_dead_buffer_is_held_or_looked_for(planned: ckplan.pipeline.planned.Planned) -> None:
    executed = executed_model(planned.model)
    problem = problem_of(executed)
    shapes = shape_classes(executed.graph, problem)
    assert planned.after.peak_activations <= planned.plan.predicted.peak_activations * 1.02 + 4096
    # What has a shape goes through all dead buffers that have one: of a new buffer in four at most.
    lives = lifetimes(problem, range(len(problem.ops)), shapes)
    large = [tensor for tensor, size in zip(lives.tensor, lives.size, strict=True) if size >= 4096]
    assert sum(shapes[tensor] is not None for tensor in large) < len(large) / 4


def test_what_follows_from_a_declared_shape_has_names_of_its_own() -> None:
    """A mask of what was written over, and the numbers made of it, would else be taken for the same buffer."""
    forward = load(SAMPLES / "densenet_tiny.onnx", dims={"batch": 4})
    graph = build_training_graph(forward.model).model  # onnxruntime fuses more than this plan knows: all is declared
    owners: dict[str, set[str]] = {}
    for node in executed_model(emit(graph, parse_strategy("memory").solve(problem_of(graph)))).graph:
        for value in node.outputs:
            names = [str(dim.value) for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)]
            for part in filter(None, map(parts_of_dimension, names)):
                owners.setdefault(part[1], set()).add(f"{value.dtype}")
    assert owners
    assert all(len(kinds) == 1 for kinds in owners.values())


def test_a_second_buffer_within_the_peak_is_not_declared_away() -> None:
    """What is declared, all dead buffers are searched for, and so for what follows from it."""
    step = open_step(SAMPLES / "mobilenet_tiny.onnx", StepOptions.of(dims={"batch": 4}))
    planned = ckplan.rewrite(step, strategy="memory")
    assert planned.after.peak_activations <= planned.plan.predicted.peak_activations * 1.002
    named = [
        value
        for node in planned.model.graph
        for value in node.outputs
        if any(parts_of_dimension(str(dim)) for dim in value.shape or ())
    ]
    overwriting = [op for op in problem_of(planned.model).ops if op.inplace]
    assert len(named) < len(overwriting) / 4


def test_a_table_is_never_copied_for_few_rows() -> None:
    """ScatterElements has room for a second table here, which it would fill before it adds."""
    executed = executed_model(open_step(SAMPLES / "gpt_tiny.onnx", StepOptions.of(dims={"batch": 8})).ordered)
    nodes, problem = list(executed.graph), problem_of(executed)
    *_, last = (step for step, node in enumerate(nodes) if node.op_type == "ScatterElements")
    read, made = nodes[last].inputs[0], nodes[last].outputs[0]
    assert read is not None
    live = live_bytes(problem, range(len(problem.ops)))
    assert live[last] + bytes_of(made) < live.max()
    assert shape_class(read) == shape_class(made) is not None


def test_reshapes_of_many_layers_share_few_targets() -> None:
    planned = ckplan.rewrite(SAMPLES / "mobilenet_tiny.onnx", strategy="memory", dims={"batch": 4})
    reshapes = [node for node in planned.model.graph if node.op_type == "Reshape"]
    made = {node.inputs[1] for node in reshapes if (maker := node.inputs[1].producer()) and is_control(maker)}
    shapes = {tuple(dimensions_of(node.outputs[0]) or ()) for node in reshapes}
    assert len(made) < len(shapes) / 2


@pytest.mark.parametrize("dims", [(3,), (64, 128), (0, 5)])
def test_dimensions_are_hidden_and_shown(dims: tuple[int, ...]) -> None:
    value = ir.Value(name="t", shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.FLOAT))
    hide_dimensions(value, dims)
    assert value.shape is None
    assert dimensions_of(value) == dims
    show_dimensions(value, dims, "buffer3")
    assert dimensions_of(value) == dims
    assert value.shape is not None
    assert not value.metadata_props


@pytest.mark.parametrize("text", ["", "x", "-1x2", "3x", "9" * 5000, "1e9", "²"])
def test_damaged_metadata_are_no_dimensions(text: str) -> None:
    value = ir.Value(name="t", type=ir.TensorType(ir.DataType.FLOAT), metadata_props={"pkg.ckplan.shape": text})
    assert dimensions_of(value) is None


@pytest.mark.parametrize(("count", "hidden"), [(40, 1), (4, 0)])
def test_indices_tell_a_shape_where_there_are_many(count: int, hidden: int) -> None:
    """T5's buckets of relative positions, looked up for every pair of words; a few integers are shapes and axes."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (int64[{count},{count}] x, float[32,16] table) => (float[{count},{count},16] z) {{
            buckets = Neg(x)
            y = Gather(table, buckets)
            z = Tanh(y)
        }}"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    nodes, edges = list(model.graph), ControlEdges(model.graph)
    table = model.graph.inputs[1]
    table.shape = ir.Shape(["rows", "columns"])
    assert hide_sources(nodes, model, edges) == hidden


def test_a_read_that_an_alias_of_another_takes_over_counts() -> None:
    """Control nodes have to be placed anew then, too: the alias may stand behind what reads it now."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[64,64] x) => (float[64,64] y, float[64,64] z) { a = Neg(x) b = Exp(x) y = Tanh(a) z = Tanh(b) }"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    nodes, edges = list(model.graph), ControlEdges(model.graph)
    fed = model.graph.inputs[0]
    read_instead(nodes[1], fed, edges.hide(fed))
    assert hide_sources(nodes, model, edges) == 1
    assert nodes[0].inputs[0] is nodes[1].inputs[0]


@pytest.mark.parametrize(("width", "hidden"), [(16, True), (32, False)])
def test_no_forward_buffer_waits_for_the_backward_pass(width: int, hidden: bool) -> None:
    """Positions that are looked up have a known shape, and so has their gradient if it is summed up from an output."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[8,64,16] x, float[64,16] table, float[8,64,{width}] g) => (float[8,64,16] y, float[8,64,{width}] d)
        <int64[1,64] places = {{{", ".join(map(str, range(64)))}}}, int64[1] first = {{0}}> {{
            looked = Gather(table, places)
            y = Add(x, looked)
            d = Neg(g)
            summed = ReduceSum(d, first)
            e = Tanh(summed)
        }}"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    nodes, edges = list(model.graph), ControlEdges(model.graph)
    table = model.graph.inputs[1]
    table.const_value = ir.tensor(np.zeros((64, 16), np.float32))
    model.graph.register_initializer(table)
    for node in nodes[2:]:
        node.metadata_props[PHASE] = "backward"
    hide_held_over(nodes, edges)
    read = [value.producer() for value in (nodes[0].inputs[0], nodes[3].inputs[0]) if value is not None]
    assert [maker is not None and is_control(maker) for maker in read] == [hidden, hidden]


@pytest.mark.parametrize("again", [True, False])
def test_no_mask_waits_for_its_repeat(again: bool) -> None:
    """A mask of constants has a known shape even where it waits for something: a number has no dimension to hide."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[8,64,64] x, bool[64,64] chosen) => (float[8,64,64] y, float[8,64,64] z)
        <float one = {1.0}, float low = {-9.0}> {
            mask = Where(chosen, one, low)
            y = Add(x, mask)
            later = Where(chosen, one, low)
            z = Mul(y, later)
        }"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    nodes, edges = list(model.graph), ControlEdges(model.graph)
    x, chosen = model.graph.inputs
    chosen.const_value = ir.tensor(np.zeros((64, 64), bool))
    model.graph.register_initializer(chosen)
    for node, after in ((nodes[0], x), (nodes[2], nodes[1].outputs[0])):
        one = model.graph.initializers["one"]
        read_instead(node, one, edges.alias(one, after))
    if again:
        nodes[2].metadata_props[ROLE] = "recompute"
    hide_held_over(nodes, edges)
    makers = [value.producer() for node in (nodes[0], nodes[2]) if (value := node.inputs[0]) is not None]
    assert [maker is not None and is_control(maker) for maker in makers] == [again, again]


def test_a_scale_stays_part_of_the_product_that_reads_it() -> None:
    """Onnxruntime multiplies by a scalar within a product only where it knows that the other factor is none."""
    layer = (
        "q{0} = MatMul(x{0}, w{0}) t{0} = Transpose<perm = [0, 2, 1]>(x{0}) s{0} = MatMul(q{0}, t{0}) "
        "m{0} = Mul(s{0}, scale) p{0} = Softmax<axis = -1>(m{0}) x{1} = MatMul(p{0}, x{0})"
    )
    count = 4
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[2,16,8] x0) => (float[2,16,8] x{count}) '
        f"<float scale = {{0.3}}> {{ {' '.join(layer.format(n, n + 1) for n in range(count))} }}"
    )
    weights = np.random.default_rng(0).standard_normal((count, 8, 8)).astype("f")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights))
    step = open_step(model)
    planned = ckplan.rewrite(step, strategy="memory")
    scaled = [
        [str(node.outputs[0].name) for node in executed_model(file).graph if "alpha" in node.attributes]
        for file in (step.ordered, planned.model)
    ]
    assert len(scaled[0]) >= 2 * count
    assert set(scaled[0]) <= set(scaled[1])
