"""Rows that meet what a mask chooses, one for one, are looked up for all elements.

``x[mask] += rows`` adds the first row to the first element that the mask chooses, and so on: that is how a Qwen3-VL
brings features of images to the tokens of a text in several of its layers. ``x[torch.where(mask)] = rows`` writes them
there. Here each element of the mask finds the row that is meant for it by how many were chosen before, and what the
mask chooses of that takes the place of the rows. If there are more elements than rows, the Gather fails, as the
addition, or the ScatterND, would. That is done where the result is written back at the places of the mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.model.inference.infer import is_known, static_shape
from ckplan.model.masks.mask_rewriting import Rewriting, mask_of
from ckplan.model.masks.ordered_writes import as_many
from ckplan.operators.matching import input_of
from ckplan.operators.table import ELEMENTWISE


@dataclass(frozen=True)
class _Chosen:
    """What a mask chooses of a tensor, [n, ...].

    Attributes:
        mask: the mask.
        places: that it chooses, [n, axes].
        rank: of what is chosen.
    """

    mask: ir.Value
    places: ir.Value
    rank: int


def spread_rows(rewriting: Rewriting) -> int:
    """Let rows that meet what a mask chooses be chosen by it, too, in place; shapes behind them are forgotten.

    Returns:
        How often there were such rows.
    """
    count = 0
    chosen: dict[ir.Value, _Chosen] = {}
    changed: set[ir.Value] = set()  # their shapes may be those of the rows, until they are written back
    for node in list(rewriting.graph):
        met = _chosen_by(rewriting, node, chosen)
        if met is not None and node.op_type != "ScatterND":
            chosen.update(dict.fromkeys(node.outputs, met))
        spread = 0
        if met is not None and node.op_type != "GatherND":
            spread = sum(_spread(rewriting, node, index, met) for index in range(len(node.inputs)))
        count += spread
        if node.op_type != "ScatterND" and (spread or not changed.isdisjoint(node.inputs)):
            changed.update(node.outputs)
            for output in node.outputs:
                output.shape = None
    return count


def _chosen_by(rewriting: Rewriting, node: ir.Node, chosen: dict[ir.Value, _Chosen]) -> _Chosen | None:
    """What a node reads or writes at the places of a mask, or what such is computed of; None of other nodes."""
    if node.domain:
        return None
    if node.op_type in ELEMENTWISE:
        return next((chosen[value] for value in node.inputs if value in chosen), None)
    if node.op_type not in ("GatherND", "ScatterND") or node.attributes.get_int("batch_dims", 0) != 0:
        return None
    places, data = input_of(node, 1), node.inputs[0]
    mask = rewriting.chooser_of(places)
    whole, sizes = (None if value is None else static_shape(value) for value in (mask, data))
    if places is None or mask is None or is_known(places) or not whole or not sizes:
        return None
    return _Chosen(mask, places, 1 + len(sizes) - len(whole)) if sizes[: len(whole)] == whole else None


def _is_written(rewriting: Rewriting, node: ir.Node, met: _Chosen) -> bool:
    """Whether a node writes at the places of a mask, or what it makes is written there in the end.

    So there are as many rows as places. Of what is not written, such as distances of a chosen row from several others,
    one row might be chosen, and stretched.
    """
    root = mask_of(met.mask).root
    pending, seen = [node], {node}
    while pending:
        one = pending.pop()
        if one.op_type == "ScatterND":
            mask = rewriting.chooser_of(input_of(one, 1))
            if mask is not None and mask_of(mask).root is root:
                return True
            continue
        for user in (use.node for output in one.outputs for use in output.uses() if use.node.op_type != "Shape"):
            if user not in seen:
                seen.add(user)
                pending.append(user)
    return False


def _spread(rewriting: Rewriting, node: ir.Node, index: int, met: _Chosen) -> bool:
    """Spread what a node reads, if it is rows [n, ...], two at least, that meet what a mask chooses; whether it is.

    Those whose result is not written back are none: see `_is_written`.
    """
    rows, whole = input_of(node, index), static_shape(met.mask) or ()
    if node.op_type == "ScatterND":
        rows = (as_many(rows) or rows) if index == 2 else None
    sizes = None if rows is None else static_shape(rows)
    if rows is None or rows.dtype is None or not sizes or len(sizes) != met.rank or sizes[0] <= 1:
        return False
    if not _is_written(rewriting, node, met):
        return False
    flat = rewriting.emit(node, "Reshape", met.mask, rewriting.numbers(math.prod(whole)))
    spread = rewriting.emit(node, "Gather", rows, rewriting.chosen_before(node, flat), axis=0)
    spread = rewriting.emit(node, "Reshape", spread, rewriting.numbers(*whole, *sizes[1:]))
    spread.dtype, spread.shape = rows.dtype, ir.Shape([*whole, *sizes[1:]])
    node.replace_input_with(index, rewriting.emit(node, "GatherND", spread, met.places))
    return True
