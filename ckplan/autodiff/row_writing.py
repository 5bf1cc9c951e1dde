"""Gradients of tables made block by block and written row by row into the memory in which they are returned.

onnxruntime gives an output of the file memory of its own, which one kernel writes as a whole. Of these only Scan has a
body: it runs it once for each row of what it stacks up, and the body writes that row to its place
(``core/providers/cpu/controlflow/scan_utils.cc``). So a Scan over the rows of a table, a few microseconds a row, whose
body makes a block of rows every so often and picks one of them each time, holds one block and no second table. The
block is a state of the Scan, copied in each step, which is why it is small.

What lookups of the same table bring is added to each row on its way: see `ckplan.autodiff.tables`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, dtype_of, shape_of
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, emit_control, new_value
from ckplan.autodiff.regions import largest_divisor
from ckplan.autodiff.slices import rows_from
from ckplan.keys import PHASE, PIECES

WRITER = "ckplan.row_writer"
"""Key in ``Value.meta`` of a table that is written row by row: the `RowWriter` that makes it."""

_BLOCKS = (2**16, 16), (2**17, 8)
"""Bytes of a block at most, which are copied for each row, with its rows at least: products of fewer are slow.

The first that a table can be cut to is taken: of 32,000 rows of 512 floats, blocks of 32 take 0.98 of the time of 64.
"""

_MOST_ROWS = 64
"""Rows of the largest block."""


@dataclass(frozen=True)
class Added:
    """What is added to rows of a table.

    Attributes:
        table: what may be added [n, width], a row of zeros among them.
        places: which of these for each row of the table [rows], of any integer type.
    """

    table: ir.Value
    places: ir.Value


RowWriter = Callable[[Builder, Added], ir.Value]
"""Emits the same table once more, with something added to its rows."""


def block_of(table: ir.Value) -> int:
    """Rows of the blocks that a table is made in, a divisor of its rows; 0 where none is of a good size."""
    rows, width = shape_of(table)
    size = width * dtype_of(table).itemsize
    found = ((largest_divisor(rows, min(_MOST_ROWS, most // size, rows // 2)), least) for most, least in _BLOCKS)
    return next((block for block, least in found if block >= least), 0)


def write_rows(
    op: Builder,
    name: str,
    like: ir.Value,
    block: int,
    rows_of: Callable[[Builder, ir.Value], ir.Value],
    added: Added | None = None,
) -> ir.Value:
    """Emit a table that is made in blocks of rows and written row by row.

    Args:
        op: the builder.
        name: what to call the Scan.
        like: a table of the same shape and element type.
        block: rows of a block, a divisor of those of the table.
        rows_of: emits the block that begins with a row, an int64 scalar, [block, width].
        added: what is added to the rows.
    """
    shape, dtype = shape_of(like), like.dtype
    before = new_value(op, f"{name}/before", dtype, (block, shape[1]))
    row, place = (new_value(op, f"{name}/{what}", ir.DataType.INT64, ()) for what in ("row", "place"))
    is_first = new_value(op, f"{name}/is_first", ir.DataType.BOOL, ())
    graph = ir.Graph([before, row, place, is_first], [], nodes=[], name=op.unique_name(f"{name}/rows"))
    # A node that runs for each row costs as much as the row's part of a product: numbers are ready, sums go by blocks.
    rows = np.arange(shape[0])
    numbers = np.zeros((block, shape[1]), dtype_of(like)), rows, rows % block, rows % block == 0
    inputs = [op.constant(array) for array in numbers]

    def added_to(inner: Builder, start: ir.Value) -> ir.Value:
        found = rows_of(inner, start)
        if added is None:
            return found
        return inner.Add(found, inner.Gather(added.table, rows_from(inner, added.places, start, block), axis=0))

    inner = BodyBuilder(op, graph)
    with inner.scope(name):
        now = _block(inner, name, before, is_first, row, added_to)
        found = inner.Gather(now, place, axis=0)
    graph.outputs.extend([now, found])
    close_body(inner)
    attributes = [ir.AttrGraph("body", graph), ir.AttrInt64("num_scan_inputs", len(inputs) - 1)]
    last = new_value(op, f"{name}/last", dtype, (block, shape[1]))
    result = new_value(op, f"{name}_out", dtype, shape)
    about = {PHASE: "backward", PIECES: str(shape[0] // block)}
    emit_control(op, "Scan", name, inputs, attributes, [last, result], about)
    result.meta[WRITER] = lambda other, more: write_rows(other, name, like, block, rows_of, more)
    return result


def _block(
    op: BodyBuilder,
    name: str,
    before: ir.Value,
    is_first: ir.Value,
    row: ir.Value,
    rows_of: Callable[[Builder, ir.Value], ir.Value],
) -> ir.Value:
    """The block that a row lies in: a new one for its first row, else the one that is there."""
    branches = []
    for branch in ("then", "else"):
        graph = ir.Graph([], [], nodes=[], name=op.unique_name(f"{name}/{branch}"))
        inner = BodyBuilder(op, graph)
        with inner.scope(name):
            graph.outputs.append(rows_of(inner, row) if branch == "then" else inner.Identity(before))
        close_body(inner)
        branches.append(ir.AttrGraph(f"{branch}_branch", graph))
    now = new_value(op, f"{name}/block", before.dtype, shape_of(before))
    emit_control(op, "If", f"{name}/If", [is_first], branches, [now], {})
    return now
