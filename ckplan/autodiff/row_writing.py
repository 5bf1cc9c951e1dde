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
from ckplan.keys import PHASE, PIECES

WRITER = "ckplan.row_writer"
"""Key in ``Value.meta`` of a table that is written row by row: the `RowWriter` that makes it."""

_BYTES = 2**17
"""Bytes of a block, at most: that much is copied for each row."""

_ROWS = 8, 64
"""Rows of the smallest block that is worth it, and of the largest one."""


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
    most = min(_ROWS[1], _BYTES // (width * dtype_of(table).itemsize), rows // 2)
    found = largest_divisor(rows, most)
    return found if found >= _ROWS[0] else 0


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
    row = new_value(op, f"{name}/row", ir.DataType.INT64, ())
    before = new_value(op, f"{name}/before", dtype, (block, shape[1]))
    graph = ir.Graph([before, row], [], nodes=[], name=op.unique_name(f"{name}/rows"))
    inputs = [op.constant(np.zeros((block, shape[1]), dtype_of(like))), op.constant(np.arange(shape[0]))]
    inner = BodyBuilder(op, graph)
    with inner.scope(name):
        place = inner.Mod(row, np.int64(block))
        now = _block(inner, name, before, inner.Equal(place, np.int64(0)), row, rows_of)
        found = inner.Gather(now, place, axis=0)
        if added is not None:
            which = new_value(op, f"{name}/which", added.places.dtype, ())
            graph.inputs.append(which)
            inputs.append(added.places)
            found = inner.Add(found, inner.Gather(added.table, which, axis=0))
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
