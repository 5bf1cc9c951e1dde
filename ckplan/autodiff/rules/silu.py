"""A value times its own sigmoid (SiLU, or Swish), which exporters write as two nodes, differentiated as one.

Alone, the product needs x and s = sigmoid(x), and the sigmoid needs s: two tensors are kept beside the result y, which
the next layer keeps. By s and y alone

    dx = dy (s + y (1 - s)),

so that x is kept for nothing.

Where the next layer is a product with a gate u, z = y u (SwiGLU: Shazeer, "GLU Variants Improve Transformer",
arXiv:2002.05202), all three are one. By the gradient of u, which is made anyway,

    du = dz y,    dx = u (du + s (dz - du)),

which is a pass and a tensor less than the gradient of y and what is made of it.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.reading import is_floating, is_read_once, required_input, shape_of, sole_reader
from ckplan.autodiff.registry import rule
from ckplan.operators.matching import is_op


def outline_silus(op: Builder, held: Container[ir.Value] = ()) -> None:
    """Put composites in the place of the Sigmoids and products that can be differentiated as one.

    Args:
        op: builder of the forward graph.
        held: what is differentiated, or whose gradient is wanted; no such value is inside of a composite.
    """
    for product in list(op.graph):
        if not is_op(product, "Mul") or len(product.inputs) != 2:
            continue
        for gate, x in (product.inputs, product.inputs[::-1]):
            sigmoid = gate.producer() if gate is not None else None
            if not is_op(sigmoid, "Sigmoid") or sigmoid.inputs[0] is not x:
                continue
            assert gate is not None
            if is_read_once(gate) and gate not in held and is_floating(gate):
                _outline(op, sigmoid, product, held)
            break


def _outline(op: Builder, sigmoid: ir.Node, product: ir.Node, held: Container[ir.Value]) -> None:
    x, gate, y = sigmoid.inputs[0], sigmoid.outputs[0], product.outputs[0]
    reader = None if y in held else sole_reader(y)
    if is_op(reader, "Mul"):
        (other,) = (value for value in reader.inputs if value is not None and value is not y)
        if shape_of(other) == shape_of(y):
            outline(op, "GatedSiLU", [sigmoid, product, reader], [x, other], [reader.outputs[0], gate, y])
            return
    outline(op, "SiLU", [sigmoid, product], [x], [y, gate])


@rule("SiLU", domain=DOMAIN)
def silu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads s and y."""
    y, gate = node.outputs[:2]
    return [op.Mul(dy[0], op.Add(gate, op.Mul(y, op.Sub(1.0, gate))))]


@rule("GatedSiLU", domain=DOMAIN)
def gated_silu(op: Builder, node: ir.Node, dz: Gradients) -> Gradients:
    """Reads s, y and u."""
    x, u = required_input(node, 0), required_input(node, 1)
    gate, y = node.outputs[1:3]
    du = op.Mul(dz[0], y)
    dx = op.Mul(op.Add(op.Mul(op.Sub(dz[0], du), gate), du), u) if op.wants(x) else None
    return [dx, du if op.wants(u) else None]
