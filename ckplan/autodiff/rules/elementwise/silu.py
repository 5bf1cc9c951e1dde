"""A value times its own sigmoid (SiLU, or Swish), which exporters write as two nodes, differentiated as one.

Alone, the product needs x and s = sigmoid(x), and the sigmoid needs s: two tensors are kept beside the result y, which
the next layer keeps. By s and y alone

    dx = dy (s + y (1 - s)),

so that x is kept for nothing. With a slope k in three nodes, y = x sigmoid(k x), as the quick GELU of CLIP with 1.702
(Hendrycks and Gimpel, arXiv:1606.08415), it is dx = dy (s + k y (1 - s)).

Where the next layer is a product with a gate u, z = y u (SwiGLU: Shazeer, "GLU Variants Improve Transformer",
arXiv:2002.05202), all three are one. By the gradient of u, which is made anyway,

    du = dz y,    dx = u (k du + s (dz - k du)),

which is a pass and a tensor less than the gradient of y and what is made of it.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.reading import attr_float, is_floating, is_read_once, required_input, shape_of, sole_reader
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.elementwise.number_blocks import by_blocks
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
            if gate is None or x is None or not is_op(sigmoid, "Sigmoid"):
                continue
            scaled = _scaled(op, x, required_input(sigmoid, 0), held)
            if scaled is None:
                continue
            if is_read_once(gate) and gate not in held and is_floating(gate):
                before, slope = scaled
                _outline(op, x, [*before, sigmoid, product], slope, held)
            break


def _scaled(
    op: Builder, x: ir.Value, argument: ir.Value, held: Container[ir.Value]
) -> tuple[list[ir.Node], float] | None:
    """The node by which x is multiplied before it goes into a Sigmoid, if any is, and the number; None for others."""
    if argument is x:
        return [], 1.0
    node = argument.producer()
    if not is_op(node, "Mul") or x not in node.inputs or argument in held or not is_read_once(argument):
        return None
    slope = op.number_of(next((value for value in node.inputs if value is not x), None))
    return None if slope is None or shape_of(argument) != shape_of(x) else ([node], slope)


def _outline(op: Builder, x: ir.Value, nodes: list[ir.Node], slope: float, held: Container[ir.Value]) -> None:
    """Put a composite in the place of nodes, of which the last two are a Sigmoid and a product."""
    *_, sigmoid, product = nodes
    gate, y = sigmoid.outputs[0], product.outputs[0]
    attributes = {"slope": slope}
    reader = None if y in held else sole_reader(y)
    if is_op(reader, "Mul"):
        (other,) = (value for value in reader.inputs if value is not None and value is not y)
        if shape_of(other) == shape_of(y):
            outline(op, "GatedSiLU", [*nodes, reader], [x, other], [reader.outputs[0], gate, y], attributes)
            return
    outline(op, "SiLU", nodes, [x], [y, gate], attributes)


@rule("SiLU", domain=DOMAIN)
def silu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads s and y."""
    y, gate, slope, g = *node.outputs[:2], attr_float(node, "slope", 1.0), dy[0]
    assert g is not None

    def formula(op: Builder, y: ir.Value, gate: ir.Value, g: ir.Value) -> ir.Value:
        return op.Mul(g, op.Add(gate, op.Mul(op.scale(y, slope), op.Sub(1.0, gate))))

    return [by_blocks(op, node, formula, y, gate, g)]


@rule("GatedSiLU", domain=DOMAIN)
def gated_silu(op: Builder, node: ir.Node, dz: Gradients) -> Gradients:
    """Reads s, y and u."""
    x, u = required_input(node, 0), required_input(node, 1)
    gate, y = node.outputs[1:3]
    du = op.Mul(dz[0], y)
    dx = None
    if op.wants(x):
        steep = op.scale(du, attr_float(node, "slope", 1.0))
        dx = op.Mul(op.Add(op.Mul(op.Sub(dz[0], steep), gate), steep), u)
    return [dx, du if op.wants(u) else None]
