"""Gradient of what losses read of the softmax of logits; see `ckplan.autodiff.losses.softmax_statistics`."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN
from ckplan.autodiff.idioms.row_factors import Offsets, with_row_factors
from ckplan.autodiff.losses.softmax_statistics import OPERATOR, derivatives_of, shares_of, slopes_of, wanted_of
from ckplan.autodiff.losses.statistics_head import LOSS
from ckplan.autodiff.reading import attr_int, required_input, shape_of, size_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.losses.criteria import is_one
from ckplan.autodiff.rules.losses.linear_cross_entropy import Head, by_layer, made_at_once
from ckplan.operators.matching import input_of


@rule(OPERATOR, domain=DOMAIN, leading=1)
def softmax_statistics(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the log-probabilities, and the normaliser where its square is in the loss."""
    wanted = wanted_of(node)
    numbers, logarithms = node.outputs[: wanted.count], node.outputs[wanted.count]
    by = derivatives_of(wanted, dy[: wanted.count])
    slopes = slopes_of(op, logarithms, wanted, by, numbers)
    assert slopes.factors is not None
    return [with_row_factors(op, slopes.matrix, slopes.factors, slopes.offsets)]


@rule("OnePassSoftmaxStatistics", domain=DOMAIN, leading=3)
def one_pass_softmax_statistics(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """All gradients are there, for a loss whose own gradient is one."""
    made = node.outputs[attr_int(node, "numbers", 0) :]
    return made_at_once(op, node, _layer(node), made, _slope(op, node))


@rule("TwoPassSoftmaxStatistics", domain=DOMAIN, leading=3)
def two_pass_softmax_statistics(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the input, the weight, and of each sample a few numbers; the gradient of x is there."""
    x, weight, bias = _layer(node)
    wanted, slope = wanted_of(node, 3), _slope(op, node)
    numbers, (largest, probability, found) = node.outputs[: wanted.count], node.outputs[wanted.count : wanted.count + 3]
    by_x = op.reshape(_times(op, found, slope), shape_of(x)) if op.wants(x) else None
    if not (op.wants(weight) or op.wants(bias)):
        return [by_x]
    first = 4 + len(wanted.indices)
    by = derivatives_of(wanted, [input_of(node, first + place) for place in range(wanted.count)])
    classes = shape_of(weight)[1 - attr_int(node, "by_rows", 0)]
    factors, shares = shares_of(op, wanted, by, numbers, classes)
    picked = [(one, share) for one, share in zip(wanted.indices, shares, strict=True) if share is not None]
    features = shape_of(x)[-1]
    head = Head(
        rows=op.reshape(x, (size_of(x) // features, features)),
        labels=tuple(indices for indices, _ in picked),
        largest=largest,
        shares=tuple(op.Div(share, probability) for _, share in picked),
        factors=op.Mul(_times(op, factors, slope), probability),
        offsets=None if by.summed is None else Offsets(_times(op, by.summed, slope), wanted.weights),
    )
    by_weight, by_bias = by_layer(op, node, head, weight, bias)
    return [by_x, by_weight, by_bias if op.wants(bias) else None]


def _layer(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Input, weight and bias of the layer in a head."""
    return required_input(node, 0), required_input(node, 1), input_of(node, 2)


def _slope(op: Builder, node: ir.Node) -> ir.Value:
    """The gradient of the loss of a head."""
    slope = op.watched[node.meta[LOSS]]
    assert slope is not None
    return slope


def _times(op: Builder, value: ir.Value, slope: ir.Value) -> ir.Value:
    return value if is_one(op, slope) else op.Mul(value, op.reshape(slope, (1, 1)))
