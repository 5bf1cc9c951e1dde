"""What masks write one element behind the other is looked up for all elements.

``x.masked_scatter(mask, source)`` puts the first element of the source in the first place that the mask chooses, and so
on: that is how features of images come among the tokens of a text. Exporters write a ScatterND in the places that a
NonZero finds, of as many elements of the source as there are places; of ``x[mask] = source`` they write one of all of
its rows, by an Expand to as many. Here each element of x finds the one that is meant for it by how many were chosen
before, and a Where keeps what is not chosen. If there are more places than elements, the Gather fails, as the ScatterND
would.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.masks.mask_rewriting import Mask, Rewriting, mask_of
from ckplan.model.node_reads import fixed_integers
from ckplan.model.rewiring import put_in_place
from ckplan.operators.matching import input_of, made_by


def look_up_in_order(rewriting: Rewriting) -> int:
    """Look up what masks write in order, in place; what has told how much that is stays, and nobody reads it.

    Returns:
        How many ScatterND nodes there were.
    """
    count = 0
    for node in list(rewriting.graph):
        mask, source = _mask_of_places(rewriting, node), _written(node)
        if mask is not None and source is not None:
            _look_up(rewriting, node, mask, source)
            count += 1
    return count


def _mask_of_places(rewriting: Rewriting, node: ir.Node) -> ir.Value | None:
    """The mask in whose places a ScatterND writes single elements; None of other nodes."""
    if node.op_type != "ScatterND" or node.domain or node.attributes.get_string("reduction", "none") != "none":
        return None
    mask, data = rewriting.chooser_of(input_of(node, 1)), node.inputs[0]
    if mask is None or data is None or not static_shape(mask) or static_shape(mask) != static_shape(data):
        return None
    return mask


def _written(node: ir.Node) -> ir.Value | None:
    """What a ScatterND writes element by element, of a fixed size, or of its first ones; None of anything else."""
    spread = as_many(input_of(node, 2))
    if spread is not None:
        return spread
    cut = made_by(input_of(node, 2), "Slice")
    if cut is None or fixed_integers(cut, 1) != [0] or (input_of(cut, 4) is not None and fixed_integers(cut, 4) != [1]):
        return None
    source = cut.inputs[0]
    sizes = None if source is None else static_shape(source)
    return source if sizes is not None and len(sizes) == 1 and 0 not in sizes else None


def as_many(written: ir.Value | None) -> ir.Value | None:
    """The rows, or numbers, two at least, of which a node makes as many as a mask chooses: these, end to end or not.

    An Expand would repeat one row for all that is chosen; the old exporter has a Reshape. None of anything else.
    """
    flat = made_by(written, "Reshape")
    if flat is not None and fixed_integers(flat, 1) == [-1]:
        written = flat.inputs[0]
    spread = made_by(written, ("Expand", "Reshape"))
    source = None if spread is None else spread.inputs[0]
    sizes = None if source is None else static_shape(source)
    if spread is None or not sizes or sizes[0] <= 1:
        return None
    shape = input_of(spread, 1)
    told = made_by(shape, "Concat")
    rest = [] if told is None else [size for index in range(1, len(told.inputs)) for size in _fixed(told, index)]
    fits = shape is not None and static_shape(shape) == (len(sizes),) and rest == list(sizes[1:])
    return source if fits else None


def _fixed(node: ir.Node, index: int) -> list[int]:
    """The integers of an input; one that stands for those that are not fixed."""
    return fixed_integers(node, index) or [-1]


def _look_up(rewriting: Rewriting, node: ir.Node, whole: ir.Value, source: ir.Value) -> None:
    data, mask = node.inputs[0], mask_of(whole)
    assert data is not None
    if math.prod(static_shape(source) or ()) % mask.repeats:
        mask = Mask(whole)
    rows = [mask.size, mask.repeats]  # each as long as what one element of the root chooses
    chosen = rewriting.mask(node, mask.root, [mask.size], 0)
    numbers = rewriting.chosen_before(node, chosen)
    elements = rewriting.emit(node, "Reshape", source, rewriting.numbers(-1, mask.repeats))
    written = rewriting.emit(node, "Gather", elements, numbers, axis=0)
    chosen = rewriting.emit(node, "Reshape", chosen, rewriting.numbers(mask.size, 1))
    kept = rewriting.emit(node, "Reshape", data, rewriting.numbers(*rows))
    written = rewriting.emit(node, "Where", chosen, written, kept)
    result = rewriting.emit(node, "Reshape", written, rewriting.numbers(*(static_shape(data) or ())))
    result.type, result.shape = data.type, data.shape
    put_in_place(node, result)
