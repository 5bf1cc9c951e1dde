"""Gradients of scores whose softmax a product reads, as attention has them.

Of chances P, values V, their product O and its gradient dO, the scores have the gradient P (dP - D), where dP is dO V^T
and D has the sums over the rows of dP P. These are the sums over the rows of dO O, too (Dao et al., arXiv:2205.14135),
and take less where rows of scores are longer than values. As one more column of dO, beside a row of -1 in V^T, they are
subtracted by the product itself. That leaves one pass over the scores of four, and one tensor of their size less.

Where heads share values, the product has the queries of a group as rows of one matrix: Reshapes stand around it, which
leave rows as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.transposes import before_transpose
from ckplan.autodiff.reading import attr_ints, required_input, shape_of
from ckplan.autodiff.rules.windows import pad_axes
from ckplan.model.traits import is_backward
from ckplan.operators.matching import is_op, made_by

_LONG = 3
"""A row of scores is so many times as long as a value where the copies that get a column are small beside scores."""

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Element types in which D loses nothing beside dP."""


def scores_gradient(op: Builder, chances: ir.Value, gradient: ir.Value) -> ir.Value | None:
    """Emit the gradient of scores from their softmax along the last axis, if it is one for this form.

    Args:
        op: the builder.
        chances: the softmax, (..., queries, keys).
        gradient: its gradient.
    """
    product, back = _reader(chances), made_by(_before_reshape(gradient), "MatMul")
    if product is None or back is None or chances.dtype not in _TYPES:
        return None
    upstream, turned = required_input(back, 0), required_input(back, 1)
    swap, rows, result = made_by(turned, "Transpose"), required_input(product, 0), product.outputs[0]
    if swap is None or swap.inputs[0] is not product.inputs[1] or shape_of(upstream) != shape_of(result):
        return None
    *batch, wide, keys = shape_of(turned)
    if (*batch, shape_of(rows)[-2], keys) != shape_of(rows) or keys != shape_of(chances)[-1] or keys < _LONG * wide:
        return None
    sums = next(_row_sums(op, result, upstream), None)
    if sums is None:
        return None
    longer = pad_axes(op, turned, [len(batch)], [0], [1], -1.0)
    less = op.MatMul(op.Concat(upstream, sums, axis=-1), longer)
    return op.Mul(op.reshape(less, shape_of(chances)), chances)


def _before_reshape(value: ir.Value) -> ir.Value:
    """What a value of the backward pass is a view of."""
    node = made_by(value, "Reshape")
    return value if node is None or not is_backward(node) else required_input(node, 0)


def _reader(chances: ir.Value) -> ir.Node | None:
    """The product with values that is all that the forward pass reads chances for, maybe as a view of them."""
    readers = [node for node in chances.consumers() if not is_backward(node)]
    if len(readers) != 1 or chances.is_graph_output():
        return None
    (reader,) = readers
    if is_op(reader, "Reshape"):
        return _reader(reader.outputs[0])
    return reader if is_op(reader, "MatMul") and reader.inputs[1] is not chances else None


def _row_sums(op: Builder, result: ir.Value, upstream: ir.Value) -> Iterator[ir.Value]:
    """Emit the sums over the rows of a product and its gradient, (..., queries, 1), if the product is kept anyway.

    It may be kept with its axes in another order, in which its gradient comes, or as a view with the same rows.
    """
    rank = len(shape_of(result))
    if _is_kept(result):
        yield op.reduce_sum(op.Mul(upstream, result), [rank - 1])
    source, perm = before_transpose(upstream)
    for node in result.consumers():
        order = attr_ints(node, "perm") if is_op(node, "Transpose") and not is_backward(node) else None
        if order and _is_kept(node.outputs[0]) and [order[axis] for axis in perm] == list(range(rank)):
            yield op.transpose(op.reduce_sum(op.Mul(source, node.outputs[0]), [order.index(rank - 1)]), perm)
    whole = _before_reshape(upstream)
    for node in result.consumers():
        view = node.outputs[0]
        if is_op(node, "Reshape") and shape_of(view) == shape_of(whole) and shape_of(view)[-1] == shape_of(result)[-1]:
            for sums in _row_sums(op, view, whole):
                yield op.reshape(sums, (*shape_of(result)[:-1], 1))


def _is_kept(value: ir.Value) -> bool:
    """Whether what has been emitted of the backward pass reads a value, or a view of it."""
    readers = value.consumers()
    return any(is_backward(node) or (is_op(node, "Reshape") and _is_kept(node.outputs[0])) for node in readers)
