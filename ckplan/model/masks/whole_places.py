"""What is read and written at columns of the places that a mask chooses is read and written at whole places.

A mixture of experts finds which tokens asked for an expert, and in which slot: ``rows, slots = torch.where(asked ==
expert)``. It reads ``x[rows]`` and ``weights[rows, slots]``, and adds to ``y[rows]``. A tensor that is read at some
columns is repeated along the other axes of the mask, and then read at places of all; what is written at some is added
up along the others.

Where the mask has one place at most along an axis, as each token asks for an expert in one slot at most, that axis is
left out: the mask is whether there is one, and of what is read along it all but that one are zeros of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.model.inference.infer import is_known, static_shape
from ckplan.model.masks.at_most_one import chooses_at_most_one
from ckplan.model.masks.column_layout import as_before, by_axes, layout_of
from ckplan.model.masks.mask_rewriting import Rewriting, deciding_mask
from ckplan.model.masks.place_columns import Column, Columns, columns_behind, found_columns
from ckplan.model.node_reads import fixed_integers
from ckplan.model.rewiring import put_in_place
from ckplan.operators.matching import input_of, made_by

_MATRIX = 2
"""Rank of what rows are scattered into."""
_OF_ALL_AXES = 3
"""Inputs of a Slice that names no axes: the data, starts and ends."""
_ADDED = ("none", "add")
"""How a scattering node may bring together what it writes and what was there."""


@dataclass(frozen=True)
class _Found:
    """What a mask chooses, for those that read and write at columns of its places.

    Attributes:
        mask: the mask.
        shape: its sizes.
        left_out: its axes along which it has one place at most.
        places: that the mask without these axes chooses, [n, axes].
    """

    mask: ir.Value
    shape: tuple[int, ...]
    left_out: frozenset[int]
    places: ir.Value

    @property
    def kept(self) -> list[int]:
        """The other axes of the mask."""
        return [axis for axis in range(len(self.shape)) if axis not in self.left_out]


def read_at_whole_places(rewriting: Rewriting) -> int:
    """Let what reads or writes at columns of places do so at whole places, in place; shapes are inferred behind it.

    Returns:
        Of how many masks columns were read.
    """
    known: dict[ir.Value, Columns] = {}
    uses: dict[ir.Node, list[_Use]] = {}
    apart: list[ir.Node] = []
    for node in list(rewriting.graph):
        if node.op_type == "NonZero" and not node.domain and not is_known(node.outputs[0]):
            if deciding_mask(node) is not None:
                known[node.outputs[0]], uses[node] = found_columns(node), []
            continue
        behind = dict(columns_behind(node, known))
        known.update(behind)
        if node.op_type != "Transpose":
            apart.extend(columns.finder for columns in behind.values())
        for index, value in enumerate(() if behind else node.inputs):
            if value is not None and value in known:
                uses[known[value].finder].append((node, index, known[value]))
    apart.extend(finder for finder, read in uses.items() if not all(_is_at_whole_places(*use) for use in read))
    for finder in (finders := dict.fromkeys(apart)):
        found = _whole_places(rewriting, finder)
        for node, index, columns in uses[finder]:
            _put_at_whole_places(rewriting, node, index, columns, found)
    return len(finders)


_Use = tuple[ir.Node, int, Columns]
"""A node, which of its inputs columns are, and these."""


def _is_at_whole_places(node: ir.Node, index: int, columns: Columns) -> bool:
    """Whether a node reads all columns in their order, side by side, as if they had not been taken apart."""
    is_whole = columns.is_table and columns.columns == found_columns(columns.finder).columns
    return node.op_type == "Shape" or (index == 1 and is_whole)


def _whole_places(rewriting: Rewriting, finder: ir.Node) -> _Found:
    """Emit the places of a mask without the axes along which it has one place at most; one axis stays at least."""
    mask = finder.inputs[0]
    assert mask is not None
    shape = static_shape(mask) or ()
    left_out = [axis for axis, size in enumerate(shape) if size == 1]
    alone = [axis for axis in range(len(shape)) if shape[axis] > 1 and chooses_at_most_one(mask, axis)]
    left_out = sorted([*left_out, *alone[:1]])[: len(shape) - 1]
    kept = [axis for axis in range(len(shape)) if axis not in left_out]
    whole = mask
    if left_out:
        numbers = rewriting.emit(finder, "Cast", mask, to=int(ir.DataType.BOOL))
        numbers = rewriting.emit(finder, "Cast", numbers, to=int(ir.DataType.INT32))
        numbers = rewriting.emit(finder, "ReduceMax", numbers, rewriting.numbers(*left_out), keepdims=0)
        whole = rewriting.emit(finder, "Cast", numbers, to=int(ir.DataType.BOOL))
        if any(axis > alone[0] and shape[axis] > 1 for axis in kept if alone):
            rewriting.reordered.add(whole)
    places = rewriting.emit(finder, "NonZero", whole)
    places = rewriting.emit(finder, "Transpose", places, perm=(1, 0))
    return _Found(mask, shape, frozenset(left_out), places)


def _put_at_whole_places(rewriting: Rewriting, node: ir.Node, index: int, columns: Columns, found: _Found) -> None:
    """Let a node do at whole places what it does at columns; it is left as it is where that is not understood."""
    data = node.inputs[0]
    sizes = None if data is None else static_shape(data)
    if node.op_type == "Shape":
        _tell_number(rewriting, node, columns, found)
    elif index != 1 or data is None or data.dtype is None or sizes is None:
        return
    elif node.op_type == "Gather" and columns.flat:
        _gather(rewriting, node, data, node.attributes.get_int("axis", 0) % len(sizes), columns, found)
    elif node.op_type == "GatherND" and columns.is_table and not node.attributes.get_int("batch_dims", 0):
        read = _read(rewriting, node, data, columns.columns, found)
        if read is not None:
            put_in_place(node, read)
    elif node.op_type == "ScatterND" and columns.is_table:
        _write(rewriting, node, data, columns.columns, found)
    elif node.op_type == "ScatterElements" and not (columns.flat or columns.across):
        rows = _whole_rows(node, sizes)
        if rows is not None:
            node.replace_input_with(2, rows)
            _write(rewriting, node, data, columns.columns, found)


def _whole_rows(node: ir.Node, sizes: Sequence[int]) -> ir.Value | None:
    """The rows that a ScatterElements writes into a matrix, as wide as that; None if it writes anything else.

    The old exporter cuts them to the size of the indices, which have as many.
    """
    rows = input_of(node, 2)
    cut = made_by(rows, "Slice")
    size = None if cut is None else made_by(input_of(cut, 2), "Shape")
    if cut is not None and size is not None and size.inputs[0] is node.inputs[1] and _cuts_from_start(cut):
        rows = cut.inputs[0]
    is_wide = rows is not None and rows.shape is not None and list(rows.shape)[1:] == list(sizes[1:])
    return rows if is_wide and len(sizes) == _MATRIX and node.attributes.get_int("axis", 0) in (0, -_MATRIX) else None


def _cuts_from_start(cut: ir.Node) -> bool:
    """Whether a Slice of a matrix names no axes, and starts at the first of both."""
    return len(cut.inputs) == _OF_ALL_AXES and fixed_integers(cut, 1) == [0, 0]


def _tell_number(rewriting: Rewriting, node: ir.Node, columns: Columns, found: _Found) -> None:
    """Let the shape of columns be that of places, or of as many."""
    if columns.repeated:
        return
    number = rewriting.emit(node, "Shape", found.places, start=0, end=1)
    sizes = [number] if columns.flat else [number, rewriting.numbers(len(columns.columns))]
    if columns.across:
        sizes.reverse()
    told = sizes[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(sizes))]
    if told:
        put_in_place(node, told[0] if len(told) == 1 else rewriting.emit(node, "Concat", *told, axis=0))


def _gather(rewriting: Rewriting, node: ir.Node, data: ir.Value, axis: int, columns: Columns, found: _Found) -> None:
    """Let a Gather along an axis read at whole places, along the first one."""
    sizes = static_shape(data) or ()
    order = [axis, *(one for one in range(len(sizes)) if one != axis)]
    turned = data
    if axis:
        turned = rewriting.emit(node, "Transpose", data, perm=order)
        turned.type, turned.shape = data.type, ir.Shape([sizes[one] for one in order])
    read = _read(rewriting, node, turned, columns.columns, found)
    if read is not None and axis:
        read = rewriting.emit(node, "Transpose", read, perm=[order.index(one) for one in range(len(sizes))])
    if read is not None:
        put_in_place(node, read)


def _read(
    rewriting: Rewriting, before: ir.Node, data: ir.Value, columns: Sequence[Column], found: _Found
) -> ir.Value | None:
    """Emit what is read of a tensor at columns of places, [n, rest]; None where that is not understood."""
    layout = layout_of(data, columns, found.shape)
    if layout is None or data.dtype is None:
        return None
    if found.left_out.isdisjoint(layout.axes):
        laid = by_axes(rewriting, before, data, layout, found.kept)
        whole = [*(found.shape[axis] for axis in found.kept), *layout.rest]
        if len(layout.axes) < len(found.kept):
            laid = rewriting.emit(before, "Expand", laid, rewriting.numbers(*whole))
    elif data.dtype.is_floating_point() or data.dtype in (ir.DataType.INT32, ir.DataType.INT64):
        laid = by_axes(rewriting, before, data, layout, list(range(len(found.shape))))
        chosen = rewriting.emit(before, "Cast", found.mask, to=int(ir.DataType.BOOL))
        chosen = rewriting.emit(before, "Reshape", chosen, rewriting.numbers(*found.shape, *(1 for _ in layout.rest)))
        laid = rewriting.emit(before, "Where", chosen, laid, rewriting.number(0, data.dtype))
        laid = rewriting.emit(before, "ReduceSum", laid, rewriting.numbers(*sorted(found.left_out)), keepdims=0)
    else:
        return None
    return rewriting.emit(before, "GatherND", laid, found.places)


def _write(rewriting: Rewriting, node: ir.Node, data: ir.Value, columns: Sequence[Column], found: _Found) -> None:
    """Let a node write at whole places what it writes at columns, if these are of all that it writes in."""
    layout, how = layout_of(data, columns, found.shape), node.attributes.get_string("reduction", "none")
    if layout is None or data.dtype is None or not layout.is_whole or how not in _ADDED:
        return
    if not found.left_out.isdisjoint(layout.axes):
        return
    missing = [place for place, axis in enumerate(found.kept) if axis not in layout.axes]
    if missing and how == "none":  # which of several is written is not said
        return
    if missing:
        whole = [*(found.shape[axis] for axis in found.kept), *layout.rest]
        laid = rewriting.emit(node, "Expand", rewriting.number(0, data.dtype), rewriting.numbers(*whole))
    else:
        laid = by_axes(rewriting, node, data, layout, found.kept)
    laid = rewriting.emit(node, "ScatterND", laid, found.places, node.inputs[2], reduction=how)
    if missing:
        laid = rewriting.emit(node, "ReduceSum", laid, rewriting.numbers(*missing), keepdims=0)
    laid = as_before(rewriting, node, laid, data, layout)
    result = rewriting.emit(node, "Add", data, laid) if missing else laid
    result.type, result.shape = data.type, data.shape  # another mask may read it, or write into it
    put_in_place(node, result)
