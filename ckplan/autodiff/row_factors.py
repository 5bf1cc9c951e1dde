"""Gradients that are a matrix times a factor for each row, and products that take the factor elsewhere.

The gradient of a cross-entropy whose samples have weights (or whose ignored ones have none) is such a matrix, as large
as the logits: samples by classes. onnxruntime multiplies into a second buffer of that size, which with a large
vocabulary is the peak of the whole step. The product before the logits can multiply its own, smaller matrices instead:
``(diag(s) D) B^T = diag(s) (D B^T)`` and ``A^T (diag(s) D) = (diag(s) A)^T D``. The multiplied matrix is emitted in any
case and marked; if nobody reads it in the end, it is pruned.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, shape_of

_KEY = "ckplan.row_factors"
"""Key in ``Value.meta``: the matrix and the factors that a value is the product of."""


def with_row_factors(op: Builder, rows: ir.Value, factors: ir.Value) -> ir.Value:
    """Multiply each row by its factor, and remember both.

    Args:
        op: the builder.
        rows: [..., n].
        factors: [..., 1].
    """
    product = op.Mul(rows, factors)
    product.meta[_KEY] = rows, factors
    return product


def row_factors(op: Builder, value: ir.Value, columns: int) -> tuple[ir.Value, ir.Value] | None:
    """The matrix [m, columns] and the factors [m, 1] that a value is the product of, None if it is not known as one.

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
    rows, factors = at.meta[_KEY]
    shape = shape_of(rows)
    if shape[-1] != columns:
        return None
    count = math.prod(shape[:-1])
    return op.reshape(rows, (count, columns)), op.reshape(factors, (count, 1))
