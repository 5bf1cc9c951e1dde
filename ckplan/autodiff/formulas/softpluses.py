"""Softpluses that torch's exporter writes with a threshold, made the operator alone again.

``torch.nn.Softplus`` returns x itself where beta x is above a threshold, 20 if nothing is said, so that exp does not
overflow (https://pytorch.org/docs/stable/generated/torch.nn.Softplus.html). The exporter writes that down: a
comparison, the Softplus, and a Where between its result and x. onnxruntime's kernel does not overflow, and what it
returns there is x, to the last bit in single precision; without the choice neither the mask is kept nor a second tensor
of the size of x, and the gradient is one product in place of four passes.
"""

from __future__ import annotations

import math
from collections.abc import Container

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.formulas.replacement import is_private, replace_formula
from ckplan.autodiff.reading import dtype_of, is_floating, shape_of
from ckplan.operators.matching import is_op


def join_softpluses(op: Builder, held: Container[ir.Value]) -> None:
    """Leave out the choice of x above a threshold where a Softplus makes no difference to it.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated: none of them is inside.
    """
    for choice in [node for node in op.graph if is_op(node, "Where")]:
        condition, x, softened = choice.inputs
        maker = None if softened is None else softened.producer()
        comparison = None if condition is None else condition.producer()
        if x is None or maker is None or not is_op(comparison, "Greater") or not is_floating(x):
            continue
        argument, factor = _softened(op, maker)
        if argument is None or comparison.inputs[0] is not argument or shape_of(argument) != shape_of(x):
            continue
        is_same = argument is x if factor is None else _is_multiple(op, argument, x, factor)
        limit = op.number_of(comparison.inputs[1])
        nodes = {comparison, maker, choice}
        if is_same and limit is not None and _is_beyond(limit, x) and is_private(nodes, choice, held):
            replace_formula(op.graph, nodes, choice, maker.op_type, [v for v in maker.inputs if v is not None], [])


def _softened(op: Builder, maker: ir.Node) -> tuple[ir.Value | None, float | None]:
    """What the Softplus is of that a node is, or divides by a number, and that number; None if it is no such node."""
    factor = None
    node: ir.Node | None = maker
    if is_op(maker, "Div"):
        factor = op.number_of(maker.inputs[1])
        node = None if maker.inputs[0] is None or factor is None else maker.inputs[0].producer()
    return (node.inputs[0] if is_op(node, "Softplus") else None), factor


def _is_multiple(op: Builder, argument: ir.Value, x: ir.Value, factor: float) -> bool:
    """Whether a value is another one times a number."""
    node = argument.producer()
    if not is_op(node, "Mul"):
        return False
    return any(node.inputs[i] is x and op.number_of(node.inputs[1 - i]) == factor for i in range(2))


def _is_beyond(limit: float, x: ir.Value) -> bool:
    """Whether what a Softplus adds to a number above the limit is lost in rounding."""
    return limit > 0 and math.exp(-limit) / limit <= float(np.finfo(dtype_of(x)).eps) / 2
