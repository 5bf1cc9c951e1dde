"""Cross-entropy in the form that keeps least memory.

The loss of one sample is ``logsumexp(x) - x[label]`` and its gradient ``softmax(x) - onehot(label)``. Only the logits,
or their LogSoftmax in the same buffer, are kept for the backward pass. onnxruntime computes Softmax and LogSoftmax over
the last axis and ScatterElements in the buffer of their input, so that logits, logarithms, probabilities and gradient
take one buffer between them, if the factor 1/N of the mean, or those of the samples, are left to the matrix product
before them (`ckplan.autodiff.row_factors`). With a vocabulary of 50,000 words a second buffer of that size would often
be the peak of the whole step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, attr_int, attr_str, dtype_of, input_of, required_input, shape_of, size_of
from ckplan.autodiff.paths import Composite
from ckplan.autodiff.row_factors import with_row_factors
from ckplan.autodiff.sums import total
from ckplan.model.constants import mark_constant

#: Operators that compute a cross-entropy and are replaced by the nodes emitted here.
LOSS_OPERATORS = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


@dataclass(frozen=True)
class Labels:
    """The integer side of a cross-entropy.

    Attributes:
        indices: class of each sample, with an axis of one element for the classes; ignored ones point to class 0.
        weights: weight of each sample in that shape, None if they all are 1.
        axis: the axis of the classes in the scores.
        reduction: ``none``, ``sum`` or ``mean`` as in ONNX.
    """

    indices: ir.Value
    weights: ir.Value | None
    axis: int
    reduction: str


def prepare_labels(
    op: Builder,
    labels: ir.Value,
    scores: ir.Value,
    axis: int,
    reduction: str = "mean",
    weight: ir.Value | None = None,
    ignore: int | None = None,
) -> Labels:
    """Emit what turns labels into indices and weights of samples.

    Args:
        op: the builder.
        labels: int32 or int64, the shape of ``scores`` without ``axis``.
        scores: logits or logarithms of probabilities.
        axis: the axis of the classes.
        reduction: ``none``, ``sum`` or ``mean``.
        weight: one weight per class.
        ignore: label of samples that do not count.
    """
    shape = list(shape_of(scores))
    shape[axis] = 1
    indices = op.reshape(labels, shape)
    counted = None
    if ignore is not None:
        ignored = op.Equal(indices, ignore)
        indices = op.Where(ignored, np.zeros((), dtype=dtype_of(labels)), indices)
        zero, one = np.zeros((), dtype_of(scores)), np.ones((), dtype_of(scores))
        counted = op.Where(ignored, zero, one)
    weights = counted
    if weight is not None:
        weights = op.Gather(weight, indices, axis=0)
        weights = op.Mul(weights, counted) if counted is not None else weights
    return Labels(indices, weights, axis, reduction)


def _reduce(op: Builder, losses: ir.Value, labels: Labels, name_shape: Sequence[int]) -> ir.Value:
    """Weigh the losses of the samples and reduce them."""
    if labels.weights is not None:
        losses = op.Mul(losses, labels.weights)
    if labels.reduction == "none":
        return op.Reshape(losses, np.asarray(name_shape, dtype=np.int64))
    if labels.reduction == "mean" and labels.weights is None:
        return total(op, losses, "ReduceMean")
    added = total(op, losses)
    if labels.reduction == "sum" or labels.weights is None:
        return added
    return op.Div(added, total(op, labels.weights))


def _slopes(op: Builder, dy: ir.Value, labels: Labels) -> ir.Value:
    """Return the derivative of the reduced loss by each sample's loss: a scalar, or in the shape of the indices.

    For a plain mean the factor 1/N is not in it; see :func:`_factor`.
    """
    if labels.reduction == "none":
        dy = op.reshape(dy, shape_of(labels.indices))
        return dy if labels.weights is None else op.Mul(labels.weights, dy)
    dy = op.reshape(dy, ())
    if labels.weights is None:
        return dy
    if labels.reduction == "mean":
        dy = op.Div(dy, total(op, labels.weights))
    return op.Mul(labels.weights, dy)


def _factor(labels: Labels) -> float:
    """Return the number that the gradient still has to be multiplied by."""
    plain_mean = labels.reduction == "mean" and labels.weights is None
    return 1 / max(size_of(labels.indices), 1) if plain_mean else 1.0


def _composite(
    scores: ir.Value,
    labels: Labels,
    losses: ir.Value,
    loss: ir.Value,
    gradient: Callable[[Builder, ir.Value], ir.Value],
) -> Composite:
    """Say how a loss is differentiated by its scores and, if samples have weights, by those.

    Args:
        scores: what ``gradient`` is the gradient of.
        labels: the integer side.
        losses: those of the samples, before they are weighed.
        loss: the result.
        gradient: from the gradient of the loss to that of the scores.
    """
    weights = labels.weights
    if weights is None:
        return Composite((scores,), lambda op, dy: [gradient(op, _given(dy))], _factor(labels))

    def both(op: Builder, dy: Sequence[ir.Value | None]) -> list[ir.Value | None]:
        return [
            gradient(op, _given(dy)) if op.wants(scores) else None,
            _by_weights(op, _given(dy), weights, labels, losses, loss) if op.wants(weights) else None,
        ]

    return Composite((scores, weights), both)


def _given(dy: Sequence[ir.Value | None]) -> ir.Value:
    assert dy[0] is not None
    return dy[0]


def _by_weights(
    op: Builder, dy: ir.Value, weights: ir.Value, labels: Labels, losses: ir.Value, loss: ir.Value
) -> ir.Value:
    """Return the gradient by the samples' weights: their losses, for a mean less the mean and over the weights' sum."""
    if labels.reduction == "none":
        return op.Mul(losses, op.reshape(dy, shape_of(weights)))
    dy = op.reshape(dy, ())
    if labels.reduction == "sum":
        return op.Mul(losses, dy)
    return op.Mul(op.Sub(losses, op.reshape(loss, ())), op.Div(dy, total(op, weights)))


def is_one(op: Builder, value: ir.Value) -> bool:
    """Say whether a value is known to be the number one."""
    known = op.constant_of(value)
    return known is not None and known.size == 1 and float(known.reshape(())) == 1


def emit_cross_entropy(op: Builder, logits: ir.Value, labels: Labels) -> tuple[ir.Value, Composite]:
    """Emit softmax and cross-entropy of logits.

    Returns:
        The loss, and how it is differentiated.
    """
    samples = [dim for axis, dim in enumerate(shape_of(logits)) if axis != labels.axis]
    if labels.axis == len(shape_of(logits)) - 1:
        # Both are computed in the buffer of the logits; the softmax of logarithms of chances is the chances.
        # ReduceLogSumExp would take no buffer either, but ten times as long.
        logarithms = op.LogSoftmax(logits, axis=-1)
        losses = op.Neg(op.GatherElements(logarithms, labels.indices, axis=labels.axis))

        def chances(op: Builder) -> ir.Value:
            return op.Softmax(logarithms, axis=-1)
    else:
        # Over another axis than the last one onnxruntime transposes to a copy and back. The largest logit is taken off
        # first, in their buffer: a large normaliser is too coarse a number to subtract.
        classes = np.asarray([labels.axis], dtype=np.int64)
        shifted = op.Sub(logits, op.ReduceMax(logits, classes, keepdims=1))
        normaliser = op.ReduceLogSumExp(shifted, classes, keepdims=1)
        losses = op.Sub(normaliser, op.GatherElements(shifted, labels.indices, axis=labels.axis))

        def chances(op: Builder) -> ir.Value:
            return op.Exp(op.Sub(shifted, normaliser))

    loss = _reduce(op, losses, labels, samples)

    def gradient(op: Builder, dy: ir.Value) -> ir.Value:
        slopes = _slopes(op, dy, labels)
        found = chances(op)
        if labels.axis == len(shape_of(logits)) - 1 and shape_of(slopes) == shape_of(labels.indices):
            ones = op.expand(op.constant(np.asarray(-1, dtype_of(logits))), shape_of(labels.indices))
            rows = op.ScatterElements(found, labels.indices, ones, axis=labels.axis, reduction="add")
            return with_row_factors(op, rows, slopes)
        scaled = found if is_one(op, slopes) else op.Mul(found, slopes)
        target = op.expand(op.scale(slopes, -1), shape_of(labels.indices))
        return op.ScatterElements(scaled, labels.indices, target, axis=labels.axis, reduction="add")

    return loss, _composite(logits, labels, losses, loss, gradient)


def emit_likelihood(op: Builder, scores: ir.Value, labels: Labels) -> tuple[ir.Value, Composite]:
    """Emit the negative log-likelihood of logarithms of probabilities.

    Returns:
        The loss, and how it is differentiated.
    """
    chosen = op.GatherElements(scores, labels.indices, axis=labels.axis)
    samples = [dim for axis, dim in enumerate(shape_of(scores)) if axis != labels.axis]
    losses = op.Neg(chosen)
    loss = _reduce(op, losses, labels, samples)

    def gradient(op: Builder, dy: ir.Value) -> ir.Value:
        slopes = op.scale(_slopes(op, dy, labels), -1)
        shape = shape_of(scores)
        classes = np.arange(shape[labels.axis], dtype=dtype_of(labels.indices))
        at = op.Equal(labels.indices, classes.reshape([-1] + [1] * (len(shape) - 1 - labels.axis)))
        return op.Where(at, slopes, 0.0)

    return loss, _composite(scores, labels, losses, loss, gradient)


def lower_losses(op: Builder) -> dict[ir.Node, Composite | None]:
    """Replace the loss operators of a graph by simpler nodes, before onnxruntime does it in its own, larger way.

    Returns:
        How the replacements are differentiated, by node.
    """
    composites: dict[ir.Node, Composite | None] = {}
    for node in list(op.graph):
        if node.op_type not in LOSS_OPERATORS or node.domain:
            continue
        with op.scope(str(node.name), "forward", before=node):
            scores, target = required_input(node, 0), required_input(node, 1)
            ignore = attr_int(node, "ignore_index", 0) if "ignore_index" in node.attributes else None
            logarithms = node.outputs[1] if len(node.outputs) > 1 else None
            if logarithms is not None and (logarithms.uses() or logarithms.is_graph_output()):
                scores = op.LogSoftmax(scores, axis=1)
                logarithms.replace_all_uses_with(scores, replace_graph_outputs=True)
                emit: Callable[[Builder, ir.Value, Labels], tuple[ir.Value, Composite]] = emit_likelihood
            else:
                emit = emit_cross_entropy if node.op_type == "SoftmaxCrossEntropyLoss" else emit_likelihood
            reduction = attr_str(node, "reduction", "mean")
            classes = input_of(node, 2)
            if classes is not None and classes.is_initializer():
                mark_constant(classes, "weights of classes")  # trained only if asked for by name
            labels = prepare_labels(op, target, scores, 1, reduction, classes, ignore)
            loss = group(op, composites, partial(emit, op, scores, labels))
        output, name = node.outputs[0], node.outputs[0].name
        output.replace_all_uses_with(loss, replace_graph_outputs=True)
        op.graph.remove(node, safe=True)
        loss.name = name
    return composites


def group(
    op: Builder,
    composites: dict[ir.Node, Composite | None],
    emit: Callable[[], tuple[ir.Value, Composite]],
) -> ir.Value:
    """Emit a loss and register its nodes in ``composites``; return the loss."""
    before = set(op.graph)
    loss, composite = emit()
    composites.update((node, None) for node in op.graph if node not in before)
    last = loss.producer()
    assert last is not None
    composites[last] = composite
    return loss
