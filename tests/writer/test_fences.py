"""What would be fused once a plan leaves it a single reader is kept apart before onnxruntime is asked."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.pipeline import open_step
from ckplan.pipeline.plan_files import write_plan
from ckplan.planner.plan import make_plan
from ckplan.runtime.executing.executed import executed_model
from ckplan.writer.control_edges import ControlEdges, assemble, is_control, read_instead
from ckplan.writer.fences import fence, fence_alone
from ckplan.writer.ordering import place_control_nodes

GELU = "w = Tanh(x) s = Add(w, one) y = Mul(x, s)"
FORMS = {
    "gelu": (GELU, True),
    "silu": ("s = Sigmoid(x) y = Mul(s, x)", True),
    "addition before a normalisation": ("s = Add(x, one) y = LayerNormalization(s, scale)", False),
    "gelu whose sum is read twice": (f"{GELU} z = Neg(s)", False),
    "activation behind a convolution": ("s = Conv(x, w) y = Sigmoid(s)", True),
    "any other function behind one": ("s = Conv(x, w) y = Sin(s)", False),
    "any other product": ("s = Exp(x) y = Mul(s, x)", False),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_last_reader_reads_an_alias(form: str) -> None:
    body, hidden = FORMS[form]
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[4,8] x) => (float[4,8] y) '
            f"<float[1] one = {{1}}, float[8] scale = {{1,1,1,1,1,1,1,1}}> {{ {body} }}"
        )
    )
    for value in (value for node in model.graph for value in node.outputs):
        value.shape, value.type = ir.Shape([4, 8]), ir.TensorType(ir.DataType.FLOAT)
    nodes = list(model.graph)
    edges = ControlEdges(model.graph)
    fence_alone(nodes, edges)
    makers = [value.producer() for node in nodes for value in node.inputs if value is not None]
    controls = [maker for maker in makers if maker is not None and is_control(maker)]
    assert all("s" in {value.name for value in control.inputs if value is not None} for control in controls)
    assert len(controls) == (1 if hidden else 0)
    assert edges.count == (1 if hidden else 0)


def test_a_part_of_a_fused_node_is_not_merged_with_that_of_its_repeat() -> None:
    """Of a convolution with an addition the summand alone is made again: the convolutions read the same."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2,4,8,8] x) => (float[2,4,8,8] y) {'
        "a = Conv(x, wa, b) r = Relu(a) t = Tanh(x) c = Conv(r, wc, b) s = Add(c, t) u = Sin(s) y = Mul(u, s) }"
    )
    random = np.random.default_rng(0)
    for name, dims in (("wa", (4, 4, 1, 1)), ("wc", (4, 4, 1, 1)), ("b", (4,))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(random.standard_normal(dims).astype("f"), name))
    step = open_step(model)
    problem = step.problem
    place = {op.outputs[0]: index for index, op in enumerate(problem.ops)}
    by_name = {tensor.name: number for number, tensor in enumerate(problem.tensors)}
    again = [place[by_name["t"]], place[by_name["s"]]]
    first = next(index for index, op in enumerate(problem.ops) if op.backward)
    order = [*range(first), *again, *range(first, len(problem.ops))]
    file = write_plan(step, make_plan(problem, "by hand", order)).model
    fused = [node for node in executed_model(file).graph if node.op_type == "FusedConv" and len(node.inputs) == 4]
    assert len(fused) == 2


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax"])
def test_what_is_added_up_is_added_in_the_planned_order(op_type: str) -> None:
    """Where a plan leaves a Transpose one reader, onnxruntime moves it behind that: a sum then goes another way."""
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[2,4,8] x) => (float[8] y) <int64[2] axes = {0, 2}> '
            f"{{ a = Neg(x) t = Transpose<perm = [0, 2, 1]>(a) y = {op_type}<keepdims = 0>(t, axes) }}"
        )
    )
    transposed = model.graph[1].outputs[0]
    transposed.shape, transposed.type = ir.Shape([2, 8, 4]), ir.TensorType(ir.DataType.FLOAT)
    executed = executed_model(model)
    assert [node.op_type for node in executed.graph] == ["Neg", op_type]
    nodes = list(model.graph)
    hidden = fence(nodes, executed, edges := ControlEdges(model.graph))
    assert hidden == edges.count == (0 if op_type == "ReduceMax" else 1)
    assert (nodes[-1].inputs[0] is transposed) == (op_type == "ReduceMax")


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax"])
def test_what_is_added_up_is_added_in_the_planned_order_with_the_transpose_behind_it(op_type: str) -> None:
    """Where axes are kept the Transpose makes the output, and its own input may be read by others, an alias say."""
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[2,4,8] x, int64[1] n) '
            "=> (float[1,8,1] y, float[k,l,m,n] z, float[2,4,8] w) <int64[2] axes = {0, 2}> "
            f"{{ a = Neg(x) t = Transpose<perm = [0, 2, 1]>(a) y = {op_type}<keepdims = 1>(t, axes) "
            "z = Unsqueeze(t, n) s = Sin(t) w = Transpose<perm = [0, 2, 1]>(s) }"
        )
    )
    transposed, sine = model.graph[1].outputs[0], model.graph[4].outputs[0]
    for value in (transposed, sine):
        value.shape, value.type = ir.Shape([2, 8, 4]), ir.TensorType(ir.DataType.FLOAT)
    executed = executed_model(model)
    makers = {str(value.name): node for node in executed.graph for value in node.outputs}
    assert makers["y"].op_type == "Transpose"
    assert "t" in makers
    fence(list(model.graph), executed, ControlEdges(model.graph))
    assert (model.graph[2].inputs[0] is transposed) == (op_type == "ReduceMax")


