"""Group normalisations as exporters write them, differentiated as one.

torch writes a GroupNormalization (Wu and He, arXiv:1803.08494) as an InstanceNormalization of the groups by ones and
zeros, which is brought back into the shape of x, multiplied by the scale, and shifted. Node by node that keeps x for
the normalisation and what it makes for the gradient of the scale, beside the result. All gradients are found from x and
the statistics of the groups, as for the operator (https://onnx.ai/onnx/operators/onnx__GroupNormalization.html).
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.reading import attr_float, required_input, shape_of, size_of, sole_reader
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.normalisation.batch_norm import EPSILON, by_own_statistics
from ckplan.operators.matching import is_op

_OPERATOR = "AffineGroupNormalization"


def outline_group_norms(op: Builder, held: Container[ir.Value]) -> None:
    """Put composites in the place of group normalisations that are written with an InstanceNormalization.

    Args:
        op: builder of the forward graph.
        held: what is differentiated, or whose gradient is wanted; no such value is inside of a composite.
    """
    for node in [node for node in op.graph if is_op(node, "InstanceNormalization")]:
        found = _written(op, node, held)
        if found is not None:
            nodes, scale, bias = found
            epsilon = attr_float(node, "epsilon", EPSILON)
            outline(op, _OPERATOR, nodes, [node.inputs[0], scale, bias], nodes[-1].outputs, {"epsilon": epsilon})


def _written(op: Builder, norm: ir.Node, held: Container[ir.Value]) -> tuple[list[ir.Node], ir.Value, ir.Value] | None:
    """The nodes of the group normalisation that begins with an InstanceNormalization, its scale and its bias.

    None if there is none.
    """
    ones, zeros = (op.constant_of(value) for value in norm.inputs[1:3])
    if ones is None or zeros is None or not (ones == 1).all() or zeros.any():
        return None
    nodes = [norm]
    for operator in ("Reshape", "Mul", "Add"):
        value = nodes[-1].outputs[0]
        reader = None if value in held else sole_reader(value)
        if not is_op(reader, operator):
            return None
        nodes.append(reader)
    _, reshaped, scaled, shifted = nodes
    if reshaped.inputs[0] is not norm.outputs[0]:
        return None
    scale, bias = (_other(node, before.outputs[0]) for node, before in ((scaled, reshaped), (shifted, scaled)))
    samples, groups, *_ = shape_of(norm.outputs[0])
    whole = shape_of(reshaped.outputs[0])
    if len(whole) < 2 or whole[0] != samples or whole[1] % groups:
        return None
    if not (_is_by_channel(scale, whole) and _is_by_channel(bias, whole)):
        return None
    return nodes, scale, bias


def _other(node: ir.Node, value: ir.Value) -> ir.Value:
    """What a node with two inputs reads beside one of them."""
    return required_input(node, 1 if node.inputs[0] is value else 0)


def _is_by_channel(value: ir.Value, whole: tuple[int, ...]) -> bool:
    """Whether a value has one number for each channel of (N, C, ...), and is stretched over the rest."""
    shape = shape_of(value)
    return (*[1] * (len(whole) - len(shape)), *shape) == (1, whole[1], *[1] * (len(whole) - 2))


@rule(_OPERATOR, domain=DOMAIN)
def affine_group_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads x in its groups, (N, G, ...)."""
    x, scale, bias = (required_input(node, index) for index in range(3))
    assert dy[0] is not None
    samples, groups, *_ = shape_of(x)
    channels = size_of(scale) // groups
    flat = [samples, groups, channels, size_of(x) // (samples * groups * channels) if size_of(x) else 0]
    return by_own_statistics(op, (x, scale, bias), dy[0], flat, [2, 3], attr_float(node, "epsilon", EPSILON))
