"""Derivatives of a loss by values in which it is linear: they are known before these values are.

The sum or mean of the losses of samples, masked and weighed in whatever way by what is known of the targets, has
derivatives by the losses of the samples that do not depend on these. A loss head in chunks makes gradients of a chunk
with them at once, while its logits are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import FORWARD, Builder
from ckplan.autodiff.control_flow.bodies import BodyBuilder
from ckplan.autodiff.engine import backpropagate, wanted_values
from ckplan.autodiff.paths import depends, differentiable_inputs, discard, entry_of
from ckplan.autodiff.reading import dtype_of, shape_of, size_of
from ckplan.errors import UnsupportedOperatorsError


@dataclass(frozen=True)
class KnownSlopes:
    """What a loss passes back to some values.

    Attributes:
        loss: a value of one element that a gradient reaches from behind.
        slopes: the gradient of each of the values in its shape where that of the loss is one; None where there is none.
    """

    loss: ir.Value
    slopes: tuple[ir.Value | None, ...]


def known_slopes(
    op: Builder, values: Sequence[ir.Value], targets: Mapping[ir.Value, ir.Value | None]
) -> KnownSlopes | None:
    """Emit the derivatives of what values reach, if they are known before the values are, in front of their maker.

    Args:
        op: builder of the forward graph.
        values: floating-point values of it.
        targets: what the reverse sweep will start from, with the gradients that are given; None stands for ones.

    Returns:
        None where they depend on the values, or where more than one gradient that is not known comes from behind.
    """
    inner = BodyBuilder(op, op.graph)
    with inner.recording() as nodes:
        losses = _ends(op, values, targets)
        if not losses:
            return None
        seeds = {loss: inner.constant(np.ones(shape_of(loss), dtype_of(loss))) for loss in losses}
        try:
            found = backpropagate(inner, values, seeds)
        except UnsupportedOperatorsError:
            found = {}
    for node in nodes:
        node.meta.pop(FORWARD, None)
    if not found or any(depends(slope, values) for slope in found.values()):
        discard(op.graph, reversed(nodes))
        return None
    maker = values[0].producer()
    assert maker is not None
    op.graph.remove(nodes)
    op.graph.insert_before(maker, nodes)
    op.graph.sort()  # what weighs the losses may be made later than the values were
    return KnownSlopes(losses[0], tuple(found.get(value) for value in values))


def _ends(op: Builder, values: Sequence[ir.Value], targets: Mapping[ir.Value, ir.Value | None]) -> list[ir.Value]:
    """The first value of one element that all gradients of some values pass; else the targets, if their slopes are one.

    Of these the first is one that nothing else passes a gradient to.
    """
    between = wanted_values(BodyBuilder(op, op.graph), values, targets)
    left = dict.fromkeys((value for value in between if value in targets), 1)
    steps = []
    for node in op.graph:
        inputs = differentiable_inputs(node, entry_of(node, op.opset_imports)) & between
        if inputs and not between.isdisjoint(node.outputs):
            steps.append((node, inputs))
            for value in inputs:
                left[value] = left.get(value, 0) + 1
    unread = {value for value in values if left.get(value)}
    for node, inputs in steps:
        for value in inputs:
            left[value] -= 1
        unread = {value for value in (*unread, *node.outputs) if left.get(value)}
        if len(unread) == 1 and not unread.isdisjoint(node.outputs) and size_of(next(iter(unread))) == 1:
            return list(unread)
    ends = [value for value, seed in targets.items() if value in unread and seed is None]
    if len(ends) < len(unread):
        return []
    return sorted(ends, key=lambda value: any(value in inputs for _, inputs in steps))
