"""The difference between a matrix product and its target, computed in one buffer.

onnxruntime's Sub takes memory of its own for what it makes: the result of the last layer, its difference from the
target, and with a large vocabulary or picture that is twice the largest tensor of the step. Gemm begins with what it is
told to add, so ``x W - target`` is one kernel and one buffer.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import attr_ints, is_read_once, required_input, shape_of
from ckplan.operators.matching import is_op

_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_MATRIX = 2

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Element types that onnxruntime multiplies as they are."""


def subtract_in_products(op: Builder) -> None:
    """Let products that nothing reads but a Sub subtract for themselves; the Sub becomes a view of what they make.

    Only what is there from the beginning is subtracted, such as an input: anything else may come after the product.

    Args:
        op: builder of the finished graph, in which gradients have been asked for already.
    """
    for node in list(op.graph):
        if not is_op(node, "Sub"):
            continue
        made, target = required_input(node, 0), required_input(node, 1)
        if target.producer() is None and shape_of(target) == shape_of(made) and made.dtype in _TYPES:
            _subtract(op, node, made, target)


def _subtract(op: Builder, difference: ir.Node, made: ir.Value, target: ir.Value) -> None:
    views: list[ir.Node] = []
    product = made.producer()
    while product is not None and product.op_type in _VIEWS and is_read_once(product.outputs[0]):
        views.append(product)
        product = required_input(product, 0).producer()
    if product is None or product.domain or not is_read_once(product.outputs[0]):
        return
    if product.op_type == "MatMul" and len(shape_of(required_input(product, 1))) == _MATRIX:
        a, flip = required_input(product, 0), _untransposed(required_input(product, 1))
    elif product.op_type == "Gemm" and len(product.inputs) == _MATRIX:
        a, flip = required_input(product, 0), None
    else:
        return
    columns = shape_of(product.outputs[0])[-1]
    rows = math.prod(shape_of(product.outputs[0])[:-1])
    with op.scope(str(product.name), "forward", before=product):
        if product.op_type == "MatMul":
            product.replace_input_with(0, op.reshape(a, (rows, shape_of(a)[-1])))
        subtracted = op.reshape(target, (rows, columns))
        shape = op.constant(list(shape_of(made)))
    if flip is not None:
        product.replace_input_with(1, flip)
        product.attributes.add(ir.AttrInt64("transB", 1))
    product.op_type = "Gemm"
    product.resize_inputs(3)
    product.replace_input_with(2, subtracted)
    product.attributes.add(ir.AttrFloat32("beta", -1.0))
    result = product.outputs[0]
    result.name, result.shape = op.unique_name(f"{difference.outputs[0].name}/product"), ir.Shape((rows, columns))
    difference.op_type = "Reshape"
    difference.replace_input_with(0, result)
    difference.replace_input_with(1, shape)
    discard(op.graph, views)


def _untransposed(matrix: ir.Value) -> ir.Value | None:
    """The matrix that a value is the transpose of, None if it is not known as one."""
    node = matrix.producer()
    if not is_op(node, "Transpose"):
        return None
    return required_input(node, 0) if (attr_ints(node, "perm") or (1, 0)) == (1, 0) else None
