"""The graph that is planned is the one that onnxruntime executes, and a plan changes no bit of what it computes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.errors import ModelError
from ckplan.keys import PHASE
from ckplan.meter.inputs import make_inputs
from ckplan.operators.sessions import open_session
from ckplan.pipeline import rewrite, step_of, write_plan
from ckplan.pipeline.step import Step
from ckplan.runtime.executing.executed import executed_model
from ckplan.runtime.executing.fused import fused_graph
from ckplan.runtime.executing.unfused import PARTS

SAMPLES = Path(__file__).parents[2] / "sample_models"

GELU = """
    <ir_version: 10, opset_import: ["" : 21]>
    gelu (float[64,32] x) => (float loss)
    <float[32,64] first = {}, float[64,32] second = {}, float[64,32] third = {},
     float three = {3.0}, float small = {0.044715}, float root = {0.797880}, float one = {1.0}, float half = {0.5}>
    {
        wide = MatMul (x, first)
        cube = Pow (wide, three)
        part = Mul (cube, small)
        sum = Add (wide, part)
        scaled = Mul (sum, root)
        bent = Tanh (scaled)
        raised = Add (bent, one)
        halved = Mul (wide, half)
        gelu = Mul (halved, raised)
        narrow = MatMul (gelu, second)
        turned = Transpose <perm = [1, 0]> (narrow)
        again = MatMul (turned, third)
        loss = ReduceSumSquare <keepdims = 0> (again)
    }
"""
"""The tanh form of Gelu, its root so rounded that only onnxruntime knows it, and a transpose in front of a product."""


def executed_operators(model: ir.Model) -> Counter[str]:
    """What onnxruntime executes; views are left out, equal ones are merged."""
    return Counter(node.op_type for node in executed_model(model).graph if node.op_type not in ("Reshape", "Unsqueeze"))


def sample(name: str) -> Step:
    dims = {"batch": 2}
    return step_of(ckplan.build_training_graph(ckplan.load(SAMPLES / f"{name}.onnx", dims=dims).model), name)


RESIDUAL = """
    <ir_version: 10, opset_import: ["" : 21]>
    residual (float[4,8,24,24] x) => (float loss)
    <float[16,8,3,3] first = {}, float[16,16,3,3] second = {}, float[16,16,3,3] third = {}, float[16,8,1,1] aside = {},
     float[16] b = {}, float[16] c = {}, float[16] d = {}, float[16] e = {}>
    {
        stem = Conv <pads = [1, 1, 1, 1]> (x, first, b)
        bent = Tanh (stem)
        branch = Conv <pads = [1, 1, 1, 1]> (bent, second, c)
        short = Conv (x, aside, e)
        sum = Add (branch, short)
        on = Relu (sum)
        next = Conv <pads = [1, 1, 1, 1]> (on, third, d)
        total = Add (stem, next)
        loss = ReduceSumSquare <keepdims = 0> (total)
    }
"""
"""Convolutions that onnxruntime makes an addition part of; either of the first sum would do."""


FUNCTIONS = """
    <ir_version: 10, opset_import: ["" : 21]>
    functions (float[2,8,16,16] x) => (float loss)
    <float[32,8,3,3] first = {}, float[32] b = {}, float[32] scale = {}, float[32] bias = {},
     float[16,32] second = {}, float[16,16] third = {}>
    {
        wide = Conv <pads = [1, 1, 1, 1]> (x, first, b)
        even = GroupNormalization <num_groups = 4> (wide, scale, bias)
        bent = HardSwish (even)
        pooled = GlobalAveragePool (bent)
        flat = Flatten (pooled)
        narrow = Gemm <transB = 1> (flat, second)
        part = Mish (narrow)
        turned = Transpose <perm = [1, 0]> (part)
        product = MatMul (third, turned)
        shape = Shape (third)
        size = Cast <to = 1> (shape)
        root = Sqrt (size)
        scale0 = ReduceMax <keepdims = 0> (root)
        scaled = Div (product, scale0)
        loss = ReduceSumSquare <keepdims = 0> (scaled)
    }
