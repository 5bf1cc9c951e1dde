"""Gradients of tables whose rows are looked up, made in the memory in which they are returned.

onnxruntime gives an output of the file memory of its own, in which no kernel works in place
(``core/framework/allocation_planner.cc``). So rows that are scattered into a table of zeros, or into what a product
made of it, stand beside that table, which with a large vocabulary is the largest tensor of the step. There are three
kernels that write the whole table from little:

- Gather, of a table of the rows that were looked up, and one of zeros for all others;
- the product of the output layer, where the table is tied to that: ``A^T B + S^T G`` is ``[S; A]^T [G; B]``, S holding
  a one for each lookup. That is one more product of the kind, and is done only where it takes less memory;
- a Scan over its rows, where that makes what the output layer brings (`ckplan.autodiff.pieces.row_writing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.presence import there
from ckplan.autodiff.idioms.scattering import Updates, joined, scatter_add, spread
from ckplan.autodiff.pieces.row_writing import WRITER, RowWriter
from ckplan.autodiff.reading import attr_float, attr_int, dtype_of, required_input, shape_of

_KEY = "ckplan.lookups"
"""Key in ``Value.meta``: the lookups and the other contributions that a gradient is the sum of."""

_FEW_ROWS = 8
"""Rows of a table, such as that of token types, whose gradient a product makes in less time than additions: each of
these waits for the one before to the same place."""

_FEW_COLUMNS = 16
"""Columns of a table up to which rows are too short for onnxruntime to go through them fast."""

_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Element types of which products are stacked; others are not added up in one go."""


@dataclass(frozen=True)
class Lookups:
    """What lookups contribute to the gradient of a table.

    Attributes:
        rows: which rows were looked up [n], maybe counted from the end.
        gradients: their gradients [n, width].
        before: what others contribute, in the shape of the table.
    """

    rows: ir.Value
    gradients: ir.Value
    before: ir.Value | None


def add_lookups(op: Builder, shape: Sequence[int], found: Lookups) -> ir.Value:
    """Emit the gradient of a table: the gradients of the rows that were looked up, added to what others contribute.

    Args:
        op: the builder.
        shape: that of the table, of rank 1 at least.
        found: the contributions.
    """
    earlier = None if found.before is None else found.before.meta.get(_KEY)
    if earlier is not None:  # an encoder and a decoder that read one table: what was made of the first is not needed
        both = joined(op, [Updates(part.rows, part.gradients) for part in (earlier, found)])
        found = Lookups(both.places, both.values, earlier.before)
    count, width = shape_of(found.gradients)
    factors = None if found.before is None else _factors(found.before)
    if found.before is None:
        if shape[0] <= _FEW_ROWS and found.gradients.dtype == ir.DataType.FLOAT:
            result = _by_product(op, found, shape[0])
        elif count + 1 < shape[0]:
            few = spread(op, Updates(found.rows, found.gradients), shape[0])
            result = op.Gather(few.table, few.places, axis=0)
        else:
            result = scatter_add(op, op.zeros((shape[0], width), found.gradients), 0, found.rows, found.gradients)
    elif WRITER in found.before.meta:
        write: RowWriter = found.before.meta[WRITER]
        result = write(op, Updates(found.rows, found.gradients))
    elif factors is not None and 2 * shape_of(factors[0])[0] + count < width:
        result = _stacked(op, found, *factors)
    elif parts := _parts(found.before):
        result = _added_to_parts(op, parts, found.rows, found.gradients)
    else:
        result = scatter_add(op, op.reshape(found.before, (shape[0], width)), 0, found.rows, found.gradients)
    result = op.reshape(result, shape)
    result.meta[_KEY] = found
    return result


def is_narrow(shape: Sequence[int], count: int) -> bool:
    """Whether a table is one of few columns to which many lookups are added, as a bias for each head is."""
    return len(shape) == 2 and 1 < shape[1] <= _FEW_COLUMNS and _FEW_ROWS < shape[0] <= count


def _by_product(op: Builder, found: Lookups, size: int) -> ir.Value:
    """Emit ``S^T G``, S holding a one for each lookup, made when the gradients are there, not before."""
    rows = op.Cast(op.Where(there(op, found.gradients), found.rows, found.rows), to=ir.DataType.INT64)
    chosen = op.OneHot(rows, np.int64(size), np.asarray([0, 1], dtype_of(found.gradients)), axis=0)
    return op.MatMul(chosen, found.gradients)


def _factors(value: ir.Value) -> tuple[ir.Value, ir.Value, float] | None:
    """A [m, rows], B [m, width] and a factor, if a value is the product ``A^T B`` with it."""
    node = value.producer()
    if node is None or value.dtype not in _WIDE or node.op_type != "Gemm" or len(node.inputs) > 2:
        return None
    if not attr_int(node, "transA", 0) or attr_int(node, "transB", 0):
        return None
    return required_input(node, 0), required_input(node, 1), attr_float(node, "alpha", 1.0)


def _parts(value: ir.Value) -> list[ir.Value]:
    """The matrices whose rows a value is the concatenation of, if it was made for this alone."""
    node = value.producer()
    if node is None or node.op_type != "Concat" or attr_int(node, "axis", 0) or value.uses():
        return []
    return [part for part in node.inputs if part is not None and len(shape_of(part)) == 2]


def _added_to_parts(op: Builder, parts: Sequence[ir.Value], rows: ir.Value, gradients: ir.Value) -> ir.Value:
    """Add the gradients of lookups to the parts of a table, each in place, and put them together."""
    size, start, made = sum(shape_of(part)[0] for part in parts), 0, []
    zero = np.zeros((), dtype_of(rows))
    rows = op.Where(op.Less(rows, zero), op.Add(rows, np.asarray(size, dtype_of(rows))), rows)
    for part in parts:
        end = start + shape_of(part)[0]
        inside = op.And(op.GreaterOrEqual(rows, start), op.Less(rows, end))
        at = op.Where(inside, op.Sub(rows, start), zero)
        updates = op.Where(op.reshape(inside, (shape_of(rows)[0], 1)), gradients, 0.0)
        made.append(scatter_add(op, part, 0, at, updates))
        start = end
    return op.Concat(*made, axis=0)


def _stacked(op: Builder, found: Lookups, a: ir.Value, b: ir.Value, factor: float) -> ir.Value:
    """Emit ``[S; A]^T [G; B]``; S is put above A when the gradients of the lookups are there, not before."""
    count = shape_of(found.gradients)[0]
    zero = op.Cast(op.Not(there(op, found.gradients)), to=a.dtype)
    above = op.Pad(a, np.asarray([count, 0, 0, 0], dtype=np.int64), zero)
    ones = np.ones((count, 1), dtype=dtype_of(a))
    chosen = op.ScatterElements(above, op.reshape(found.rows, (count, 1)), ones, axis=1)
    return op.Gemm(chosen, op.Concat(found.gradients, op.scale(b, factor), axis=0), transA=1)
