"""Scales of a layer's channels, as ConvNeXt and transformers of images have them, taken into the weight before them.

    (x W + b) s = x (W s) + b s

So neither what the layer makes is multiplied nor its gradient, nor is it kept for the gradient of s, which is made of
those of the scaled weight and bias. That takes as many passes, over the weight: it is done where what is multiplied by
the weight has more rows than that. The numbers are the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import attr_ints, is_read_once, required_input, shape_of, size_of
from ckplan.model.inference.infer import static_shape
from ckplan.model.rewiring import put_in_place
from ckplan.operators.matching import input_of, is_op, made_by

#: So many times the rows of the weight what is multiplied by it has to have.
ROWS = 2

#: A scale is often a millionth at first, and a weight by that nothing in half precision.
_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


class _Layer(NamedTuple):
    """What a scale is taken into.

    Attributes:
        made: what the layer makes, as it is scaled.
        scale: the initializer, of a number for each channel.
        product: the MatMul by the weight.
        shift: the Add of the bias, None without one.
        bias: which input of that is the bias.
    """

    made: ir.Value
    scale: ir.Value
    product: ir.Node
    shift: ir.Node | None
    bias: int


def scale_weights(op: Builder, wanted: Container[ir.Value], held: Container[ir.Value]) -> None:
    """Let weights and biases be scaled in the place of what they make.

    Args:
        op: builder of the forward graph.
        wanted: what gradients are asked for.
        held: values that have to stay as they are.
    """
    for node in list(op.graph):
        if not is_op(node, "Mul") or node.outputs[0].dtype not in _TYPES or node.outputs[0] in held:
            continue
        for shown, made in (node.inputs, node.inputs[::-1]):
            layer = _layer_of(shown, made, wanted, held)
            if layer is not None:
                _scale(op, node, layer)
                put_in_place(node, layer.made)
                break


def _layer_of(
    shown: ir.Value | None, made: ir.Value | None, wanted: Container[ir.Value], held: Container[ir.Value]
) -> _Layer | None:
    """The layer whose result one operand of a Mul is, if the other one is a scale that can be taken into it."""
    scale = stored(shown, ("Reshape", "Squeeze", "Unsqueeze"))
    if scale is None or shown is None or made is None or static_shape(made) is None:
        return None
    found = _before_transposes(made, _axis_of(shape_of(shown), shape_of(made)), held)
    if found is None:
        return None
    shift = made_by(found, "Add")
    bias = None if shift is None else bias_of(shift, size_of(scale))
    if shift is not None and bias is not None:
        found = required_input(shift, 1 - bias)
    product = made_by(found, "MatMul")
    if product is None or not _is_inner(found, held):
        return None
    x, weight = required_input(product, 0), required_input(product, 1)
    parameter = stored(weight, ("Transpose",))
    if parameter is None or len(shape_of(weight)) != 2 or (scale in wanted and parameter not in wanted):
        return None
    if size_of(x) < ROWS * shape_of(x)[-1] * shape_of(weight)[0]:
        return None
    return _Layer(made, scale, product, None if bias is None else shift, bias or 0)


def stored(value: ir.Value | None, views: Sequence[str] = ()) -> ir.Value | None:
    """The initializer that a value is, or that one of some operators shows in another form."""
    view = made_by(value, views)
    source = value if view is None else input_of(view, 0)
    return source if source is not None and source.is_initializer() else None


def bias_of(node: ir.Node, size: int) -> int | None:
    """Which input of an Add is an initializer of so many numbers; None if there is none."""
    if not is_op(node, "Add"):
        return None
    biases = [stored(value) for value in node.inputs]
    return next((i for i, bias in enumerate(biases) if bias is not None and shape_of(bias) == (size,)), None)


def _axis_of(scale: Sequence[int], scaled: Sequence[int]) -> int | None:
    """The one axis along which a scale has more than one number, as many as what it scales; None if there is none."""
    axes = [axis for axis, size in enumerate(scale, len(scaled) - len(scale)) if size > 1]
    return axes[0] if len(axes) == 1 and axes[0] >= 0 and max(scale) == scaled[axes[0]] else None


def _before_transposes(value: ir.Value, axis: int | None, held: Container[ir.Value]) -> ir.Value | None:
    """What Transposes make a value of, if the axis is its last one; None where anything else reads one of these."""
    while axis is not None and _is_inner(value, held):
        turn = made_by(value, "Transpose")
        if turn is None:
            return value if axis == len(shape_of(value)) - 1 else None
        perm = attr_ints(turn, "perm") or tuple(reversed(range(len(shape_of(value)))))
        axis, value = perm[axis], required_input(turn, 0)
    return None


def _is_inner(value: ir.Value, held: Container[ir.Value]) -> bool:
    """Say whether a value may be scaled, as one node alone reads it."""
    return value not in held and is_read_once(value)


def _scale(op: Builder, node: ir.Node, layer: _Layer) -> None:
    """Emit the products by a scale, and let a layer read them."""
    with op.scope(str(node.name), "forward", before=layer.product):
        scale = op.reshape(layer.scale, [size_of(layer.scale)])
        layer.product.replace_input_with(1, op.Mul(required_input(layer.product, 1), scale))
        if layer.shift is not None:
            bias = required_input(layer.shift, layer.bias)
            layer.shift.replace_input_with(layer.bias, op.Mul(bias, scale))
