"""Losses that read a few numbers of each row of logits, in the form that keeps least memory.

What losses read (`ckplan.autodiff.losses.softmax_readers`) is made by one composite, whose gradient takes the buffer of
the logits. With ``g`` the derivative by what is picked, ``h`` that by what is summed, with weights ``w`` of the
classes, and ``n`` that by the normaliser, the gradient of a row of logits is

    t softmax(z) + g onehot(y) + h w,    t = n - g - h sum(w),

which is ``t (softmax(z) + g/t onehot(y))``, made in place but for the factor of the row, and a product of two vectors;
both are left to the matrix product before the logits (`ckplan.autodiff.idioms.row_factors`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import outline
from ckplan.autodiff.idioms.presence import read_after
from ckplan.autodiff.idioms.row_factors import Offsets, Rows
from ckplan.autodiff.idioms.row_maxima import LEAST, row_maxima
from ckplan.autodiff.losses.crossentropy import labels_of, reduce_losses
from ckplan.autodiff.losses.soft_targets import SoftTarget
from ckplan.autodiff.losses.softmax_readers import Number, Readers, readers_of
from ckplan.autodiff.reading import attr_int, attr_str, dtype_of, required_input, shape_of, size_of
from ckplan.operators.matching import input_of

OPERATOR = "SoftmaxStatistics"

OTHERS: tuple[Number, ...] = ("summed", "normaliser", "squared")
"""The numbers of which there is one at most, in their order."""

_LARGE = 2**18
"""Elements of logits from which a second buffer of that size matters."""

_LEAST = 1e-20
"""What stands for a factor of zero where it has to be divided by: a gradient of that size is none, and its reciprocal
still is a float32."""


@dataclass(frozen=True)
class Wanted:
    """Which numbers of each row are made.

    Attributes:
        indices: for each number that is picked the label of each sample [samples, 1].
        weights: the weights of the classes in the sum [1, classes], None if they are ones.
        others: which of the other numbers, in the order of `OTHERS`.
    """

    indices: tuple[ir.Value, ...]
    weights: ir.Value | None
    others: tuple[Number, ...]

    @property
    def count(self) -> int:
        """How many numbers of each row there are."""
        return len(self.indices) + len(self.others)


@dataclass(frozen=True)
class Derivatives:
    """The derivatives of a loss by the numbers of each sample, [samples, 1] each; None where it does not depend on one.

    Attributes:
        picked: by what is picked, for each of these.
        summed: by the sum over classes.
        normaliser: by the normaliser.
        squared: by its square.
    """

    picked: tuple[ir.Value | None, ...]
    summed: ir.Value | None = None
    normaliser: ir.Value | None = None
    squared: ir.Value | None = None

    def listed(self, wanted: Wanted) -> list[ir.Value | None]:
        """The derivatives in the order of the numbers."""
        others = {"summed": self.summed, "normaliser": self.normaliser, "squared": self.squared}
        return [*self.picked, *(others[number] for number in wanted.others)]


def join_statistics(op: Builder, held: Container[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Let losses read what they read of logits from one composite.

    Args:
        op: builder of the forward graph, losses and all.
        held: values that gradients are asked for or that the reverse sweep starts from.

    Returns:
        What took the place of values.
    """
    made: dict[ir.Value, ir.Value] = {}
    for found in readers_of(op, held):
        made |= _join(op, found)
    if made:
        op.graph.sort()
    return made


