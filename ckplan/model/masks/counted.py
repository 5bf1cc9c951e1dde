"""How many elements a mask chooses, where a number is reckoned of it.

``(x[mask] ** 2).sum() / x[mask].numel()`` divides by a size of what is chosen, and so does a variance. Once all
elements are computed that size is another one; so the number is made of how many elements of the mask are not zero.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.masks.mask_rewriting import Rewriting, deciding_mask
from ckplan.operators.matching import is_op

_RECKONED = (
    *("Add", "Cast", "Concat", "Div", "Gather", "Identity", "Max", "Min", "Mul", "Neg", "ReduceMax", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze"),
)
"""What makes a number of sizes."""


def reckon_with_counts(rewriting: Rewriting) -> int:
    """Let numbers that are reckoned of sizes of what masks choose be reckoned of how many elements these choose.

    What is told to an Expand, a Reshape or a Slice stays a size.

    Returns:
        How many numbers there were.
    """
    count = 0
    choosing = _choosing(rewriting.graph)
    for node in list(rewriting.graph):
        output = node.outputs[0]
        if is_op(node, "Cast") and output.dtype is not None and output.dtype.is_floating_point():
            made: dict[ir.Value, ir.Value | None] = {}
            counted = _counted(rewriting, node, node.inputs[0], choosing, made)
            if counted is not None and counted is not node.inputs[0]:
                node.replace_input_with(0, counted)
                count += 1
    return count


def _choosing(graph: ir.Graph) -> dict[ir.Value, ir.Value]:
    """The mask that decides on the size of a value, for all values of which one does."""
    found: dict[ir.Value, ir.Value] = {}
    for node in graph:
        masks = {found[value] for value in node.inputs if value is not None and value in found}
        mask = deciding_mask(node)
        if mask is not None:
            masks.add(mask)
        if len(masks) == 1:
            (one,) = masks
            found.update((value, one) for value in node.outputs if static_shape(value) is None)
    return found


def _counted(
    rewriting: Rewriting,
    before: ir.Node,
    value: ir.Value | None,
    choosing: dict[ir.Value, ir.Value],
    made: dict[ir.Value, ir.Value | None],
) -> ir.Value | None:
    """A whole number or more, reckoned of how much is chosen; as it is if it is not made of that; None if unknown."""
    node = None if value is None else value.producer()
    if value is None or node is None or value.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return value
    if value in made:
        return made[value]
    if node.op_type in ("Shape", "Size") and not node.domain:
        source = node.inputs[0]
        mask = None if source is None else choosing.get(source)
        made[value] = value if source is None or mask is None else _size(rewriting, before, node, source, mask)
    elif node.op_type in _RECKONED and not node.domain:
        inputs = [_counted(rewriting, before, one, choosing, made) for one in node.inputs]
        if any(one is None and given is not None for one, given in zip(inputs, node.inputs, strict=True)):
            made[value] = None
        elif inputs == list(node.inputs):
            made[value] = value
        else:
            made[value] = rewriting.emit_like(before, node, inputs)
    else:
        made[value] = value
    return made[value]


def _size(rewriting: Rewriting, before: ir.Node, node: ir.Node, source: ir.Value, mask: ir.Value) -> ir.Value | None:
    """Emit the shape, or the number of elements, of what a mask chooses; None if several of its sizes are open."""
    sizes = None if source.shape is None else list(source.shape)
    if sizes is None or sum(not isinstance(size, int) for size in sizes) != 1:
        return None
    place = next(axis for axis, size in enumerate(sizes) if not isinstance(size, int))
    whole = rewriting.emit(before, "Shape", source, start=place, end=place + 1)
    each = rewriting.emit(before, "Div", whole, rewriting.numbers(math.prod(static_shape(mask) or ())))
    rewriting.counting.update(one for one in (whole.producer(), each.producer()) if one is not None)
    chosen = rewriting.emit(before, "Cast", mask, to=int(ir.DataType.BOOL))
    chosen = rewriting.emit(before, "Cast", chosen, to=int(ir.DataType.INT64))
    chosen = rewriting.emit(before, "Reshape", chosen, rewriting.numbers(-1))
    count = rewriting.emit(before, "ReduceSum", chosen, rewriting.numbers(0), keepdims=1)
    open_size = rewriting.emit(before, "Mul", each, count)
    parts = [rewriting.numbers(size) if isinstance(size, int) else open_size for size in sizes]
    if node.op_type == "Shape":
        parts = parts[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(parts))]
    result = rewriting.emit(before, "Concat", *parts, axis=0)
    if node.op_type == "Size":
        result = rewriting.emit(before, "ReduceProd", result, rewriting.numbers(0), keepdims=0)
    return result
