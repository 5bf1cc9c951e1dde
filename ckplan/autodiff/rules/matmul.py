"""Gradients of matrix products."""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients, attr_float, attr_int, input_of, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.row_factors import row_factors


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
    g, factors = _rows(op, dy, (rows, b_shape[1]), inner)
    da = db = None
    if op.wants(b):
        left = op.reshape(a, (rows, inner))
        db = op.reshape(op.Gemm(_times(op, left, factors), g, transA=1, alpha=op.factor), shape_of(b))
    if op.wants(a):
        da = _times(op, op.Gemm(g, op.reshape(b, b_shape), transB=1, alpha=op.factor), factors)
        da = op.reshape(da, shape_of(a))
    return [da, db]


def _rows(op: Builder, dy: ir.Value, shape: tuple[int, int], inner: int) -> tuple[ir.Value, ir.Value | None]:
    """The gradient as a matrix, without the factors of its rows where it is cheaper to multiply others by them."""
    found = row_factors(op, dy, shape[1]) if 2 * inner < shape[1] else None
    return found or (op.reshape(dy, shape), None)


def _times(op: Builder, matrix: ir.Value, factors: ir.Value | None) -> ir.Value:
    return matrix if factors is None else op.Mul(matrix, factors)


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
    g, factors = (dy[0], None) if flip_a else _rows(op, dy[0], (rows, columns), shape_of(a)[1])
    da = db = dc = None
    if op.wants(b):
        left = _times(op, a, factors)
        if flip_b:
            db = op.Gemm(g, left, alpha=alpha, transA=1, transB=flip_a)
        else:
            db = op.Gemm(left, g, alpha=alpha, transA=1 - flip_a)
    if c is not None and op.wants(c):
        if factors is not None and shape_of(c) in ((columns,), (1, columns)):
            dc = op.scale(op.reshape(op.Gemm(factors, g, transA=1), shape_of(c)), beta)
        else:
            dc = op.scale(op.sum_to_shape(dy[0], shape_of(c)), beta)
    if op.wants(a):
        if flip_a:
            da = op.Gemm(b, g, alpha=alpha, transA=flip_b, transB=1)
        else:
            da = _times(op, op.Gemm(g, b, alpha=alpha, transB=1 - flip_b), factors)
    return [da, db, dc]
