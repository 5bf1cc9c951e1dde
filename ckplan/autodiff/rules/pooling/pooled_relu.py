"""A Relu that a MaxPool alone reads, differentiated with it: its mask is that of the maxima, which are fewer.

An element that a gradient goes to is as large as its maximum, so where that is positive, the Relu passes the gradient
on; what goes to one of the zeros of a window without a positive element stops there. Masked by the maxima a gradient
needs no mask behind them.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.reading import is_read_once, required_input, size_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.elementwise.activations import masked
from ckplan.autodiff.rules.pooling.pool import to_maxima
from ckplan.operators.matching import is_op, made_by


def outline_pooled_relus(op: Builder, held: Container[ir.Value]) -> None:
    """Put composites in the place of the pairs of Relu and MaxPool that can be differentiated as one.

    Args:
        op: builder of the forward graph.
        held: values that stay those of the graph.
    """
    for pool in list(op.graph):
        if not is_op(pool, "MaxPool") or len(pool.outputs) > 1:
            continue
        x, y = required_input(pool, 0), pool.outputs[0]
        relu = made_by(x, "Relu")
        if relu is not None and x not in held and is_read_once(x) and size_of(y) < size_of(x):
            outline(op, "PooledRelu", [relu, pool], relu.inputs, [y, x], pool.attributes)


@rule("PooledRelu", domain=DOMAIN)
def pooled_relu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the maxima, and what the Relu makes."""
    y, x = node.outputs[:2]
    assert dy[0] is not None
    return [to_maxima(op, node, x, masked(op, dy[0], y))]
