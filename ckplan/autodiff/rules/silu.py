"""A value times its own sigmoid (SiLU, or Swish), which exporters write as two nodes, differentiated as one.

Alone, the product needs x and s = sigmoid(x), and the sigmoid needs s: two tensors are kept beside the result y, which
the next layer keeps. By s and y alone

    dx = dy (s + y (1 - s)),

so that x is kept for nothing.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.reading import is_floating
from ckplan.autodiff.registry import rule
from ckplan.operators.matching import is_op


def outline_silus(op: Builder, targets: Container[ir.Value] = ()) -> None:
    """Put composites in the place of the pairs of Sigmoid and Mul that can be differentiated as one.

    Args:
        op: builder of the forward graph.
        targets: what is differentiated; no such value is a pair's inner value.
    """
    for product in list(op.graph):
        if not is_op(product, "Mul") or len(product.inputs) != 2:
            continue
        for gate, x in (product.inputs, product.inputs[::-1]):
            sigmoid = gate.producer() if gate is not None else None
            if not is_op(sigmoid, "Sigmoid") or sigmoid.inputs[0] is not x:
                continue
            assert gate is not None
            if len(gate.uses()) == 1 and gate not in targets and not gate.is_graph_output() and is_floating(gate):
                outline(op, "SiLU", [sigmoid, product], [x], [product.outputs[0], gate])
            break


@rule("SiLU", domain=DOMAIN)
def silu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads s and y."""
    y, gate = node.outputs[:2]
    return [op.Mul(dy[0], op.Add(gate, op.Mul(y, op.Sub(1.0, gate))))]
