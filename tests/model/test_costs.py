"""Costs: formulas by hand for the operators that matter, and ratios that a planner can rely on."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckplan.keys import PIECES
from ckplan.model import Cost, node_cost, seconds
from ckplan.model.costs import BYTES_PER_SECOND, FLOPS_PER_SECOND, seconds_of_bodies

Shape = Sequence[int]


def node(
    op_type: str, inputs: Sequence[Shape], output: Shape, dtype: ir.DataType = ir.DataType.FLOAT, **attributes: object
) -> ir.Node:
    values = [ir.Value(name=f"i{k}", shape=ir.Shape(s), type=ir.TensorType(dtype)) for k, s in enumerate(inputs)]
    result = ir.node(op_type, values, attributes=attributes)  # type: ignore[arg-type]
    result.outputs[0].shape = ir.Shape(output)
    result.outputs[0].type = ir.TensorType(dtype)
    return result


@pytest.mark.parametrize(
    ("made", "flops"),
    [
        (node("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], (1, 4, 8, 8)), 2 * 4 * 64 * 27),
        (node("Conv", [(1, 4, 8, 8), (4, 1, 3, 3), (4,)], (1, 4, 8, 8), group=4), 2 * 4 * 64 * 9 + 256),
        (node("ConvTranspose", [(1, 4, 8, 8), (4, 2, 2, 2)], (1, 2, 16, 16)), 2 * 4 * 64 * 8),
        (node("MatMul", [(5, 2, 3), (3, 4)], (5, 2, 4)), 2 * 5 * 2 * 4 * 3),
        (node("MatMul", [(3,), (3,)], ()), 6),
        (node("Gemm", [(3, 2), (3, 4)], (2, 4), transA=1), 2 * 2 * 4 * 3),
        (node("Einsum", [(2, 3, 4), (2, 4, 5)], (2, 3, 5), equation="bij,bjk->bik"), 2 * 2 * 3 * 4 * 5),
        (node("Einsum", [(7, 3, 4), (4, 5)], (7, 3, 5), equation="...ij,jk->...ik"), 2 * 7 * 3 * 4 * 5),
        (node("MaxPool", [(1, 1, 4, 4)], (1, 1, 2, 2), kernel_shape=[2, 2]), 16),
        (
            node("DeformConv", [(1, 4, 6, 6), (2, 4, 3, 3), (1, 36, 4, 4)], (1, 2, 4, 4), offset_group=2),
            2 * 32 * 36 + 10 * 4 * 9 * 16,
        ),
        (node("GridSample", [(1, 2, 6, 6), (1, 4, 4, 2)], (1, 2, 4, 4)), 2 * 4 * 32 + 20 * 32),
        (node("GridSample", [(1, 2, 6, 6), (1, 4, 4, 2)], (1, 2, 4, 4), mode="cubic"), 2 * 16 * 32 + 20 * 32),
        (node("RoiAlign", [(1, 2, 6, 6), (3, 4), (3,)], (3, 2, 4, 4), sampling_ratio=3), 8 * 9 * 96),
        (node("DFT", [(1, 8, 1)], (1, 8, 2)), 5 * 4 * 16),
        (node("Det", [(2, 5, 5)], (2,)), 2 * 125),
        (node("Add", [(2, 3), (3,)], (2, 3)), 6),
        (node("Sum", [(2, 3), (2, 3), (2, 3)], (2, 3)), 12),
        (node("Attention", [(1, 2, 6, 4), (1, 2, 8, 4), (1, 2, 8, 4)], (1, 2, 6, 4)), 2 * 96 * 8 + 20 * 96),
    ],
    ids=lambda value: value.op_type if isinstance(value, ir.Node) else None,
)
def test_flops(made: ir.Node, flops: int) -> None:
    assert node_cost(made).flops == flops


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (node("Relu", [(10, 10)], (10, 10)), 800),
        (node("Relu", [(10, 10)], (10, 10), ir.DataType.FLOAT16), 400),
        (node("Add", [(10, 10), (10,)], (10, 10)), 840),
        (node("Reshape", [(10, 10), (1,)], (100,)), 0),
        (node("Gather", [(30000, 10), (4,)], (4, 10)), 2 * 160),
        (node("Slice", [(100, 100)], (1, 100)), 800),
        (node("Expand", [(1, 10)], (10, 10)), 400),
        (node("ReduceSum", [(10, 10)], (10,)), 440),
    ],
    ids=lambda value: value.op_type if isinstance(value, ir.Node) else None,
)
def test_bytes(made: ir.Node, expected: int) -> None:
    assert node_cost(made).bytes == expected


def test_roofline() -> None:
    assert seconds(Cost(int(FLOPS_PER_SECOND), 0)) == 1
    assert seconds(Cost(10, int(BYTES_PER_SECOND))) == 1
    assert Cost(1, 2) + Cost(3, 4) == Cost(4, 6)


def test_ratios_that_planning_rests_on() -> None:
    big = (8, 64, 56, 56)
    relu = seconds(node_cost(node("Relu", [big], big)))
    conv = seconds(node_cost(node("Conv", [big, (64, 64, 3, 3)], big)))
    depthwise = seconds(node_cost(node("Conv", [big, (64, 1, 3, 3)], big, group=64)))
    normalised = seconds(node_cost(node("BatchNormalization", [big, *[(64,)] * 4], big)))
    assert 20 < conv / relu < 200
    assert 2 < depthwise / relu < 20
    assert 0.5 < normalised / relu < 3
    wide = seconds(node_cost(node("Conv", [(8, 576, 10, 8), (4608, 1, 3, 8)], (8, 4608, 8, 1), group=576)))
    small = (8, 576, 8, 8)
    assert wide < seconds(node_cost(node("Conv", [small, (576, 1, 3, 3)], small, group=576)))
    assert seconds(node_cost(node("Reshape", [big, (2,)], (8, 200704)))) == 0


def test_a_deformable_convolution_whose_input_has_no_shape_costs_as_many_operations() -> None:
    """As of an input that waits for another tensor: what carries it there has no shape in the file."""
    made = node("DeformConv", [(1, 4, 6, 6), (2, 2, 3, 3), (1, 36, 4, 4)], (1, 2, 4, 4), offset_group=2, group=2)
    known, first = node_cost(made), made.inputs[0]
    assert first is not None
    first.shape = None
    assert node_cost(made).flops == known.flops == 2 * 32 * 18 + 10 * 4 * 9 * 16


def test_unknown_operators_count_as_elementwise() -> None:
    made = node("SomethingNew", [(4, 5)], (4, 5))
    made.domain = "example.org"
    assert node_cost(made) == Cost(20, 160)


def test_control_flow_costs_its_body() -> None:
    x = ir.Value(name="x", shape=ir.Shape([10]), type=ir.TensorType(ir.DataType.FLOAT))
    bodies = []
    for count in (1, 3):
        inner = [ir.node("Relu", [x]) for _ in range(count)]
        for relu in inner:
            relu.outputs[0].shape, relu.outputs[0].type = x.shape, x.type
        bodies.append(ir.Graph([], [inner[-1].outputs[0]], nodes=inner))
    condition = ir.Value(name="c", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    made = ir.node("If", [condition], attributes={"then_branch": bodies[0], "else_branch": bodies[1]})
    assert node_cost(made) == Cost(30, 240)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from(["Relu", "Tanh", "Softmax", "Transpose"]))
def test_doubling_a_tensor_doubles_its_cost(shape: list[int], op_type: str) -> None:
    once = node_cost(node(op_type, [shape], shape))
    larger = [2 * shape[0], *shape[1:]]
    twice = node_cost(node(op_type, [larger], larger))
    assert twice == once + once


def test_a_region_in_pieces_is_priced_node_by_node() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[8,64,32] x, float[32,512] w) => (float[8,64,512] y) '
        "{ y = Scan <num_scan_inputs = 1, body = b (float[64,32] r) => (float[64,512] s) "
        "{ p = MatMul(r, w) s = Exp(p) }> (x) }"
    )
    model = onnx.parser.parse_model(text)
    (scan,) = ir.from_proto(onnx.shape_inference.infer_shapes(model, data_prop=True)).graph
    body = scan.attributes["body"].as_graph()
    for inner in body:
        inner.outputs[0].type, inner.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape((64, 512))
    whole = seconds(node_cost(scan))
    scan.metadata_props[PIECES] = "8"
    each = [node_cost(inner) for inner in body]
    halved = sum(max(one.flops / FLOPS_PER_SECOND, one.bytes / 2 / BYTES_PER_SECOND) for one in each)
    assert seconds(node_cost(scan)) == pytest.approx(8 * halved, rel=1e-6)
    assert seconds(node_cost(scan)) != pytest.approx(whole, rel=1e-6)
    prices = {"MatMul": 3.0, "Exp": 1.0}
    assert seconds_of_bodies(scan, lambda inner: prices[inner.op_type]) == 8 * 4.0
