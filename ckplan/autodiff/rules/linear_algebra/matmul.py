"""Gradients of matrix products."""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.row_factors import Rows, rows_of
from ckplan.autodiff.reading import attr_float, attr_int, attr_ints, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.model.inference.infer import static_shape
from ckplan.model.traits import is_backward
from ckplan.operators.matching import input_of

_BLOCK = 128
"""Columns of a product that onnxruntime makes at a time."""

_CACHE = 2**18
"""Elements that are too many for a processor's second cache."""

_LONG, _FEW = 3, 32
"""What is turned in place of chances: values of at most so many numbers, beside rows that are so many times as long."""

_TALL = 16
"""A product of columns is small beside these where they are so many times as long as it is."""

_WORTH_A_COPY, _SMALL = 2**17, 4
"""Elements from which on a side that is gathered is worth a copy, and how many times as many the largest tensor has."""

_OFTEN, _IN_CACHE = 2, (2**15, 2**19)
"""How many times as many columns all products of a side that is gathered have for it to be worth a copy whatever its
height, and between how many elements: more are copied out of memory, for as long as what is won, and plans have to hold
them."""


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
        product = _batched_column_products(op, op.reshape(a, a_shape), g, is_turned=_is_turned(b))
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
        db = _column_products(op, g.scaled(op, left), g.matrix, addend, op.factor, _columns_beside(a))
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


def _column_products(op: Builder, a: ir.Value, b: ir.Value, c: ir.Value | None, alpha: float, beside: int) -> ir.Value:
    """``alpha (a^T b + c)``; c may be None, and all products of that a have ``beside`` columns.

    onnxruntime's product gathers what is transposed column by column, which takes long where it comes from memory: of
    two matrices the one with fewer columns is better there, and the result, small beside them, is transposed: that of
    a MatMul, as a Gemm's would be merged into it. A side that is copied instead is copied once for all products that
    read it.
    """
    (rows, wide), narrow = shape_of(a), shape_of(b)[1]
    if _is_worth_a_copy(op, rows, wide, narrow, beside):
        return _product(op, _copied_columns(op, a), b, c, alpha=alpha)
    if c is None and 2 * narrow <= wide and narrow < _BLOCK and rows * wide >= _CACHE and rows >= _TALL * narrow:
        is_copied = _is_worth_a_copy(op, rows, narrow, wide, wide)
        left = _copied_columns(op, b) if is_copied else op.Transpose(b, perm=[1, 0])
        return op.transpose(op.scale(op.MatMul(left, a), alpha), (1, 0))
    return _product(op, a, b, c, alpha=alpha, transA=1)


def _is_worth_a_copy(op: Builder, rows: int, wide: int, narrow: int, beside: int) -> bool:
    """Say whether a side [rows, wide] that is transposed is best copied, beside another one [rows, narrow].

    It is gathered anew for each block of columns of other sides: one that is tall, as its product is done soon, and one
    whose products have many columns, where it is copied within the cache. The copy is small beside the largest tensor.
    """
    elements = rows * wide
    tall = wide <= narrow and rows >= _TALL * wide and elements >= _WORTH_A_COPY
    often = _OFTEN * wide <= beside and _IN_CACHE[0] <= elements <= _IN_CACHE[1]
    return (tall or often) and elements <= op.largest // _SMALL


def _columns_beside(value: ir.Value) -> int:
    """Columns of all products that the forward pass makes with a matrix on the left."""
    products = (node for node, index in value.uses() if not index and node.op_type in ("Gemm", "MatMul"))
    made = (static_shape(node.outputs[0]) for node in products if not is_backward(node))
    return sum(math.prod(shape) for shape in made if shape) // max(1, math.prod(shape_of(value)[:-1]))


def _copied_columns(op: Builder, matrix: ir.Value) -> ir.Value:
    """The transposed matrix, by a Transpose that onnxruntime does not merge into a product: Reshapes stand between."""
    rows, columns = shape_of(matrix)
    turned = op.Transpose(op.reshape(matrix, [1, rows, columns]), perm=[0, 2, 1])
    return op.reshape(turned, [columns, rows])


def _batched_column_products(op: Builder, a: ir.Value, b: ir.Value, *, is_turned: bool) -> ir.Value:
    """Products of ``a`` (..., rows, m), transposed, with ``b`` (..., rows, n); see :func:`_column_products`.

    Where the gradient is transposed next (`is_turned`), the products are made so that this cancels: weights of experts
    are large beside what they are multiplied with.

    In attention these are the chances and the gradient of the result, and what is made is transposed anyway. Gradients
    of 64 numbers are better left as they are: turned, 16 x 256 x 256 chances take 1.1 times as long, with 16 numbers
    and windows of 49 chances 0.8 to 0.9. onnxruntime fuses the Transpose into the product (FusedMatMul).
    """
    wide, narrow = shape_of(a)[-1], shape_of(b)[-1]
    few = _LONG * narrow <= wide and narrow <= _FEW
    if len(shape_of(a)) == len(shape_of(b)) and (few or (is_turned and min(wide, narrow) > _FEW)):
        last = len(shape_of(b)) - 1
        turned = op.Transpose(b, perm=[*range(last - 1), last, last - 1])
        return _swapped(op, op.MatMul(turned, a))
    return op.MatMul(_swapped(op, a), b)


def _is_turned(value: ir.Value) -> bool:
    """Say whether a value is another one with its last two axes exchanged, and all others where they were."""
    node = value.producer()
    if node is None or node.op_type != "Transpose":
        return False
    rank = len(shape_of(value))
    return attr_ints(node, "perm") == (*range(rank - 2), rank - 1, rank - 2)


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
            if flip_a:
                db = _product(op, g.matrix, left, addend, alpha=alpha, transA=1, transB=1)
            else:
                db = _column_products(op, g.matrix, left, addend, alpha, shape_of(a)[1])
        else:
            addend = None if g.offsets is None else g.offsets.after(op, a)
            if flip_a:
                db = _product(op, left, g.matrix, addend, alpha=alpha)
            else:
                db = _column_products(op, left, g.matrix, addend, alpha, _columns_beside(a))
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
