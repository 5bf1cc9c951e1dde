"""Elements that a mask chooses are computed together with all others, where the others are left out again.

``x[mask]`` is a GatherND at the places that NonZero finds, or a Compress: as many as the data have, and a training step
has fixed sizes. What works on each of them alone may as well work on all: the others are numbers at which everything is
defined, and a sum over what was chosen puts zeros in their place, a loss ignores their labels, and ``x[mask] = ...`` is
a Where. Masked losses are of that form. Where anything else is done with them the model is left as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ckplan.model.inference.fold import sweep
from ckplan.model.inference.infer import is_known, static_shape
from ckplan.model.masks.chosen_rows import look_up_rows
from ckplan.model.masks.counted import reckon_with_counts
from ckplan.model.masks.cut_rows import choose_cut_rows, cuts_by_data, write_parts
from ckplan.model.masks.left_out import work_on_all
from ckplan.model.masks.mask_rewriting import Mask, Rewriting, deciding_mask, mask_of
from ckplan.model.masks.ordered_rows import spread_rows
from ckplan.model.masks.ordered_writes import look_up_in_order
from ckplan.model.masks.whole_places import read_at_whole_places
from ckplan.model.rewiring import put_in_place


def without_masks(model: ir.Model) -> tuple[ir.Model, tuple[str, ...]]:
    """Write what masks choose with all elements, and look up what they write in order.

    Args:
        model: its shapes are inferred as far as they are known; left as it is.

    Returns:
        The model as it is, or another one; notes.
    """
    if not any(map(cuts_by_data, model.graph)) and not any(_choosing(model.graph)):
        return model, ()
    trial = model.clone()
    rewriting = Rewriting(trial.graph)
    while cut := choose_cut_rows(rewriting):
        _clean(trial)
        write_parts(rewriting, cut)
        _clean(trial)
    if read_at_whole_places(rewriting):
        _clean(trial)
    met = spread_rows(rewriting)
    if met:
        _clean(trial)
    in_order, rows = look_up_in_order(rewriting), look_up_rows(rewriting)
    if in_order or rows:
        _clean(trial)
    if reckon_with_counts(rewriting):
        _clean(trial)
    choosing = list(_choosing(trial.graph))
    for node in choosing:
        understood = _compress if node.op_type == "Compress" else _choose
        if not understood(rewriting, node):
            return model, ()
    if not _size_by_all(rewriting) or not _sizes_are_sizes(rewriting):
        return model, ()
    sweep(trial)
    if not work_on_all(rewriting):
        return model, ()
    notes = []
    if rows:
        notes.append(
            f"of what {rows} mask(s) choose a row of each sample is looked up: right where all have as many, and one "
            "at least, as in the model"
        )
    if met:
        notes.append(f"what meets what {met} mask(s) choose, one for one, is looked up for all elements")
    if in_order:
        notes.append(f"what {in_order} mask(s) write in order is looked up for all elements")
    if choosing:
        notes.append(
            f"of what {len(choosing)} mask(s) choose all elements are computed, and those that are not chosen left out"
        )
    return trial, tuple(notes)


def _clean(trial: ir.Model) -> None:
    """Let go of what is read no more, and infer the shapes of what has taken its place."""
    RemoveUnusedNodesPass()(trial)
    sweep(trial)


def _choosing(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes that choose by a mask."""
    for node in graph:
        if deciding_mask(node) is not None and node.outputs[0].uses() and not is_known(node.outputs[0]):
            yield node


def _compress(rewriting: Rewriting, node: ir.Node) -> bool:
    """Read all elements in the place of those that a Compress keeps; whether it chooses along the first axis."""
    data, condition = node.inputs[:2]
    sizes = None if data is None else static_shape(data)
    if data is None or condition is None or not sizes or node.attributes.get_int("axis", len(sizes)) != 0:
        return False
    return static_shape(condition) == sizes[:1] and _read_all(rewriting, node, data, mask_of(condition), 1)


def _choose(rewriting: Rewriting, node: ir.Node) -> bool:
    """Follow the places that a NonZero finds, to what is read and written there; whether all of that is understood."""
    assert node.inputs[0] is not None
    shape, mask = static_shape(node.inputs[0]) or (), mask_of(node.inputs[0])
    size = mask.size * mask.repeats
    across = node.outputs[0]
    turned = [user for user in across.consumers() if user.op_type == "Transpose" and user.graph is rewriting.graph]
    for places, sizes in ((across, (len(shape), size)), *((user.outputs[0], (size, len(shape))) for user in turned)):
        if places.is_graph_output():
            return False
        rewriting.places.add(places)
        for reader, index in list(places.uses()):
            if reader.domain or reader.graph is not rewriting.graph:
                return False
            if reader.op_type == "Shape":
                start, end = (reader.attributes.get_int(name, other) for name, other in (("start", 0), ("end", 2)))
                told = rewriting.numbers(*sizes[start:end])
                ir.convenience.replace_all_uses_with(reader.outputs[0], told)
                rewriting.told.append(told)
            elif reader not in turned and (places is across or not _at_places(rewriting, reader, index, shape, mask)):
                return False
    return True


