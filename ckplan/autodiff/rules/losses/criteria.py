"""Gradients of the losses that are differentiated as one: cross-entropy, negative log-likelihood, mean squared error.

See :mod:`ckplan.autodiff.losses.crossentropy` for the forms of the first two.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN
from ckplan.autodiff.idioms.presence import read_after
from ckplan.autodiff.idioms.row_factors import with_row_factors
from ckplan.autodiff.idioms.sums import total
from ckplan.autodiff.losses.crossentropy import Labels, labels_of
from ckplan.autodiff.reading import dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.registry import rule

_LARGE = 2**18
"""Elements of logits from which a second buffer of that size matters."""


@rule("CrossEntropy", domain=DOMAIN, factor="leave", leading=2)
def cross_entropy(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the log-probabilities; over another axis than the last, shifted logits and what normalises them."""
    labels = labels_of(node)
    by_logits = _by_logits(op, node, dy, labels) if op.wants(node.inputs[0]) else None
    return [by_logits, by_sample_weights(op, node, dy, labels)]


def _by_logits(op: Builder, node: ir.Node, dy: Gradients, labels: Labels) -> ir.Value:
    logits, kept = required_input(node, 0), node.outputs[2:]
    slopes = sample_slopes(op, dy, labels)
    last = labels.axis == len(shape_of(logits)) - 1
    # The softmax of log-probabilities is the probabilities.
    first = kept[0]
    if last and size_of(first) >= _LARGE and first.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        # Left to itself, onnxruntime makes the probabilities before it has read the losses off, in a second buffer.
        first = read_after(op, first, node.outputs[1])
    probabilities = op.Softmax(first, axis=-1) if last else op.Exp(op.Sub(kept[0], kept[1]))
    if last and shape_of(slopes) == shape_of(labels.indices):
        ones = op.expand(op.constant(np.asarray(-1, dtype_of(logits))), shape_of(labels.indices))
        rows = op.ScatterElements(probabilities, labels.indices, ones, axis=labels.axis, reduction="add")
        return with_row_factors(op, rows, slopes)
    scaled = probabilities if is_one(op, slopes) else op.Mul(probabilities, slopes)
    target = op.expand(op.scale(slopes, -1), shape_of(labels.indices))
    return op.ScatterElements(scaled, labels.indices, target, axis=labels.axis, reduction="add")


@rule("NegativeLogLikelihood", domain=DOMAIN, factor="leave", leading=2)
def negative_log_likelihood(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the labels only, and the losses of the samples where those have weights that are trained."""
    labels = labels_of(node)
    by_scores = _by_scores(op, node, dy, labels) if op.wants(node.inputs[0]) else None
    return [by_scores, by_sample_weights(op, node, dy, labels)]


def _by_scores(op: Builder, node: ir.Node, dy: Gradients, labels: Labels) -> ir.Value:
    slopes = op.scale(sample_slopes(op, dy, labels), -1)
    shape = shape_of(required_input(node, 0))
    classes = np.arange(shape[labels.axis], dtype=dtype_of(labels.indices))
    at = op.Equal(labels.indices, classes.reshape([-1] + [1] * (len(shape) - 1 - labels.axis)))
    return op.Where(at, slopes, 0.0)


@rule("MeanSquaredError", domain=DOMAIN, factor="leave", leading=1)
def mean_squared_error(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the difference, which is the gradient but for a factor: from a seed of one, nothing has to be made."""
    difference = node.outputs[1]
    assert dy[0] is not None
    op.factor *= 2 / max(size_of(difference), 1)
    return [difference if is_one(op, dy[0]) else op.Mul(difference, dy[0])]


def sample_slopes(op: Builder, dy: Gradients, labels: Labels) -> ir.Value:
    """Return the derivative of the reduced loss by each sample's loss: a scalar, or in the shape of the indices.

    The factor 1/N of a plain mean is left.
    """
    upstream = dy[0]
    assert upstream is not None
    if labels.reduction == "none":
        upstream = op.reshape(upstream, shape_of(labels.indices))
        return upstream if labels.weights is None else op.Mul(labels.weights, upstream)
    upstream = op.reshape(upstream, ())
    if labels.weights is None:
        if labels.reduction == "mean":
            op.factor *= 1 / max(size_of(labels.indices), 1)
        return upstream
    if labels.reduction == "mean":
        upstream = op.Div(upstream, total(op, labels.weights))
    return op.Mul(labels.weights, upstream)


def by_sample_weights(op: Builder, node: ir.Node, dy: Gradients, labels: Labels) -> ir.Value | None:
    """Return the gradient by the samples' weights: their losses, for a mean less the mean and over the weights' sum."""
    upstream, weights = dy[0], labels.weights
    if weights is None or not op.wants(weights):
        return None
    assert upstream is not None
    loss, losses = node.outputs[:2]
    if labels.reduction == "none":
        return op.Mul(losses, op.reshape(upstream, shape_of(weights)))
    upstream = op.reshape(upstream, ())
    if labels.reduction == "sum":
        return op.Mul(losses, upstream)
    return op.Mul(op.Sub(losses, op.reshape(loss, ())), op.Div(upstream, total(op, weights)))


def is_one(op: Builder, value: ir.Value) -> bool:
    """Say whether a value is known to be the number one."""
    return op.number_of(value) == 1