def _join(op: Builder, found: Readers) -> dict[ir.Value, ir.Value]:
    first = found.logits.consumers()[0]
    name = str(first.name)
    labels = [labels_of(loss) for loss in found.losses]
    targets = dict.fromkeys(reading.target for reading in found.readings if reading.target is not None)
    numbers = {reading.number for reading in found.readings if reading.target is None}
    if "squared" in numbers or any(reading.raw for reading in found.readings):
        numbers.add("normaliser")
    if any(target.others for target in targets):
        numbers.add("summed")
    others = [number for number in OTHERS if number in numbers]
    made: dict[ir.Value, ir.Value] = {}
    with op.scope(f"{name}/softmax", "forward", before=first):
        soft = {target: target.picks(op, found.classes) for target in targets}
        sought = [label.indices for label in labels]
        sought += [reading.indices for reading in found.readings if reading.indices is not None]
        sought += [indices for _, indices in soft.values()]
        flat = {value: op.reshape(value, (found.samples, 1)) for value in dict.fromkeys(sought)}
        weights = None if found.weights is None else op.reshape(found.weights, (1, found.classes))
        wanted = Wanted(tuple(flat.values()), weights, tuple(others))
        values = emit_statistics(op, op.reshape(found.logits, (found.samples, found.classes)), wanted)
        picked = dict(zip(flat, values, strict=False))
        rest = dict(zip(others, values[len(flat) :], strict=True))
        for reading in found.readings:
            if reading.target is not None:
                there, indices = soft[reading.target]
                value = _expected(op, reading.target, there, picked[indices], rest.get("summed"))
            else:
                value = rest[reading.number] if reading.indices is None else picked[reading.indices]
            if reading.raw:
                value = op.Add(value, rest["normaliser"])
            made[reading.value] = op.reshape(op.scale(value, reading.factor), shape_of(reading.value))
        for loss, label in zip(found.losses, labels, strict=True):
            losses = op.reshape(op.Neg(picked[label.indices]), shape_of(label.indices))
            made[loss.outputs[0]] = reduce_losses(op, losses, label, shape_of(loss.outputs[0]))
    for old, new in made.items():
        title = old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name, new.name = op.unique_name(f"{title}/before"), title
    return made


def _expected(op: Builder, target: SoftTarget, there: ir.Value, picked: ir.Value, summed: ir.Value | None) -> ir.Value:
    """The sum of log-probabilities times a soft target, from what is picked of them where there is a class."""
    value = op.scale(op.Where(op.reshape(there, shape_of(picked)), picked, 0.0), target.more)
    return value if summed is None or not target.others else op.Add(value, op.scale(summed, target.others))


def emit_statistics(op: Builder, logits: ir.Value, wanted: Wanted) -> tuple[ir.Value, ...]:
    """Emit the numbers of rows of logits as one composite; return what is picked, then the other numbers.

    Args:
        op: the builder.
        logits: [samples, classes].
        wanted: which numbers.
    """
    with op.recording() as nodes:
        values, logarithms = numbers_of(op, logits, wanted)
    inputs = [logits, wanted.weights, *wanted.indices]
    return tuple(outline(op, OPERATOR, nodes, inputs, [*values, logarithms], attributes_of(wanted))[: len(values)])


def attributes_of(wanted: Wanted) -> dict[str, int | str]:
    """The attributes by which `wanted_of` knows them."""
    return {"picked": len(wanted.indices), "others": ",".join(wanted.others)}


def wanted_of(node: ir.Node, first: int = 1) -> Wanted:
    """Which numbers a composite makes, whose inputs have the weights at ``first`` and the labels behind them."""
    indices = [required_input(node, first + 1 + place) for place in range(attr_int(node, "picked", 0))]
    given = attr_str(node, "others", "").split(",")
    return Wanted(tuple(indices), input_of(node, first), tuple(number for number in OTHERS if number in given))


def derivatives_of(wanted: Wanted, given: Sequence[ir.Value | None]) -> Derivatives:
    """Sort derivatives by the numbers, which stand in the order of `emit_statistics`."""
    count = len(wanted.indices)
    return Derivatives(tuple(given[:count]), **dict(zip(wanted.others, given[count:], strict=False)))


def numbers_of(
    op: Builder, logits: ir.Value, wanted: Wanted, largest: ir.Value | None = None
) -> tuple[list[ir.Value], ir.Value]:
    """Emit the numbers of rows of logits [samples, 1], and the log-probabilities in the buffer of the logits.

    ReduceLogSumExp would take no buffer either, but ten times as long as what is done here.

    Args:
        op: the builder.
        logits: [samples, classes].
        wanted: which numbers.
        largest: the largest logit of each row, if it is there [samples, 1].
    """
    last = np.asarray([1], dtype=np.int64)
    normalised = "normaliser" in wanted.others
    if normalised and largest is None:
        largest = row_maxima(op, logits)
    logarithms = op.LogSoftmax(logits if largest is None else _after(op, logits, largest), axis=-1)
    values = [op.GatherElements(logarithms, indices, axis=1) for indices in wanted.indices]
    normaliser = _normaliser(op, largest, logarithms) if normalised and largest is not None else None
    for number in wanted.others:
        if number == "summed":
            weights = wanted.weights
            column = None if weights is None else op.reshape(weights, (size_of(weights), 1))
            added = op.ReduceSum(logarithms, last, keepdims=1) if column is None else op.MatMul(logarithms, column)
            values.append(added)
        elif normaliser is not None:
            values.append(op.Mul(normaliser, normaliser) if number == "squared" else normaliser)
    return values, logarithms