"""
"""Operators that onnxruntime has no kernel for, pooling that it would run in blocks, a scaling that is computed."""


def written_down(text: str) -> Step:
    """The step of a model in ONNX's text form, whose initializers without a value are drawn at random."""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        if not tensor.float_data and not tensor.raw_data:
            array = random.standard_normal(tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return ckplan.open_model(proto)


def outputs(model: ir.Model, arrays: dict[str, np.ndarray], folder: Path, threads: int) -> dict[str, np.ndarray]:
    import onnxruntime

    path = folder / "run.onnx"
    ckplan.save(model, path, force=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = open_session(str(path), options)
    fed = {value.name: arrays[value.name] for value in session.get_inputs() if value.name in arrays}
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, fed), strict=True))


@pytest.mark.parametrize("name", ["mlp", "gpt_tiny", "resnet_tiny"])
def test_it_executes_as_the_graph_that_it_was_made_from(name: str) -> None:
    step = sample(name)
    assert executed_operators(fused_graph(step.model)) == executed_operators(step.model)


def test_fused_nodes_stand_for_several() -> None:
    step = written_down(GELU)
    fused = [node for node in step.fused.graph if node.domain]
    assert fused
    assert all(len(node.meta[PARTS]) > 1 for node in fused)
    written = rewrite(step, ckplan.parse_strategy("memory")).model
    assert not any(node.domain for node in written.graph)  # the file stays in standard operators


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("strategy", ["none", "sqrt", "memory"])
@pytest.mark.parametrize("text", [GELU, RESIDUAL, FUNCTIONS], ids=["gelu", "residual", "functions"])
def test_a_plan_changes_no_bit(tmp_path: Path, text: str, strategy: str, threads: int) -> None:
    step = written_down(text)
    planned = rewrite(step, ckplan.parse_strategy(strategy))
    arrays = make_inputs(step.model).arrays
    before, after = (outputs(model, arrays, tmp_path, threads) for model in (step.ordered, planned.model))
    assert {name: array.tobytes() for name, array in before.items()} == {k: v.tobytes() for k, v in after.items()}


def test_additions_are_made_part_of_the_same_convolutions() -> None:
    step = written_down(RESIDUAL)
    planned = rewrite(step, ckplan.parse_strategy("none"))
    plain, with_plan = (
        sorted(str(node.inputs[1].name) for node in executed_model(model).graph if node.op_type == "FusedConv")
        for model in (step.ordered, planned.model)
    )
    assert plain == with_plan
    assert len(plain) == 2


def test_functions_without_a_kernel_are_planned_as_their_bodies() -> None:
    step = written_down(FUNCTIONS)
    kinds = {node.op_type for node in step.fused.graph}
    assert kinds.isdisjoint({"GroupNormalization", "HardSwish", "Mish"})
    assert {"even", "bent", "part"} <= {str(value.name) for node in step.fused.graph for value in node.outputs}
    # The gradient of HardSwish computes what its body computes, too: they are one node, of the forward pass.
    forward = {node.name for node in step.fused.graph if node.metadata_props[PHASE] == "forward"}
    assert {"node", "node_3"} <= forward


def test_what_is_not_fused_without_a_plan_is_not_fused_with_one() -> None:
    step = written_down(GELU)
    assert "FastGelu" not in executed_operators(step.model)
    planned = write_plan(step, ckplan.parse_strategy("sqrt").solve(step.problem))
    assert planned.plan.recomputed
    assert "FastGelu" not in executed_operators(planned.model)


ROTARY = """
    <ir_version: 10, opset_import: ["" : 21]>
    rotary (float[2,5,3,7] x) => (float[2,5,3,7] y) <float[5,7] table = {}>
    {
        turned = Transpose <perm = [0, 2, 1, 3]> (x)
        product = Mul (turned, table)
        bent = Tanh (product)
        y = Transpose <perm = [0, 2, 1, 3]> (bent)
    }
"""


