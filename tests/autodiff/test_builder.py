"""The op builder."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.autodiff.registry import NoGradientError
from ckplan.errors import ModelError
from tests.autodiff.gradcheck import parse, reference, values

TEXT = "g (float[2,3] x, int64[1] n) => (float[2,3] y) { y = Tanh(x) }"


@pytest.fixture
def op() -> Builder:
    graph = parse(TEXT).graph
    return Builder(graph, graph.opset_imports)


def test_nodes_carry_names_phase_type_and_shape(op):
    x = op.graph.inputs[0]
    with op.scope("layer/grad"):
        first, second = op.Mul(x, 2.0), op.Mul(x, x)
        low, high = op.Split(first, num_outputs=2, axis=0, _outputs=2)
    assert first.producer().name == "layer/grad/Mul_0"
    assert second.producer().name == "layer/grad/Mul_1"
    assert first.producer().metadata_props == {"pkg.ckplan.phase": "backward"}
    assert (shape_of(low), shape_of(high), dtype_of(low)) == ((1, 3), (1, 3), np.float32)
    assert [node.op_type for node in op.graph] == ["Tanh", "Mul", "Mul", "Split"]


def test_a_scope_may_insert_before_a_node(op):
    with op.scope("early", "forward", before=op.graph.node(0)):
        made = op.Neg(op.graph.inputs[0])
    assert [node.op_type for node in op.graph] == ["Neg", "Tanh"]
    assert made.producer().metadata_props == {"pkg.ckplan.phase": "forward"}


def test_names_are_unique_among_nodes_and_values():
    graph = parse(TEXT).graph
    graph.outputs[0].name = "a/Neg_0"
    op = Builder(graph, graph.opset_imports)
    with op.scope("a"):
        assert op.Neg(graph.inputs[0]).producer().name == "a/Neg_1"
    assert op.unique_name("fresh") == "fresh"
    assert op.unique_name("fresh") == "fresh_0"


def test_equal_constants_are_one_initializer(op):
    x = op.graph.inputs[0]
    op.Mul(op.Mul(x, 2.0), np.float32(2))
    op.Reshape(op.Reshape(x, np.asarray([3, 2])), op.constant([3, 2]))
    op.Mul(op.Cast(x, to=ir.DataType.DOUBLE), 2.0)
    assert len(op.graph.initializers) == 3
    kinds = {(value.dtype, shape_of(value)) for value in op.graph.initializers.values()}
    assert kinds == {(ir.DataType.FLOAT, ()), (ir.DataType.INT64, (2,)), (ir.DataType.DOUBLE, ())}


def test_numbers_take_the_type_of_the_tensor_beside_them(op):
    x, n = op.graph.inputs
    assert op.Where(op.Greater(x, 0), x, 0).dtype == ir.DataType.FLOAT
    assert op.Add(n, 1).dtype == ir.DataType.INT64
    with pytest.raises(TypeError, match="takes its element type"):
        op.Add(1, 2)


def test_numbers_have_as_many_axes_as_a_tensor_whose_last_has_one_element(op):
    column = op.ReduceSum(op.graph.inputs[0], np.asarray([1]))
    for made in (op.Mul(column, 2.0), op.Sub(1.0, column)):
        assert shape_of(made) == (2, 1)
        assert {shape_of(value) for value in made.producer().inputs} == {(2, 1), (1, 1)}
    assert shape_of(op.Clip(column, 0.0).producer().inputs[1]) == ()
    chosen = op.Where(op.Equal(column, np.float32(0)), np.float32(1), column)
    equal, *others = chosen.producer().inputs
    assert [shape_of(value) for value in (*equal.producer().inputs, *others)] == [(2, 1), (1, 1), (1, 1), (2, 1)]


def test_helpers_emit_nothing_where_nothing_is_to_do(op):
    x = op.graph.inputs[0]
    before = len(op.graph)
    assert op.reshape(x, (2, 3)) is x
    assert op.transpose(x, (0, 1)) is x
    assert op.sum_to_shape(x, (2, 3)) is x
    assert op.expand(x, (2, 3)) is x
    assert op.scale(x, 1) is x
    assert op.reduce_sum(x, []) is x
    assert len(op.graph) == before
    row = op.reshape(x, (1, 6))
    assert op.transpose(row, (1, 0)).producer().op_type == "Reshape"
    assert op.reduce_sum(row, [0], keepdims=False).producer().op_type == "Reshape"
    assert op.scale(op.constant(np.float32(3)), 2).const_value.numpy() == 6


@pytest.mark.parametrize(("columns", "made_by"), [(2**13, "MatMul"), (2**12, "ReduceSum")])
def test_few_long_rows_are_added_up_by_a_product(op, columns, made_by):
    x = ir.Value(name="rows", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4, columns]))
    assert op.reduce_sum(x, [0]).producer().op_type == made_by


@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (2, 1), (1, 1), (3,), (1,), ()])
def test_sum_to_shape(op, shape):
    x = op.graph.inputs[0]
    result = op.sum_to_shape(op.Identity(x), shape)
    assert shape_of(result) == shape
    op.graph.outputs[:] = [result]
    given = values(2, 3).astype(np.float32)
    expected = given.sum(axis=tuple(range(2 - len(shape))))
    stretched = tuple(axis for axis, dim in enumerate(shape) if dim == 1 and expected.shape[axis] != 1)
    expected = expected.sum(axis=stretched, keepdims=True) if stretched else expected
    found = reference(ir.Model(op.graph, ir_version=10), {"x": given, "n": np.asarray([1])})[result.name]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_constants_and_what_is_not_one(op):
    x, n = op.graph.inputs
    kept = op.constant([1, 2])
    assert op.constant_of(kept).tolist() == [1, 2]
    assert op.constant_of(x) is None
    op.wanted = {kept}
    assert op.constant_of(kept) is None
    node = op.CumSum(x, op.reshape(n, ())).producer()
    with pytest.raises(NoGradientError, match="'axis' is computed at run time"):
        op.constant_ints(node, 1, "axis")


def test_what_onnx_refuses_is_refused_at_once(op):
    x, n = op.graph.inputs
    with pytest.raises(ModelError, match="MatMul 'ckplan/MatMul_0' is not valid"):
        op.MatMul(x, x)
    with pytest.raises(ModelError, match="depends on values known only at run time"):
        op.Reshape(x, n)
    with pytest.raises(AttributeError):
        op.mul(x, x)
