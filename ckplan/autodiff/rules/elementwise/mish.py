"""Mish, x tanh(softplus(x)) (Misra, arXiv:1908.08681), as one node or as the three that exporters write.

With e = e^x and n = e (e + 2), tanh(softplus(x)) is n / (n + 2), which takes a fifth of the time. The derivative is

    n / (n + 2) + 4 x (n - e) / (n + 2)^2,

so that x alone is kept, where Tanh and the product would keep two tensors. Beyond the limit the fraction is 1.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN, become, outline
from ckplan.autodiff.formulas.replacement import is_private
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import dtype_of, required_input
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.elementwise.number_blocks import by_blocks
from ckplan.operators.matching import is_op

_LIMIT = 20.0
_LIMIT_OF_GRADIENT = 19.0
"""Another one than in the forward pass: of two equal powers onnxruntime makes one, and holds it in between."""

_LIMIT_OF_HALF = 4.5
"""Beyond it the fraction rounds to 1, and up to it n times x is a number."""
_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def outline_mishes(op: Builder, held: Container[ir.Value] = ()) -> None:
    """Compute each Mish by a power, and put a composite in its place.

    Args:
        op: builder of the forward graph.
        held: what is differentiated, or whose gradient is wanted; no such value is inside of a composite.
    """
    for product in list(op.graph):
        found = _written(product, held)
        if found is None:
            continue
        x, before = found
        with op.scope(str(product.name), "forward", before=product), op.recording() as nodes:
            n, _ = _powers(op, x, _LIMIT)
            bend = op.Div(n, op.Add(n, 2.0))
        become(product, ("", "Mul", ""), [x, bend], [])
        discard(op.graph, reversed(before))
        outline(op, "Mish", [*nodes, product], [x], [product.outputs[0]])


def _written(product: ir.Node, held: Container[ir.Value]) -> tuple[ir.Value, list[ir.Node]] | None:
    """What a Mish is of that a node makes, and the nodes before that one; None if it makes another value."""
    if not product.outputs or product.outputs[0].dtype not in _TYPES:
        return None
    if is_op(product, "Mish"):
        return required_input(product, 0), []
    if not is_op(product, "Mul"):
        return None
    for bend, x in (product.inputs, product.inputs[::-1]):
        tanh = None if bend is None else bend.producer()
        softplus = required_input(tanh, 0).producer() if is_op(tanh, "Tanh") else None
        if tanh is not None and x is not None and is_op(softplus, "Softplus") and softplus.inputs[0] is x:
            return (x, [softplus, tanh]) if is_private({softplus, tanh, product}, product, held) else None
    return None


def _powers(op: Builder, x: ir.Value, limit: float) -> tuple[ir.Value, ir.Value]:
    """e^x (e^x + 2) and e^x, of an x that is cut at a limit."""
    power = op.Exp(op.Clip(x, None, limit))
    return op.Mul(power, op.Add(power, 2.0)), power


@rule("Mish", domain=DOMAIN)
@rule("Mish")
def mish(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads x."""
    assert dy[0] is not None
    return [by_blocks(op, node, _gradient, required_input(node, 0), dy[0])]


def _gradient(op: Builder, x: ir.Value, g: ir.Value) -> ir.Value:
    limit = _LIMIT_OF_GRADIENT if dtype_of(x).itemsize >= 4 else _LIMIT_OF_HALF
    n, power = _powers(op, x, limit)
    # Cut, for a large x would be more than the quotient makes up for; by another operator than before, so that what it
    # made need not wait here. A kernel of two operands takes a third tensor: in this order five are there at most.
    bend = op.Mul(op.Sub(n, power), op.Min(x, limit))
    whole = op.Add(n, 2.0)
    bend = op.Mul(op.Div(bend, whole), 4.0)
    return op.Mul(g, op.Div(op.Add(bend, n), whole))