@pytest.mark.parametrize("copies", [1, 20_000], ids=["small", "large"])
def test_a_constant_that_optimisers_turn_is_taken_as_they_left_it(copies: int) -> None:
    """A transpose that moves behind a product turns the constant factor; of a large one there is only a stand-in."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(5, 7 * copies)).astype(np.float32)
    model = onnx.parser.parse_model(ROTARY.replace("7", str(7 * copies)).replace("2,5,3", "1,5,1"))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(table, "table"))
    step = ckplan.open_model(model, inference=True)
    x = rng.normal(size=(1, 5, 1, 7 * copies)).astype(np.float32)
    expected = np.tanh(x.transpose(0, 2, 1, 3) * table).transpose(0, 2, 1, 3)
    for file in (step.ordered, ckplan.rewrite(step, strategy="memory").model):
        session = open_session(ir.to_proto(file).SerializeToString(), onnxruntime.SessionOptions())
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)


def test_shapes_in_the_layout_of_blocks_are_known() -> None:
    """By them onnxruntime hands dead buffers on, and holds them."""
    text = """<ir_version: 10, opset_import: ["" : 21]> pooled (float[2,32,8,8] x) => (float[2,32,4,4] y)
    { bent = Tanh (x)  pool = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (bent)  y = Neg (pool) }"""
    executed = ckplan.open_model(onnx.parser.parse_model(text), inference=True).executed
    made = [value for node in executed.graph if node.op_type in ("ReorderInput", "MaxPool") for value in node.outputs]
    assert made
    assert all(value.shape is not None and value.shape.is_static() for value in made)


def test_what_optimisers_add_to_a_branch_bears_no_name_of_the_graph_around() -> None:
    """As where torch.cond has linear layers in both: a product and a sum of three axes become Reshape and Gemm."""
    linear = "p{0} = MatMul (x, weight) s{0} = Add (p{0}, bias) y{0} = Tanh (s{0})"
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    chosen (float[2,5,6] x, bool first) => (float loss) <float[6,6] weight = {{}}, float[6] bias = {{}}>
    {{
        {linear.format(0)}
        z = If (first) <
            then_branch = a () => (float[2,5,6] y1) {{ {linear.format(1)} }},
            else_branch = b () => (float[2,5,6] y2) {{ y2 = Identity (x) }}
        >
        sum = Add (y0, z)
        loss = ReduceSumSquare <keepdims = 0> (sum)
    }}
    """
    proto = onnx.parser.parse_model(text)
    for tensor in proto.graph.initializer:
        tensor.float_data.extend(np.linspace(-1, 1, int(np.prod(tensor.dims))))
    graph = fused_graph(ir.from_proto(proto)).graph
    nodes = list(ir.traversal.RecursiveGraphIterator(graph))
    assert [node.op_type for node in nodes].count("Gemm") == 2
    names = [value.name for node in nodes for value in node.outputs]
    assert len(names) == len(set(names))


PARTS_OF_A_FILE = """
    <ir_version: 10, opset_import: ["" : 21]>
    parts (float[2,8,8] x) => (float loss) <float[8,8] w = {}, float half = {0.5}>
    {
        a = Mul (x, half)
        y = MatMul (a, w)
        t = Tanh (x)
        z = Mul (t, y)
        loss = ReduceSumSquare <keepdims = 0> (z)
    }
"""


def test_parts_bear_no_name_that_the_file_has() -> None:
    """A planned file that is planned again has nodes that are called after the fused ones that they were part of."""
    proto = onnx.parser.parse_model(PARTS_OF_A_FILE)
    for node, name in zip(proto.graph.node, ("scaled", "product", "product/part1", "z", "loss"), strict=True):
        node.name = name
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"))
    step = ckplan.open_model(proto)
    written = rewrite(step, ckplan.parse_strategy("none")).model
    names = Counter(str(node.name) for node in written.graph)
    assert {"product", "product/part1", "product_1/part1"} <= set(names)
    assert set(names.values()) == {1}


def test_what_onnxruntime_does_not_load_has_a_remedy() -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> g (complex64[4] x) => (complex64[4] y) { y = Identity (x) }'
    with pytest.raises(ModelError, match=r"does not load the graph: .*complex64.*; export it again"):
        executed_model(ir.from_onnx_text(text))
