"""Gradient of the rotation of pairs by angles that depend on the position."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import required_input
from ckplan.autodiff.registry import rule
from ckplan.operators.matching import input_of


@rule("RotaryEmbedding", since=23, by_definition=[1, 2])
def rotary_embedding(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The rotation back."""
    cos, sin = (required_input(node, index) for index in (1, 2))
    known = op.constant_of(sin)
    back = op.Neg(sin) if known is None else op.constant(-known)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return [op.RotaryEmbedding(dy[0], cos, back, input_of(node, 3), **attributes)]
