"""What losses read of the softmax of logits: which nodes, and which numbers of each sample they are after.

Exporters and people write one loss in many ways: an operator of its own, a LogSoftmax and a Gather, a logsumexp in one
node or in five. Each of them reads the same few numbers of a row of logits ``z`` with the labels ``y`` and weights
``w`` of classes:

| number | of a row | read by |
|---|---|---|
| picked | ``log softmax(z)[y]`` | cross-entropy |
| summed | ``sum_c w_c log softmax(z)_c`` | label smoothing (Szegedy et al., arXiv:1512.00567) |
| normaliser | ``logsumexp(z)`` | |
| squared | ``logsumexp(z)^2`` | z-loss (Chowdhery et al., PaLM, arXiv:2204.02311) |

What becomes of these numbers is nobody's concern here: masks, weights of samples, means and sums are small.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import DOMAIN
from ckplan.autodiff.losses.soft_targets import SoftTarget, soft_target_of
from ckplan.autodiff.paths import depends
from ckplan.autodiff.reading import attr_int, required_input, shape_of, size_of
from ckplan.operators.matching import is_op

Number = Literal["picked", "summed", "normaliser", "squared"]

_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_SUMS = {"ReduceSum": 1.0, "ReduceMean": 0.0}
"""Reductions, and what each element counts in them; 0 for one over their number."""


@dataclass(frozen=True)
class Reading:
    """A value that is one of the numbers, one for each sample.

    Attributes:
        value: the value, of as many elements as there are samples.
        number: what it is.
        factor: what the number is multiplied by.
        indices: of ``picked`` the labels, one for each sample.
        raw: of ``picked`` whether it is the logit itself: the normaliser more.
        target: of ``picked`` probabilities, in place of labels, that the logarithms are multiplied by before they are
            summed up.
    """

    value: ir.Value
    number: Number
    factor: float = 1.0
    indices: ir.Value | None = None
    raw: bool = False
    target: SoftTarget | None = None


@dataclass
class Readers:
    """All that reads some logits.

    Attributes:
        logits: [..., classes].
        readings: what is read of them, each value once.
        losses: composites of cross-entropy or negative log-likelihood that read them or their logarithms.
        weights: weights of the classes in ``summed``, of as many elements as there are classes; None if they are ones.
        inside: the values on the way that are as large as the logits.
    """

    logits: ir.Value
    readings: list[Reading] = field(default_factory=list)
    losses: list[ir.Node] = field(default_factory=list)
    weights: ir.Value | None = None
    inside: list[ir.Value] = field(default_factory=list)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return shape_of(self.logits)[-1]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return size_of(self.logits) // max(self.classes, 1)


class _OtherReaderError(Exception):
    """Something reads more of the logits than these numbers."""


def readers_of(op: Builder, held: Container[ir.Value]) -> Iterator[Readers]:
    """Find logits of which losses read nothing but the numbers above, and not only by one plain cross-entropy.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for or that the reverse sweep starts from; they stay what they are.
    """
    seen = set()
    for node in list(op.graph):
        if not _is_start(node):
            continue
        logits = required_input(node, 0)
        while (maker := logits.producer()) is not None and _is_view(maker):
            logits = required_input(maker, 0)
        if logits in seen:
            continue
        seen.add(logits)
        found = Readers(logits)
        try:
            _Search(op, found, held).logits(logits)
        except _OtherReaderError:
            continue
        if found.readings or any(loss.op_type != "CrossEntropy" for loss in found.losses) or len(found.losses) > 1:
            yield found


def _is_start(node: ir.Node) -> bool:
    if node.domain:
        return node.domain == DOMAIN and node.op_type == "CrossEntropy" and _along_last(node)
    return node.op_type in ("LogSoftmax", "ReduceLogSumExp", "ReduceMax") and node.inputs[0] is not None


def _is_view(node: ir.Node) -> bool:
    """Whether a node shows rows of logits in another shape."""
    if not is_op(node, _VIEWS):
        return False
    before, after = shape_of(required_input(node, 0)), shape_of(node.outputs[0])
    return bool(before and after) and before[-1] == after[-1]


def _along_last(node: ir.Node, default: int = -1) -> bool:
    rank = len(shape_of(required_input(node, 0)))
    return attr_int(node, "axis", default) % rank == rank - 1


class _Search:
    """Follows the readers of logits."""

    def __init__(self, op: Builder, found: Readers, held: Container[ir.Value]) -> None:
        self._op, self._found, self._held = op, found, held
        self._sums = False

    def logits(self, value: ir.Value) -> None:
        """Follow the readers of logits."""
        for node in self._readers(value):
            output = node.outputs[0]
            if node.domain == DOMAIN and node.op_type == "CrossEntropy" and _along_last(node):
                self._loss(node)
            elif node.domain:
                raise _OtherReaderError
            elif _is_view(node):
                self.logits(output)
            elif node.op_type == "LogSoftmax" and _along_last(node):
                self._logarithms(output)
            elif node.op_type == "ReduceLogSumExp" and self._reduces_rows(node):
                self._normaliser(output)
            elif node.op_type == "GatherElements":
                self._picked(node, 1.0, raw=True)
            elif node.op_type == "ReduceMax" and self._reduces_rows(node):
                self._shifted(value, output)
            elif not self._is_logarithms(node, value):
                raise _OtherReaderError

    def _is_logarithms(self, node: ir.Node, logits: ir.Value) -> bool:
        """Follow logits less their normaliser; say whether that is what a node makes, or less their largest."""
        if node.op_type != "Sub" or node.inputs[0] is not logits:
            return False
        maker = required_input(node, 1).producer()
        of_logits = maker is not None and not maker.domain and maker.inputs[0] is logits
        if not of_logits or maker is None or shape_of(required_input(node, 1))[-1:] != (1,):
            return False
        if maker.op_type == "ReduceLogSumExp":
            self._logarithms(node.outputs[0])
        return maker.op_type in ("ReduceLogSumExp", "ReduceMax")

    def _shifted(self, logits: ir.Value, largest: ir.Value) -> None:
        """Follow logits less their largest, which is how a logsumexp is written out."""
        subtractions = [n for n in largest.consumers() if n.op_type == "Sub" and n.inputs[0] is logits]
        if len(subtractions) != 1 or largest in self._held or shape_of(largest)[-1:] != (1,):
            raise _OtherReaderError
        shifted = subtractions[0].outputs[0]
        exponential = self._only(shifted, "Exp")
        added = self._only(exponential.outputs[0], "ReduceSum")
        if not self._reduces_rows(added) or len(exponential.outputs[0].consumers()) != 1:
            raise _OtherReaderError
        logarithm = self._only(added.outputs[0], "Log").outputs[0]
        self._hold_back(shifted, exponential.outputs[0])
        for node in self._readers(shifted):
            if node.op_type == "Sub" and node.inputs[0] is shifted and node.inputs[1] is logarithm:
                self._logarithms(node.outputs[0])
            elif node is not exponential:
                raise _OtherReaderError
        same = (largest, *(v for n in largest.consumers() if n.op_type in _VIEWS for v in n.outputs))
        for node in logarithm.consumers():
            if node.op_type == "Add" and any(value in same for value in node.inputs):
                self._normaliser(node.outputs[0])
            elif node.op_type != "Sub" or node.inputs[0] is not shifted:
                raise _OtherReaderError
        if any(n.op_type not in ("Add", "Sub", *_VIEWS) for v in same for n in v.consumers()):
            raise _OtherReaderError
        if any(n.op_type == "Add" and logarithm not in n.inputs for v in same for n in v.consumers()):
            raise _OtherReaderError

    def _only(self, value: ir.Value, op_type: str) -> ir.Node:
        """The one reader of a kind."""
        nodes = [node for node in value.consumers() if is_op(node, op_type)]
        if len(nodes) != 1 or value in self._held:
            raise _OtherReaderError
        return nodes[0]

    def _logarithms(self, value: ir.Value, factor: float = 1.0) -> None:
        """Follow the readers of log-probabilities, or of their negatives."""
        for node in self._readers(value):
            output = node.outputs[0]
            if node.domain == DOMAIN and node.op_type == "NegativeLogLikelihood" and _along_last(node) and factor == 1:
                self._loss(node)
            elif node.domain:
                raise _OtherReaderError
            elif _is_view(node):
                self._logarithms(output, factor)
            elif node.op_type == "Neg":
                self._logarithms(output, -factor)
            elif node.op_type == "GatherElements":
                self._picked(node, factor)
            elif node.op_type in _SUMS:
                self._summed(node, factor, None)
            elif node.op_type == "Mul":
                self._weighted(node, value, factor)
            else:
                raise _OtherReaderError

    def _weighted(self, node: ir.Node, value: ir.Value, factor: float) -> None:
        """Follow log-probabilities times weights of classes, or times probabilities, to their sums."""
        other = next((v for v in node.inputs if v is not value), None)
        classes = self._found.classes
        if other is None or shape_of(node.outputs[0]) != shape_of(value):
            raise _OtherReaderError
        if shape_of(other)[-1:] == (classes,) and size_of(other) == classes and not depends(other, self._held):
            self._weighted_sums(node.outputs[0], factor, other)
        elif size_of(other) == size_of(value) and (target := soft_target_of(self._op, other, classes)) is not None:
            self._weighted_sums(node.outputs[0], factor, target)
        else:
            raise _OtherReaderError

    def _weighted_sums(self, value: ir.Value, factor: float, weights: ir.Value | SoftTarget) -> None:
        for node in self._readers(value):
            if is_op(node, "Neg"):
                self._weighted_sums(node.outputs[0], -factor, weights)
            elif is_op(node, _SUMS):
                self._summed(node, factor, weights)
            else:
                raise _OtherReaderError

    def _loss(self, node: ir.Node) -> None:
        if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            raise _OtherReaderError
        self._found.losses.append(node)

    def _picked(self, node: ir.Node, factor: float, *, raw: bool = False) -> None:
        indices = required_input(node, 1)
        if not _along_last(node, 0) or size_of(indices) != self._found.samples or shape_of(indices)[-1] != 1:
            raise _OtherReaderError
        self._found.readings.append(Reading(node.outputs[0], "picked", factor, indices, raw))

    def _summed(self, node: ir.Node, factor: float, weights: ir.Value | SoftTarget | None) -> None:
        target = weights if isinstance(weights, SoftTarget) else None
        own = weights if isinstance(weights, ir.Value) else None
        needed = target is None or target.others != 0
        if not self._reduces_rows(node) or (needed and self._sums and self._found.weights is not own):
            raise _OtherReaderError
        if needed:
            self._found.weights, self._sums = own, True
        factor *= _SUMS[node.op_type] or 1 / self._found.classes
        self._found.readings.append(Reading(node.outputs[0], "picked" if target else "summed", factor, target=target))

    def _normaliser(self, value: ir.Value) -> None:
        """Follow a normaliser to its squares; what else reads it goes on doing so."""
        self._found.readings.append(Reading(value, "normaliser"))
        pending = [value]
        while pending:
            one = pending.pop()
            for node in one.consumers():
                if node.domain or one in self._held:
                    continue
                if node.op_type in _VIEWS:
                    pending.append(node.outputs[0])
                elif self._is_square(node):
                    self._found.readings.append(Reading(node.outputs[0], "squared"))

    def _is_square(self, node: ir.Node) -> bool:
        if node.op_type == "Mul":
            return node.inputs[0] is node.inputs[1]
        if node.op_type != "Pow" or self._op.number_of(node.inputs[1]) != 2:
            return False
        return shape_of(node.outputs[0]) == shape_of(required_input(node, 0))

    def _reduces_rows(self, node: ir.Node) -> bool:
        """Whether a reduction is over the classes alone."""
        axes = self._op.constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
        rank = len(shape_of(required_input(node, 0)))
        return axes is not None and [int(axis) % rank for axis in axes.reshape(-1)] == [rank - 1]

    def _hold_back(self, *values: ir.Value) -> None:
        """Make sure that values as large as the logits may vanish."""
        if any(value in self._held or value.is_graph_output() for value in values):
            raise _OtherReaderError
        self._found.inside += values

    def _readers(self, value: ir.Value) -> tuple[ir.Node, ...]:
        self._hold_back(value)
        nodes = tuple(value.consumers())
        if any(node.graph is not self._op.graph for node in nodes):
            raise _OtherReaderError
        return nodes
