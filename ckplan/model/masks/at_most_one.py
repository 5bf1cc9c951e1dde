"""What is known of a mask that says who asked for an expert: it has one place at most along an axis.

Each token asks for several experts, and never for one twice: they are the indices of a TopK. So the mask of the tokens
that asked for an expert, [tokens, asked], has one place at most for each token.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.node_reads import fixed_integers, fixed_tensor
from ckplan.operators.matching import input_of

_SELECTING = (
    *("Cast", "Equal", "Expand", "Gather", "Greater", "Identity", "OneHot", "ReduceMax", "ReduceSum", "Reshape"),
    *("Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
)
"""What makes a mask of indices, or some elements of one."""
_WHOLE = (ir.DataType.INT32, ir.DataType.INT64)
"""Types in which indices stay apart."""


def chooses_at_most_one(mask: ir.Value | None, axis: int) -> bool:
    """Whether a mask is known to choose one element at most along an axis.

    Args:
        mask: of a static shape.
        axis: of the mask, not negative.
    """
    shape = None if mask is None else static_shape(mask)
    if mask is None or shape is None:
        return False
    if shape[axis] == 1:
        return True
    node = mask.producer()
    if node is None or node.domain:
        return False
    before = _axis_before(node, axis, mask)
    if before is not None:
        return chooses_at_most_one(node.inputs[0], before)
    if node.op_type == "OneHot":
        new = node.attributes.get_int("axis", -1) % len(shape)
        off = fixed_tensor(input_of(node, 2))
        if off is None or off.numpy()[0] != 0:
            return False
        return axis == new or _is_distinct(node.inputs[0], axis - (axis > new))
    if node.op_type == "Equal":
        one, other = node.inputs
        return _tells_apart(one, other, axis - len(shape)) or _tells_apart(other, one, axis - len(shape))
    return False


def tells_who_asked(mask: ir.Value | None) -> bool:
    """Whether a mask tells where the indices of a TopK, or of an ArgMax, are a certain one."""
    node = None if mask is None else mask.producer()
    if mask is None or node is None or node.domain:
        return False
    if node.op_type in ("ArgMax", "TopK"):
        return mask is node.outputs[-1]
    read = node.inputs if node.op_type == "Equal" else node.inputs[:1]
    return node.op_type in _SELECTING and any(map(tells_who_asked, read))


def _tells_apart(one: ir.Value | None, other: ir.Value | None, axis: int) -> bool:
    """Whether along an axis, counted from behind, one side's numbers differ and the other has the same for all."""
    sizes, same = (None if value is None else static_shape(value) for value in (one, other))
    if sizes is None or same is None or len(sizes) < -axis:
        return False
    return (len(same) < -axis or same[axis] == 1) and _is_distinct(one, axis + len(sizes))


def _is_distinct(value: ir.Value | None, axis: int) -> bool:
    """Whether no two numbers along an axis are equal: indices of a TopK, or constants."""
    shape = None if value is None else static_shape(value)
    if value is None or shape is None:
        return False
    tensor = fixed_tensor(value)
    if tensor is not None:
        numbers = np.sort(tensor.numpy(), axis=axis)
        return bool((np.diff(numbers, axis=axis) != 0).all())
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type == "Cast" and not all(one is not None and one.dtype in _WHOLE for one in (value, node.inputs[0])):
        return False
    if node.op_type == "TopK":
        return value is node.outputs[1] and axis == node.attributes.get_int("axis", -1) % len(shape)
    before = _axis_before(node, axis, value)
    return before is not None and _is_distinct(node.inputs[0], before)


def _axis_before(node: ir.Node, axis: int, result: ir.Value) -> int | None:
    """The axis of a node's first input that an axis of its result is; None where elements come together or change."""
    shape = static_shape(result) or ()
    source = node.inputs[0] if node.inputs else None
    sizes = None if source is None else static_shape(source)
    if sizes is None:
        return None
    if node.op_type in ("Cast", "Identity", "Slice", "Split"):
        return axis
    if node.op_type == "Transpose":
        turned = node.attributes.get_ints("perm") or tuple(reversed(range(len(shape))))
        return turned[axis]
    index = input_of(node, 1)
    if node.op_type == "Gather" and index is not None and static_shape(index) == ():
        return axis + (axis >= node.attributes.get_int("axis", 0) % len(sizes))
    named = fixed_integers(node, 1)
    if node.op_type == "Squeeze" and named is not None:
        gone = {one % len(sizes) for one in named}
        return [place for place in range(len(sizes)) if place not in gone][axis]
    if node.op_type == "Unsqueeze" and named is not None:
        new = {one % len(shape) for one in named}
        return None if axis in new else sum(place not in new for place in range(axis))
    return None