def _normaliser(op: Builder, largest: ir.Value, logarithms: ir.Value) -> ir.Value:
    """The normaliser of each row [samples, 1]; minus infinity, as its operator has it, where all of a row is hidden."""
    dtype = dtype_of(largest)
    with np.errstate(over="ignore"):  # of half precision, where it is minus infinity
        least = np.asarray(LEAST).astype(dtype)
    return op.Where(op.Greater(largest, least), op.Sub(largest, row_maxima(op, logarithms)), np.asarray(-np.inf, dtype))


def slopes_of(
    op: Builder,
    logarithms: ir.Value,
    wanted: Wanted,
    by: Derivatives,
    numbers: Sequence[ir.Value],
    read: Sequence[ir.Value] = (),
) -> Rows:
    """Emit the gradient of rows of logits, in the buffer of the log-probabilities.

    Args:
        op: the builder.
        logarithms: [samples, classes].
        wanted: the labels and weights.
        by: the derivatives by the numbers.
        numbers: what is made of the rows; is there before the logarithms go.
        read: what else is.
    """
    factors, shares = shares_of(op, wanted, by, numbers, shape_of(logarithms)[1])
    squares = "squared" in wanted.others  # made of the number before
    for value in (*numbers[: wanted.count - squares], *read):
        logarithms = _after(op, logarithms, value)
    rows = op.Softmax(logarithms, axis=-1)
    for indices, share in zip(wanted.indices, shares, strict=True):
        if share is not None:
            rows = op.ScatterElements(rows, indices, share, axis=1, reduction="add")
    return Rows(rows, factors, None if by.summed is None else Offsets(by.summed, wanted.weights))


def shares_of(
    op: Builder, wanted: Wanted, by: Derivatives, numbers: Sequence[ir.Value], classes: int
) -> tuple[ir.Value, list[ir.Value | None]]:
    """Emit the factors ``t`` of the rows [samples, 1], and for each number that is picked ``g/t``.

    Args:
        op: the builder.
        wanted: the weights.
        by: the derivatives by the numbers, one at least.
        numbers: what is made of the rows.
        classes: number of classes.
    """
    summed = None
    if by.summed is not None:
        weights = wanted.weights
        count = float(classes) if weights is None else op.ReduceSum(weights, np.asarray([0, 1], np.int64), keepdims=1)
        summed = op.Mul(by.summed, count)
    squared = None
    if by.squared is not None:
        normaliser = numbers[len(wanted.indices) + wanted.others.index("normaliser")]
        squared = op.Mul(op.Mul(by.squared, normaliser), 2.0)
    picked = [value for value in by.picked if value is not None]
    plus, minus = _added(op, [by.normaliser, squared]), _added(op, [*picked, summed])
    if minus is None:
        assert plus is not None
        return plus, [None] * len(by.picked)
    factors = op.Neg(minus) if plus is None else op.Sub(plus, minus)
    if not picked:
        return factors, [None] * len(by.picked)
    least, zero = np.asarray(_LEAST, dtype_of(factors)), op.Equal(factors, 0.0)
    some = op.Not(op.Equal(_added(op, [op.Abs(value) for value in picked]), 0.0))
    divisor = op.Where(zero, least, factors)
    shares = [None if value is None else op.Div(value, divisor) for value in by.picked]
    return op.Where(op.And(zero, some), least, factors), shares


def _added(op: Builder, values: Sequence[ir.Value | None]) -> ir.Value | None:
    """The sum of those values that are there."""
    total: ir.Value | None = None
    for value in values:
        if value is not None:
            total = value if total is None else op.Add(total, value)
    return total


def _after(op: Builder, value: ir.Value, event: ir.Value) -> ir.Value:
    """A view that waits for an event, where a buffer of this size matters; see `presence.read_after`."""
    return read_after(op, value, event) if size_of(value) >= _LARGE else value
