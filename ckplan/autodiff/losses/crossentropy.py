"""Cross-entropy in the form that keeps least memory.

The loss of one sample is ``logsumexp(x) - x[label]`` and its gradient ``softmax(x) - onehot(label)``. Only the logits,
or their LogSoftmax in the same buffer, are kept for the backward pass. onnxruntime computes Softmax and LogSoftmax over
the last axis and ScatterElements in the buffer of their input, so that logits, logarithms, probabilities and gradient
take one buffer between them, if the factor 1/N of the mean, or those of the samples, are left to the matrix product
before them (`ckplan.autodiff.idioms.row_factors`). With a vocabulary of 50,000 words a second buffer of that size would
often be the peak of the whole step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import outline
from ckplan.autodiff.idioms.sums import total
from ckplan.autodiff.reading import attr_int, attr_ints, attr_str, dtype_of, required_input, shape_of
from ckplan.keys import CLASS_WEIGHTS, CLASSES, IGNORED_LABEL
from ckplan.model.constants import mark_constant
from ckplan.model.traits import LOSS_OPERATORS
from ckplan.operators.matching import input_of, is_op

_MOVES = ("Cast", "Flatten", "Identity", "Pad", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""What may stand between an input and the labels of a loss."""
_PARTS = ("Pad", "Slice")
"""Those of them that may leave elements out."""


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
    is_checked: bool = True,
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
        is_checked: whether those who feed labels know which there are; others that are negative end in an error, too.
    """
    shape = list(shape_of(scores))
    classes, shape[axis] = shape[axis], 1
    indices = op.reshape(labels, shape)
    counted = None
    if ignore is not None:
        ignored = op.Equal(indices, ignore)
        indices = op.Where(ignored, np.zeros((), dtype=dtype_of(labels)), indices)
        zero, one = np.zeros((), dtype_of(scores)), np.ones((), dtype_of(scores))
        counted = op.Where(ignored, zero, one)
    if not is_checked:
        # Kernels count negative numbers from the last class back, and refuse those that are too large.
        indices = op.Where(op.Less(indices, 0), np.asarray(classes, dtype_of(labels)), indices)
    weights = counted
    if weight is not None:
        weights = op.Gather(weight, indices, axis=0)
        weights = op.Mul(weights, counted) if counted is not None else weights
    return Labels(indices, weights, axis, reduction)


def declare_classes(labels: ir.Value, count: int, ignored: int | None = None, *, is_weighted: bool = False) -> bool:
    """Say of the input that labels come from which there are, for those who make inputs up or check them.

    Args:
        labels: what the loss reads.
        count: the number of classes.
        ignored: label of samples that do not count.
        is_weighted: whether the loss is a mean by weights of the classes.

    Returns:
        Whether all that is fed can be checked: it is labels of this loss, every one. So are constants.
    """
    is_whole = True
    while (maker := labels.producer()) is not None:
        if not is_op(maker, _MOVES) or maker.inputs[0] is None:
            return False
        is_whole = is_whole and not is_op(maker, _PARTS)
        labels = maker.inputs[0]
    if labels.is_initializer():
        return True
    if not labels.is_graph_input():
        return False
    about, said = labels.metadata_props, "" if ignored is None else str(ignored)
    if is_weighted:
        about[CLASS_WEIGHTS] = "true"
    is_checked = about.setdefault(CLASSES, str(count)) == str(count) and is_whole
    return is_checked and about.setdefault(IGNORED_LABEL, said) == said


def reduce_losses(op: Builder, losses: ir.Value, labels: Labels, name_shape: Sequence[int]) -> ir.Value:
    """Weigh the losses of the samples and reduce them.

    Args:
        op: the builder.
        losses: of each sample.
        labels: their weights, and how losses are reduced.
        name_shape: the shape of the losses where they are not reduced.
    """
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


def emit_cross_entropy(op: Builder, logits: ir.Value, labels: Labels) -> ir.Value:
    """Emit softmax and cross-entropy of logits as one composite; return the loss."""
    samples = [dim for axis, dim in enumerate(shape_of(logits)) if axis != labels.axis]
    with op.recording() as nodes:
        if labels.axis == len(shape_of(logits)) - 1:
            # In the buffer of the logits. ReduceLogSumExp would take no buffer either, but ten times as long.
            logarithms = op.LogSoftmax(logits, axis=-1)
            losses = op.Neg(op.GatherElements(logarithms, labels.indices, axis=labels.axis))
            kept = [logarithms]
        else:
            # Over another axis than the last one onnxruntime transposes to a copy and back. The largest logit is taken
            # off first, in their buffer: a large normaliser is too coarse a number to subtract.
            classes = np.asarray([labels.axis], dtype=np.int64)
            shifted = op.Sub(logits, op.ReduceMax(logits, classes, keepdims=1))
            normaliser = op.ReduceLogSumExp(shifted, classes, keepdims=1)
            losses = op.Sub(normaliser, op.GatherElements(shifted, labels.indices, axis=labels.axis))
            kept = [shifted, normaliser]
        loss = reduce_losses(op, losses, labels, samples)
    _outline(op, "CrossEntropy", nodes, logits, labels, [loss, losses, *kept])
    return loss


def emit_likelihood(op: Builder, scores: ir.Value, labels: Labels) -> ir.Value:
    """Emit the negative log-likelihood of logarithms of probabilities as one composite; return the loss."""
    samples = [dim for axis, dim in enumerate(shape_of(scores)) if axis != labels.axis]
    with op.recording() as nodes:
        losses = op.Neg(op.GatherElements(scores, labels.indices, axis=labels.axis))
        loss = reduce_losses(op, losses, labels, samples)
    _outline(op, "NegativeLogLikelihood", nodes, scores, labels, [loss, losses])
    return loss


def _outline(
    op: Builder,
    op_type: str,
    nodes: Sequence[ir.Node],
    scores: ir.Value,
    labels: Labels,
    outputs: Sequence[ir.Value],
) -> None:
    attributes = {"axis": labels.axis, "reduction": labels.reduction}
    outline(op, op_type, nodes, [scores, labels.weights, labels.indices], outputs, attributes)


def labels_of(node: ir.Node) -> Labels:
    """Return the integer side of a composite that is emitted here."""
    indices, weights = required_input(node, 2), input_of(node, 1)
    return Labels(indices, weights, attr_int(node, "axis", -1), attr_str(node, "reduction", "mean"))


def lower_losses(op: Builder) -> None:
    """Replace the loss operators of a graph by composites, before onnxruntime does it in its own, larger way."""
    for node in list(op.graph):
        if not is_op(node, LOSS_OPERATORS):
            continue
        with op.scope(str(node.name), "forward", before=node):
            scores, target = required_input(node, 0), required_input(node, 1)
            ignore = attr_int(node, "ignore_index", 0) if "ignore_index" in node.attributes else None
            reduction, classes = attr_str(node, "reduction", "mean"), input_of(node, 2)
            is_weighted = classes is not None and reduction == "mean"
            axis = min(1, len(shape_of(scores)) - 1)  # torch has losses of one sample without an axis of samples
            is_checked = declare_classes(target, shape_of(scores)[axis], ignore, is_weighted=is_weighted)
            logarithms = node.outputs[1] if len(node.outputs) > 1 else None
            if logarithms is not None and (logarithms.uses() or logarithms.is_graph_output()):
                scores = op.LogSoftmax(scores, axis=axis)
                logarithms.replace_all_uses_with(scores, replace_graph_outputs=True)
                scores.name = logarithms.name
                emit: Callable[[Builder, ir.Value, Labels], ir.Value] = emit_likelihood
            else:
                scores, axis = _before_transpose(scores, axis)
                emit = emit_cross_entropy if node.op_type == "SoftmaxCrossEntropyLoss" else emit_likelihood
            if classes is not None and classes.is_initializer():
                mark_constant(classes, "weights of classes")  # trained only if asked for by name
            labels = prepare_labels(op, target, scores, axis, reduction, classes, ignore, is_checked)
            loss = emit(op, scores, labels)
        node.outputs[0].replace_all_uses_with(loss, replace_graph_outputs=True)
        op.graph.remove(node, safe=True)
        loss.name = node.outputs[0].name


def _before_transpose(scores: ir.Value, axis: int) -> tuple[ir.Value, int]:
    """Scores with their classes along ``axis``, or last where they only were brought there; and that axis."""
    maker, last = scores.producer(), len(shape_of(scores)) - 1
    if not is_op(maker, "Transpose") or last < 2:
        return scores, axis
    perm = attr_ints(maker, "perm")
    return (required_input(maker, 0), last) if perm == (0, last, *range(1, last)) else (scores, axis)
