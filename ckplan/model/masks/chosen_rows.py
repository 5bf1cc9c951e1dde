"""Of what a mask chooses, each sample's first or last row is looked up.

``x[ids == end].view(samples, -1, features)[:, -1]`` is how a BART classifies a text: by what stands at its last end
token. Exporters write a GatherND at the places that a NonZero finds, a Reshape, and a Gather. It is right only where
the mask chooses as many rows of each sample, and at least one; there the last one is where an ArgMax finds it.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.masks.mask_rewriting import Rewriting
from ckplan.model.node_reads import fixed_integers
from ckplan.model.rewiring import put_in_place
from ckplan.operators.matching import input_of, made_by

_RANK_OF_MASK = 2
"""Samples and places."""


def look_up_rows(rewriting: Rewriting) -> int:
    """Look up the row that is taken of those that a mask chooses, in place.

    Returns:
        How many Gather nodes there were.
    """
    count = 0
    for node in list(rewriting.graph):
        found = _mask_and_rows(rewriting, node)
        if found is None:
            continue
        mask, rows = found
        chosen = rewriting.emit(node, "Cast", mask, to=int(ir.DataType.INT32))
        last = int(fixed_integers(node, 1) == [-1])
        place = rewriting.emit(node, "ArgMax", chosen, axis=1, keepdims=1, select_last_index=last)
        result = rewriting.emit(node, "GatherND", rows, place, batch_dims=1)
        result.type = node.outputs[0].type
        put_in_place(node, result)
        count += 1
    return count


def _mask_and_rows(rewriting: Rewriting, node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """The mask [samples, places] of which a Gather takes the first or last row, and all rows; None of other nodes."""
    index = input_of(node, 1)
    if node.op_type != "Gather" or node.domain or node.attributes.get_int("axis", 0) != 1 or index is None:
        return None
    if fixed_integers(node, 1) not in ([0], [-1]) or static_shape(index) != ():
        return None
    by_sample = made_by(node.inputs[0], "Reshape")
    taken = None if by_sample is None else made_by(by_sample.inputs[0], "GatherND")
    if by_sample is None or taken is None or taken.attributes.get_int("batch_dims", 0) != 0:
        return None
    mask, rows = rewriting.chooser_of(input_of(taken, 1)), taken.inputs[0]
    sizes = None if mask is None else static_shape(mask)
    whole = None if rows is None else static_shape(rows)
    if mask is None or rows is None or not sizes or not whole or len(sizes) != _RANK_OF_MASK:
        return None
    is_of_samples = fixed_integers(by_sample, 1) == [sizes[0], -1, *whole[_RANK_OF_MASK:]]
    return (mask, rows) if is_of_samples and whole[:_RANK_OF_MASK] == sizes else None
