"""Gradients that are a matrix times a factor for each row, and products that take the factor elsewhere.

The gradient of a cross-entropy whose samples have weights (or whose ignored ones have none) is such a matrix, as large
as the logits: samples by classes. onnxruntime multiplies into a second buffer of that size, which with a large
vocabulary is the peak of the whole step. The product before the logits can multiply its own, smaller matrices instead:
``(diag(s) D) B^T = diag(s) (D B^T)`` and ``A^T (diag(s) D) = (diag(s) A)^T D``. What label smoothing adds is a number
for each row, perhaps times one for each column: of that ``(u v^T) B^T = u (B v)^T`` and ``A^T (u v^T) = (A^T u) v^T``.
The whole matrix is emitted in any case and marked; if nobody reads it in the end, it is pruned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import required_input, shape_of, size_of
from ckplan.operators.matching import is_op

_KEY = "ckplan.row_factors"
"""Key in ``Value.meta``: the parts that a value is made of."""


@dataclass(frozen=True)
class Offsets:
    """A matrix [m, n] that is the product of two vectors.

    Attributes:
        rows: a number for each row [m, 1].
        columns: one for each column [1, n], None if they are ones.
    """

    rows: ir.Value
    columns: ir.Value | None = None

    def after(self, op: Builder, value: ir.Value) -> ir.Value:
        """``value^T`` times the matrix, of a value [m, k]: [k, n], or [k, 1] if all columns are the same."""
        sums = op.Gemm(value, self.rows, transA=1)
        return sums if self.columns is None else op.MatMul(sums, self.columns)

    def turned_before(self, op: Builder, value: ir.Value) -> ir.Value:
        """The transpose of that: [n, k], or [1, k] if all rows are the same."""
        sums = op.Gemm(self.rows, value, transA=1)
        return sums if self.columns is None else op.Gemm(self.columns, sums, transA=1)

    def column_sums(self, op: Builder) -> ir.Value:
        """Sums of the columns: [1, n], or [1, 1] if all are the same."""
        added = op.reduce_sum(self.rows, [0])
        return added if self.columns is None else op.Mul(added, self.columns)

    def before(self, op: Builder, weight: ir.Value, axis: int, factor: float = 1.0) -> ir.Value:
        """The matrix times a weight and a number: [m, k]; see `weight_sums`."""
        return op.Mul(self.rows, op.scale(self.weight_sums(op, weight, axis), factor))

    def weight_sums(self, op: Builder, weight: ir.Value, axis: int) -> ir.Value:
        """``columns^T`` times a weight: [1, k].

        Args:
            op: the builder.
            weight: [n, k], or [k, n].
            axis: that of n in it.
        """
        maker = weight.producer()
        if is_op(maker, "Transpose"):  # products read it as it was
            weight, axis = required_input(maker, 0), 1 - axis
        sums = op.reduce_sum(weight, [axis]) if self.columns is None else op.Gemm(self.columns, weight, transB=axis)
        return op.reshape(sums, (1, size_of(sums)))


@dataclass(frozen=True)
class Rows:
    """A matrix [m, n] in parts.

    Attributes:
        matrix: [m, n], what is left when the others are taken out.
        factors: of its rows [m, 1], None if they are ones.
        offsets: what is added to that, None for nothing.
    """

    matrix: ir.Value
    factors: ir.Value | None = None
    offsets: Offsets | None = None

    def scaled(self, op: Builder, value: ir.Value) -> ir.Value:
        """A matrix [m, k], its rows times the factors."""
        return value if self.factors is None else op.Mul(value, self.factors)


def with_row_factors(op: Builder, rows: ir.Value, factors: ir.Value, offsets: Offsets | None = None) -> ir.Value:
    """Multiply each row by its factor, add offsets, and remember the parts.

    Args:
        op: the builder.
        rows: [..., n].
        factors: [..., 1].
        offsets: of rows of rank 2.
    """
    whole = op.Mul(rows, factors)
    if offsets is not None:
        whole = op.Add(whole, offsets.rows if offsets.columns is None else op.MatMul(offsets.rows, offsets.columns))
    whole.meta[_KEY] = Rows(rows, factors, offsets)
    return whole


def rows_of(op: Builder, value: ir.Value, columns: int) -> Rows | None:
    """The parts of a matrix [m, columns], None if they are not known.

    Args:
        op: the builder.
        value: a gradient, perhaps reshaped since.
        columns: the length of its rows.
    """
    at = value
    while _KEY not in at.meta:
        maker = at.producer()
        if maker is None or maker.op_type != "Reshape" or maker.inputs[0] is None:
            return None
        at = maker.inputs[0]
    rows: Rows = at.meta[_KEY]
    shape = shape_of(rows.matrix)
    if shape[-1] != columns:
        return None
    count = math.prod(shape[:-1])
    factors = None if rows.factors is None else op.reshape(rows.factors, (count, 1))
    return Rows(op.reshape(rows.matrix, (count, columns)), factors, rows.offsets)
