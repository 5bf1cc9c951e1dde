"""What stands before a Transpose, and behind it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.autodiff.reading import attr_ints, shape_of
from ckplan.model.traits import is_backward
from ckplan.operators.matching import is_op


def before_transpose(value: ir.Value) -> tuple[ir.Value, tuple[int, ...]]:
    """What a gradient was transposed from, and the axes of that in the order of the gradient's.

    A value of the forward pass is itself: what it was made of need not be there in the backward pass.
    """
    maker = value.producer()
    if maker is None or not is_backward(maker):
        return value, tuple(range(len(shape_of(value))))
    return read_by_transpose(maker) or (value, tuple(range(len(shape_of(value)))))


def read_past(value: ir.Value) -> None:
    """Let the Transposes that read what a Transpose makes read what that one reads."""
    maker = value.producer()
    found = None if maker is None else read_by_transpose(maker)
    if found is None:
        return
    source, perm = found
    for reader in value.consumers():
        behind = read_by_transpose(reader)
        if behind is not None:
            reader.replace_input_with(0, source)
            reader.attributes["perm"] = ir.AttrInt64s("perm", then(perm, behind[1]))


def then(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """The order of axes that one order and then another come to."""
    return [first[axis] for axis in second]


def read_by_transpose(node: ir.Node) -> tuple[ir.Value, tuple[int, ...]] | None:
    """What a Transpose reads, and its order of the axes; None of another operator."""
    value = node.inputs[0] if node.inputs else None
    if not is_op(node, "Transpose") or value is None:
        return None
    return value, attr_ints(node, "perm") or tuple(reversed(range(len(shape_of(value)))))
