"""Sums of many numbers that are as exact as their element type.

onnxruntime adds the numbers of a row one after the other, a few at a time: a million equal float32 are 1e-3 off, and
the losses of samples are nearly equal when a training begins. Added up in rows of at most 128, then the rows' sums
likewise, they are 4e-7 off.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import size_of

_ROW = 128
"""Numbers that are added up one after the other."""
_SHORT = 16
"""Rows shorter than this are not worth it: rather than in such, numbers are added up with zeros behind them."""
_PRODUCTS = range(1024, 511, -1)
"""Lengths of rows that are multiplied by themselves where there are `_MANY` numbers or more, the longest first."""
_MANY = 2**15


def total(op: Builder, value: ir.Value, reduction: str = "ReduceSum") -> ir.Value:
    """Emit the sum of all elements, a scalar.

    Args:
        op: the builder.
        value: of any shape.
        reduction: what becomes of the elements: ``ReduceSum``, ``ReduceSumSquare`` for the sum of their squares, or
            ``ReduceMean``, which unlike a sum divided later has its place in float16.
    """
    count = size_of(value)
    if count <= _ROW:
        found: ir.Value = op.emit(reduction, value, keepdims=0)
        return found
    if reduction == "ReduceSumSquare" and count >= _MANY and value.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        length = next((length for length in _PRODUCTS if count % length == 0), None)
        if length is not None:
            return total(op, _squares(op, op.reshape(value, [count // length, 1, length])))
    row = next((length for length in range(_ROW, _SHORT - 1, -1) if count % length == 0), None)
    flat, share = op.reshape(value, [count]), 1.0
    if row is None:
        row, missing = _ROW, -count % _ROW
        flat, share = op.Pad(flat, np.asarray([0, missing], dtype=np.int64)), (count + missing) / count
        count += missing
    rows = op.reshape(flat, [count // row, row])
    rest = "ReduceMean" if reduction == "ReduceMean" else "ReduceSum"
    added = total(op, op.emit(reduction, rows, np.asarray([1], dtype=np.int64), keepdims=0), rest)
    return op.scale(added, share) if reduction == "ReduceMean" else added


def _squares(op: Builder, rows: ir.Value) -> ir.Value:
    """Emit the sums of squares of rows, (rows, 1, 1), as products of each with itself.

    They add up more numbers at a time, a row of 1024 as exactly as ReduceSumSquare one of 128, in half of its time.
    """
    # onnxruntime merges a transposition into the product, which takes a tenth of the time of one behind a Reshape.
    return op.MatMul(rows, op.Transpose(rows, perm=[0, 2, 1]))