def _at_places(rewriting: Rewriting, node: ir.Node, index: int, shape: tuple[int, ...], mask: Mask) -> bool:
    """Read, or write, all elements in the place of those at places; whether the node does either."""
    data = node.inputs[0]
    sizes = None if data is None else static_shape(data)
    if index != 1 or data is None or data.dtype is None or sizes is None or sizes[: len(shape)] != shape:
        return False
    if node.op_type == "GatherND" and not node.attributes.get_int("batch_dims", 0):
        return _read_all(rewriting, node, data, mask, len(shape))
    how = node.attributes.get_string("reduction", "none")
    if node.op_type != "ScatterND" or how not in ("none", "add"):
        return False
    ones = (1 for _ in sizes[len(shape) :])
    full = rewriting.emit(node, "Reshape", node.inputs[2], rewriting.numbers(*sizes))
    chosen = rewriting.mask(node, mask.root, [mask.size * mask.repeats], 0)
    chosen = rewriting.emit(node, "Reshape", chosen, rewriting.numbers(*shape, *ones))
    shaper = full.producer()
    assert shaper is not None
    rewriting.scattered[shaper] = mask.root
    if how == "add":
        written = rewriting.emit(node, "Where", chosen, full, rewriting.number(0, data.dtype))
        written = rewriting.emit(node, "Add", data, written)
    else:
        written = rewriting.emit(node, "Where", chosen, full, data)
    written.dtype, written.shape = data.dtype, data.shape  # another mask may write into it, or choose of it
    put_in_place(node, written)
    return True


def _read_all(rewriting: Rewriting, node: ir.Node, data: ir.Value, mask: Mask, axes: int) -> bool:
    """Put all elements along the first axes of a tensor in the place of those that a mask chooses there."""
    assert data.dtype is not None
    shape = [mask.size * mask.repeats, *(static_shape(data) or ())[axes:]]
    rows = rewriting.emit(node, "Reshape", data, rewriting.numbers(*shape))
    filling = rewriting.filling(data.dtype)
    result = rewriting.emit(node, "Where", rewriting.mask(node, mask.root, shape, 0), rows, filling)
    rewriting.chosen[result] = mask.root
    put_in_place(node, result)
    return True


def _size_by_all(rewriting: Rewriting) -> bool:
    """Where torch's default exporter counts what a mask chooses, to make as many updates, let it make them for all.

    Returns:
        Whether such updates are used for nothing else.
    """
    roots = set(rewriting.scattered.values())
    for node in list(rewriting.graph):
        root = _counted(node) if node.op_type == "ReduceSum" and not node.domain else None
        if root is None or root not in roots:
            continue
        size = rewriting.numbers(math.prod(static_shape(root) or ()))
        for reader, index in list(node.outputs[0].uses()):
            expands = [(reader, size)] if reader.op_type == "Expand" and index == 1 else []
            if reader.op_type == "Concat":
                sizes = [size if one is node.outputs[0] else one for one in reader.inputs]
                joined = rewriting.emit(reader, "Concat", *sizes, axis=0)
                uses = reader.outputs[0].uses()
                expands = [(expand, joined) for expand, place in uses if expand.op_type == "Expand" and place == 1]
            for expand, shape in expands:
                expand.replace_input_with(1, shape)
                rewriting.chosen[expand.outputs[0]] = root
                if not all(_is_put_back(rewriting, user) for user in expand.outputs[0].consumers()):
                    return False
    return True


def _is_put_back(rewriting: Rewriting, node: ir.Node) -> bool:
    """Whether what a node reads goes back to the places of a mask, and nowhere else."""
    if node in rewriting.scattered:
        return True
    return node.op_type == "Reshape" and all(_is_put_back(rewriting, user) for user in node.outputs[0].consumers())


_PASSED_ON = ("Cast", "Concat", "Gather", "Identity", "Slice", "Squeeze", "Unsqueeze")
"""What makes a size, or several, of others."""
_TOLD = {"Expand": (1,), "Reshape": (1,), "Slice": (1, 2)}
"""What is told a size, and where."""


def _sizes_are_sizes(rewriting: Rewriting) -> bool:
    """Whether how much is chosen is used for nothing but the sizes of what is computed of it.

    A number of elements that a sum is divided by would be another one with all of them.
    """
    region, sizes = set(rewriting.chosen), set(rewriting.told)
    filled: set[ir.Value] = set()
    for node in rewriting.graph:
        read = [value for value in node.inputs if value is not None]
        if node in rewriting.counting or not rewriting.places.isdisjoint(node.outputs):
            continue
        if node.op_type in ("Shape", "Size") and not region.isdisjoint(read):
            sizes.update(node.outputs)
            continue
        told = [index for index, value in enumerate(node.inputs) if value in sizes]
        inside = not region.isdisjoint(read)
        if any(value in filled for value in read):
            if not inside:
                return False
            rewriting.sized.add(node)
        if not told:
            region.update(node.outputs if inside else ())
        elif node.op_type == "ConstantOfShape":
            filled.update(node.outputs)
        elif node.op_type in _TOLD and all(index in _TOLD[node.op_type] for index in told):
            if node.inputs[0] not in region:
                return False
            rewriting.sized.add(node)
            region.update(node.outputs)
        elif node.op_type in _PASSED_ON and not inside and _stays_whole(node):
            sizes.update(node.outputs)
        else:
            return False
    return not any(value.is_graph_output() for value in sizes | filled)


def _stays_whole(node: ir.Node) -> bool:
    return node.op_type != "Cast" or ir.DataType(node.attributes.get_int("to", 0)).is_integer()


def _counted(node: ir.Node) -> ir.Value | None:
    """The root of the mask whose elements a node counts, as [1] or as one number; None if it does something else."""
    cast = None if node.inputs[0] is None else node.inputs[0].producer()
    if cast is None or cast.op_type != "Cast" or cast.inputs[0] is None or static_shape(cast.inputs[0]) is None:
        return None
    if math.prod(static_shape(node.outputs[0]) or (1,)) != 1:
        return None
    mask = mask_of(cast.inputs[0])
    integer = ir.DataType(cast.attributes.get_int("to", 0)).is_integer()
    return mask.root if integer and mask.repeats == 1 else None
