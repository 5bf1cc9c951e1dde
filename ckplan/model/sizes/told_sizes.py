"""Sizes of inputs that the weights beside them tell, where a file leaves them open: the features of a linear layer."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.operators.matching import input_of, is_op

_AS_IT_IS = ("Cast", "Dropout", "Identity")
_SCALED = ("Add", "Div", "Mul", "Sub")


def told_by_weights(value: ir.Value, rank: int) -> dict[int, tuple[int, str]]:
    """Sizes of an input, by axis, with the name of the weight that tells each.

    Layers may read the input as it is, cast, or scaled and shifted by constants. The leading axis is a batch, and no
    weight tells it.

    Args:
        value: the input of a graph whose weights are initializers.
        rank: of the input.
    """
    found: dict[int, tuple[int, str]] = {}
    for use in value.uses():
        node = use.node
        if is_op(node, _AS_IT_IS) and use.idx == 0:
            told = told_by_weights(node.outputs[0], rank)
        elif is_op(node, _SCALED) and (other := node.inputs[1 - use.idx]) is not None and other.is_initializer():
            told = _told_by_scale(other, rank) | told_by_weights(node.outputs[0], rank)
        else:
            told = _told_by_layer(node, rank) if use.idx == 0 else {}
        found = {axis: size for axis, size in told.items() if 0 < axis < rank} | found
    return found


def _told_by_layer(node: ir.Node, rank: int) -> dict[int, tuple[int, str]]:
    """What the weight of a layer tells of its input."""
    weight = input_of(node, 1)
    shape = None if weight is None or not weight.is_initializer() else static_shape(weight)
    if weight is None or shape is None or len(shape) < 2:
        return {}
    if is_op(node, "Gemm") and not node.attributes.get_int("transA", 0):
        return {1: (shape[1 if node.attributes.get_int("transB", 0) else 0], str(weight.name))}
    if is_op(node, "Conv"):
        return {1: (shape[1] * node.attributes.get_int("group", 1), str(weight.name))}
    return {rank - 1: (shape[-2], str(weight.name))} if is_op(node, "MatMul") else {}


def _told_by_scale(scale: ir.Value, rank: int) -> dict[int, tuple[int, str]]:
    """What numbers that an input is scaled or shifted by tell of its last axis: one for each feature."""
    shape = static_shape(scale)
    told = shape is not None and 0 < len(shape) <= rank and shape[-1] > 1
    return {rank - 1: (shape[-1], str(scale.name))} if told and shape is not None else {}
