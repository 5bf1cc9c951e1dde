"""Gradients of matrix products."""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients, attr_float, attr_int, input_of, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.row_factors import Rows, rows_of


@rule("MatMul", factor="absorb")
def matmul(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivatives dy B^T and A^T dy, in the order B, A, as B usually is the weight."""
    a, b = required_input(node, 0), required_input(node, 1)
    assert dy[0] is not None
    # A vector stands for a matrix of one row on the left and of one column on the right.
    a_shape = (1, *shape_of(a)) if len(shape_of(a)) == 1 else shape_of(a)
    b_shape = (*shape_of(b), 1) if len(shape_of(b)) == 1 else shape_of(b)
    if len(b_shape) == 2:
        return _by_matrix(op, a, b, dy[0], b_shape)
    batch = shape_of(node.outputs[0])[: max(len(a_shape), len(b_shape)) - 2]
    g = op.scale(op.reshape(dy[0], (*batch, a_shape[-2], b_shape[-1])), op.factor)
    da = db = None
    # onnxruntime fuses the Transpose into the product (FusedMatMul), so that it costs neither time nor memory.
    if op.wants(b):
        product = op.MatMul(_swapped(op, op.reshape(a, a_shape)), g)
        db = op.reshape(op.sum_to_shape(product, b_shape), shape_of(b))
    if op.wants(a):
        product = op.MatMul(g, _swapped(op, op.reshape(b, b_shape)))
        da = op.reshape(op.sum_to_shape(product, a_shape), shape_of(a))
    return [da, db]


def _by_matrix(op: Builder, a: ir.Value, b: ir.Value, dy: ir.Value, b_shape: tuple[int, ...]) -> Gradients:
    """Differentiate a product with one matrix on the right: all rows of A as one matrix, without any copy."""
    inner = b_shape[0]
    rows = math.prod(shape_of(a)[:-1])
    g = _rows(op, dy, (rows, b_shape[1]), inner)
    da = db = None
    if op.wants(b):
        left = op.reshape(a, (rows, inner))
        addend = None if g.offsets is None else g.offsets.after(op, left)
        db = _product(op, g.scaled(op, left), g.matrix, addend, transA=1, alpha=op.factor)
        db = op.reshape(db, shape_of(b))
    if op.wants(a):
        weight = op.reshape(b, b_shape)
        da = g.scaled(op, op.Gemm(g.matrix, weight, transB=1, alpha=op.factor))
        da = op.Add(da, g.offsets.before(op, weight, 1, op.factor)) if g.offsets else da
        da = op.reshape(da, shape_of(a))
    return [da, db]


def _rows(op: Builder, dy: ir.Value, shape: tuple[int, int], inner: int) -> Rows:
    """The gradient as a matrix, without the factors of its rows where it is cheaper to multiply others by them."""
    found = rows_of(op, dy, shape[1]) if 2 * inner < shape[1] else None
    return found or Rows(op.reshape(dy, shape))


def _product(op: Builder, a: ir.Value, b: ir.Value, c: ir.Value | None, *, alpha: float, **flips: int) -> ir.Value:
    """``alpha (a b + c)``; c may be None."""
    return op.Gemm(a, b, c, alpha=alpha, beta=None if c is None else alpha, **flips)  # type: ignore[return-value]


def _swapped(op: Builder, value: ir.Value) -> ir.Value:
    rank = len(shape_of(value))
    return op.transpose(value, (*range(rank - 2), rank - 1, rank - 2))


@rule("Gemm", factor="absorb")
def gemm(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivatives of alpha A' B' + beta C, each one Gemm with flags instead of a Transpose."""
    a, b, c = required_input(node, 0), required_input(node, 1), input_of(node, 2)
    alpha, beta = attr_float(node, "alpha", 1.0) * op.factor, attr_float(node, "beta", 1.0) * op.factor
    flip_a, flip_b = attr_int(node, "transA", 0), attr_int(node, "transB", 0)
    assert dy[0] is not None
    rows, columns = shape_of(dy[0])
    g = Rows(dy[0]) if flip_a else _rows(op, dy[0], (rows, columns), shape_of(a)[1])
    da = db = dc = None
    if op.wants(b):
        left = g.scaled(op, a)
        if flip_b:
            addend = None if g.offsets is None else g.offsets.turned_before(op, a)
            db = _product(op, g.matrix, left, addend, alpha=alpha, transA=1, transB=flip_a)
        else:
            addend = None if g.offsets is None else g.offsets.after(op, a)
            db = _product(op, left, g.matrix, addend, alpha=alpha, transA=1 - flip_a)
    if c is not None and op.wants(c):
        if g.factors is not None and shape_of(c) in ((columns,), (1, columns)):
            sums = None if g.offsets is None else g.offsets.column_sums(op)
            dc = op.Gemm(g.factors, g.matrix, sums, transA=1)
            dc = op.scale(op.reshape(dc, shape_of(c)), beta)
        else:
            dc = op.scale(op.sum_to_shape(dy[0], shape_of(c)), beta)
    if op.wants(a):
        if flip_a:
            da = op.Gemm(b, g.matrix, alpha=alpha, transA=flip_b, transB=1)
        else:
            da = g.scaled(op, op.Gemm(g.matrix, b, alpha=alpha, transB=1 - flip_b))
            da = op.Add(da, g.offsets.before(op, b, 0 if flip_b else 1, alpha)) if g.offsets else da
    return [da, db, dc]