def test_what_is_quantised_before_an_alias_has_no_alias_of_an_alias() -> None:
    """onnxruntime quantises before what only moves data: no alias keeps it from that, and the numbers are the same."""
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[4,8] x) => (float[4,8] y) '
            "<float scale = {0.1}, uint8 zero = {128}> "
            "{ a = Neg(x) q = QuantizeLinear(a, scale, zero) d = DequantizeLinear(q, scale, zero) y = Relu(d) }"
        )
    )
    for value in (value for node in model.graph for value in node.outputs):
        value.shape = ir.Shape([4, 8])
        value.type = ir.TensorType(ir.DataType.UINT8 if value.name == "q" else ir.DataType.FLOAT)
    nodes, edges = list(model.graph), ControlEdges(model.graph)
    read_instead(nodes[1], nodes[0].outputs[0], edges.hide(nodes[0].outputs[0]))
    nodes = place_control_nodes(nodes)
    assemble(model, nodes, edges)
    executed = executed_model(model)
    quantises = next(node for node in executed.graph if node.op_type == "QuantizeLinear")
    assert str(quantises.outputs[0].name) != "q", "it runs before the alias"
    assert fence(nodes, executed, edges) == 0


def test_what_is_quantised_and_made_again_is_computed_alike() -> None:
    """The copy that is only quantised would be computed in integers, or with a bias in steps of the scales."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2,4,8,8] x) => (float[2,4,8,8] y) '
        "<float s = {0.02}, float sw = {0.005}, uint8 z = {100}, int8 zw = {0}> {"
        "qx = QuantizeLinear(x, s, z) dx = DequantizeLinear(qx, s, z) "
        "qw = QuantizeLinear(w, sw, zw) dw = DequantizeLinear(qw, sw, zw) l = Conv(dx, dw, b) c = Relu(l) "
        "qc = QuantizeLinear(c, s, z) d = DequantizeLinear(qc, s, z) t = Sin(d) y = Mul(t, t) }"
    )
    random = np.random.default_rng(0)
    for name, dims in (("w", (4, 4, 1, 1)), ("b", (4,))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(random.standard_normal(dims).astype("f"), name))
    step = ckplan.open_model(model, loss="sum", straight_through=True)
    problem = step.problem
    first = next(index for index, op in enumerate(problem.ops) if op.backward)
    place = next(index for index, op in enumerate(problem.ops) if problem.tensors[op.outputs[0]].name == "c")
    order = [*range(first), place, *range(first, len(problem.ops))]
    planned = write_plan(step, make_plan(problem, "by hand", order)).model
    outputs = []
    for file in (step.ordered, planned):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        written = ir.to_proto(file).SerializeToString()
        session = onnxruntime.InferenceSession(written, options, providers=["CPUExecutionProvider"])
        x = np.random.default_rng(1).standard_normal((2, 4, 8, 8)).astype("f")
        outputs.append(session.run(None, {"x": x}))
    for plain, again in zip(*outputs, strict=True):
        np.testing.assert_array_equal(plain, again)


def test_a_node_that_reads_the_alias_of_another_is_told_as_well() -> None:
    """The file is put in order again where nodes were told: the alias stood behind a mean that a UPerNet takes."""
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2,3,4] x) => (float[2,1,3] y, float[2,4,3] z) {{ {} }}'
    planned = "t = Transpose<perm = [0,2,1]>(x) y = ReduceMean(t, one) z = Sin(t)"
    moved = "m = ReduceMean(x, two) y = Transpose<perm = [0,2,1]>(m) t = Transpose<perm = [0,2,1]>(x) z = Sin(t)"
    model, executed = (ir.from_proto(onnx.parser.parse_model(text.format(body))) for body in (planned, moved))
    nodes = list(model.graph)
    value = nodes[0].outputs[0]
    value.shape, value.type = ir.Shape([2, 4, 3]), ir.TensorType(ir.DataType.FLOAT)
    edges = ControlEdges(model.graph)
    alias = edges.hide(value)
    read_instead(nodes[2], value, alias)
    assert fence(nodes, executed, edges) == 1
    assert nodes[1].inputs[0] is alias
    assert fence(nodes, executed, edges) == 0
