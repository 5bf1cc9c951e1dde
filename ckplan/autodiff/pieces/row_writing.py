"""Gradients of tables made block by block and written row by row into the memory in which they are returned.

onnxruntime gives an output of the file memory of its own, which one kernel writes as a whole. Of these only Scan has a
body: it runs it once for each row of what it stacks up, and the body writes that row to its place
(``core/providers/cpu/controlflow/scan_utils.cc``). So a Scan over the rows of a table, a few microseconds a row, whose
body makes a block of rows every so often and picks one of them each time, holds one block and no second table. The
block is a state of the Scan, copied in each step, which is why it is small.

What is added to single rows, such as what lookups of the same table bring, is added to each block on its way: see
`ckplan.autodiff.idioms.scattering`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, emit_control, emit_scan, new_value
from ckplan.autodiff.idioms.scattering import Added, Updates
from ckplan.autodiff.idioms.slices import rows_from
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.keys import PHASE, PIECES

WRITER = "ckplan.row_writer"
"""Key in ``Value.meta`` of a table that is written row by row: the `RowWriter` that makes it."""

_BLOCKS = 32, 16, 8
"""Rows of a block: as many as the kernels of products take at once, or halves of that."""

_MOST = 2**17
"""Bytes of a block at most: it is copied for each row."""

RowWriter = Callable[[Builder, Updates], ir.Value]
"""Emits the same table once more, with something added to its rows."""


def block_of(table: ir.Value) -> int:
    """Rows of the blocks that a table is made in; 0 where none is of a good size."""
    rows, width = shape_of(table)
    most = min(_MOST // max(width * dtype_of(table).itemsize, 1), rows // 2)
    return next((block for block in _BLOCKS if block <= most), 0)


def write_rows(
    op: Builder, name: str, like: ir.Value, block: int, rows_of: Callable[[Builder, ir.Value], ir.Value], added: Added
) -> ir.Value:
    """Emit a table that is made in blocks of rows and written row by row.

    Args:
        op: the builder.
        name: what to call the Scan.
        like: a table of the same shape and element type.
        block: rows of a block, half of those of the table at most. The last block ends with the table, and begins among
            rows of the one before if it has to.
        rows_of: emits the block that begins with a row, an int64 scalar, [block, width].
        added: what is added to the rows.
    """
    shape, dtype = shape_of(like), like.dtype
    before = new_value(op, f"{name}/before", dtype, (block, shape[1]))
    start, place = (new_value(op, f"{name}/{what}", ir.DataType.INT64, ()) for what in ("start", "place"))
    is_first = new_value(op, f"{name}/is_first", ir.DataType.BOOL, ())
    graph = ir.Graph([before, start, place, is_first], [], nodes=[], name=op.unique_name(f"{name}/rows"))
    # A node that runs for each row costs as much as the row's part of a product: numbers are ready, sums go by blocks.
    rows = np.arange(shape[0])
    starts = np.minimum(rows - rows % block, shape[0] - block)
    numbers = np.zeros((block, shape[1]), dtype_of(like)), starts, rows - starts, rows % block == 0
    inputs = [op.constant(array) for array in numbers]

    def added_to(inner: Builder, first: ir.Value) -> ir.Value:
        places = rows_from(inner, added.places, first, block)
        return inner.Add(rows_of(inner, first), inner.Gather(added.table, places, axis=0))

    inner = BodyBuilder(op, graph)
    with inner.scope(name):
        now = _block(inner, name, before, is_first, start, added_to)
        found = inner.Gather(now, place, axis=0)
    graph.outputs.extend([now, found])
    close_body(inner)
    last = new_value(op, f"{name}/last", dtype, (block, shape[1]))
    result = new_value(op, f"{name}_out", dtype, shape)
    about = {PHASE: "backward", PIECES: str(-(-shape[0] // block))}
    emit_scan(op, name, graph, inputs[:1], inputs[1:], [last, result], about)
    return result


def _block(
    op: BodyBuilder,
    name: str,
    before: ir.Value,
    is_first: ir.Value,
    start: ir.Value,
    rows_of: Callable[[Builder, ir.Value], ir.Value],
) -> ir.Value:
    """The block that a row lies in: a new one for its first row, else the one that is there."""
    branches = []
    for branch in ("then", "else"):
        graph = ir.Graph([], [], nodes=[], name=op.unique_name(f"{name}/{branch}"))
        inner = BodyBuilder(op, graph)
        with inner.scope(name):
            graph.outputs.append(rows_of(inner, start) if branch == "then" else inner.Identity(before))
        close_body(inner)
        branches.append(ir.AttrGraph(f"{branch}_branch", graph))
    now = new_value(op, f"{name}/block", before.dtype, shape_of(before))
    emit_control(op, "If", f"{name}/If", [is_first], branches, [now], {})
    return now
