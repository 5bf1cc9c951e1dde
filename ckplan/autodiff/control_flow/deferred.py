"""Gradients of captured weights that are computed outside the loop, from all steps at once.

The gradient of a weight in a matrix product, or of a table that rows are picked from, is a sum over the steps. Instead
of carrying the sum, a step can output the gradient of the product, and one product over all steps outside gives the
gradient of the weight. That is faster, and for a table, of which a step touches a few rows, much so; but it takes as
many rows as there are steps. It is done where these take less than what carrying the sum does: the first sum, and two
buffers of a Scan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import dims_of, new_value, origin
from ckplan.autodiff.control_flow.recurrence import Recurrence, Track
from ckplan.autodiff.paths import entry_of
from ckplan.autodiff.reading import attr_int, shape_of
from ckplan.model.node_reads import captured
from ckplan.operators.matching import is_op

_CARRIED = 3
_PLACES = {"MatMul": (1, 0), "Gather": (0, 1)}
"""Where the weight and the operand of the step stand among the inputs."""


@dataclass(frozen=True)
class Deferred:
    """A node of the forward body whose weight gets its gradient outside.

    Attributes:
        node: the node.
        weight: what it reads from outside the body.
        operand: what it reads of the step.
        reverse: whether the sequence of the operand runs backwards.
    """

    node: ir.Node
    weight: ir.Value
    operand: ir.Value
    reverse: bool

    @property
    def product(self) -> ir.Value:
        """What the node makes, whose gradient a step outputs."""
        return self.node.outputs[0]


def deferred_products(loop: Recurrence, wanted: Sequence[ir.Value]) -> list[Deferred]:
    """Choose the nodes of a body whose weights get their gradients outside.

    Args:
        loop: the recurrence.
        wanted: the captured values that need gradients.
    """
    if not loop.exact:
        return []
    nodes = list(loop.body)
    nested = {value for node in nodes for value in captured(node)}
    made = {output for node in nodes for output in node.outputs} | set(loop.before)
    rows = {inner: track for inner, _, track in loop.sequences}
    there = {origin(inner) for inner, *_ in loop.results}
    chosen: list[Deferred] = []
    for weight in wanted:
        readers = [node for node in nodes if weight in node.inputs]
        found = [_deferred(node, weight, made, rows) for node in readers]
        products = [one for one in found if one is not None]
        if weight in nested or not products or len(products) < len(found):
            continue
        cost = 0
        for one in products:
            cost += loop.steps * _bytes(one.product)
            if one.operand not in rows and origin(one.operand) not in there:
                cost += loop.steps * _bytes(one.operand)
        if cost <= _CARRIED * _bytes(weight):
            chosen.extend(products)
    return chosen


def _deferred(node: ir.Node, weight: ir.Value, made: set[ir.Value], rows: dict[ir.Value, Track]) -> Deferred | None:
    if not is_op(node, _PLACES):
        return None
    place, other = _PLACES[node.op_type]
    operand = node.inputs[other]
    if node.inputs[place] is not weight or operand is None or operand is weight:
        return None
    if node.op_type == "MatMul" and len(dims_of(weight)) != 2:
        return None
    if node.op_type == "Gather" and attr_int(node, "axis", 0) % len(dims_of(weight)):
        return None
    track = rows.get(operand, Track(0))
    if (operand not in made and operand not in rows) or track.axis:
        return None
    return Deferred(node, weight, operand, track.reverse)


def _bytes(value: ir.Value) -> int:
    return 0 if value.dtype is None else math.ceil(math.prod(dims_of(value)) * value.dtype.itemsize)


def weight_gradient(op: Builder, one: Deferred, operands: ir.Value, gradients: ir.Value) -> ir.Value | None:
    """Return a weight's gradient from all steps.

    Args:
        op: builder of the graph around the loop.
        one: the node of the forward body.
        operands: its operand of all steps, [steps, ...].
        gradients: the gradient of its result of all steps, [steps, ...].
    """
    place, other = _PLACES[one.node.op_type]
    inputs: list[ir.Value] = [one.weight, one.weight]
    inputs[other] = operands
    result = new_value(op, f"{one.node.name}/steps", gradients.dtype, shape_of(gradients))
    # A node over all steps: it only tells the rule what to differentiate, and is in no graph.
    node = ir.Node("", one.node.op_type, inputs, one.node.attributes.values(), outputs=[result], name=one.node.name)
    entry = entry_of(node, op.opset_imports)
    assert entry is not None
    wanted, factor = op.wanted, op.factor
    op.wanted, op.factor = {one.weight}, 1.0
    try:
        return list(entry.function(op, node, [gradients]))[place]
    finally:
        op.wanted, op.factor = wanted, factor
        for index in range(len(inputs)):
            node.replace_input_with(index, None)
