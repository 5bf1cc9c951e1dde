"""Bags of embeddings, which PyTorch's exporters write as a Loop over slices of indices, are written without one.

Each step of the Loop reads the rows of as many indices as a bag has, which is for the data to say, and reduces them.
The old exporter cuts the indices; the form of the other one is told by `ckplan.model.sequences.bag_sequences`.
All rows are read at once instead, and each goes to its bag: how many bags have begun at an index is a cumulative sum.
What this takes grows with the rows and the bags, and it has gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.model.bodies import bodies_of
from ckplan.model.contrib.emitter import Emitter
from ckplan.model.inference.infer import static_shape
from ckplan.model.rewiring import put_in_place
from ckplan.operators.matching import is_op

Constant = Callable[[ir.Value | None], np.ndarray | None]

_REDUCTIONS = {"ReduceMax": "max", "ReduceMean": "add", "ReduceSum": "add"}


@dataclass(frozen=True)
class Bags:
    """Bags of rows.

    Attributes:
        reduction: operator that makes one row of the rows of a bag.
        rows: (n, ...), those of all bags, one bag behind the other.
        bounds: (bags + 1,) or more: where each bag begins, and where the last one ends.
        count: number of bags.
        default: whether a bag of nothing is a row of zeros, rather than what the operator makes of nothing.
    """

    reduction: str
    rows: ir.Value
    bounds: ir.Value
    count: int
    default: bool = False


@dataclass(frozen=True)
class _Found:
    """What the steps of a Loop read.

    Attributes:
        reduction: operator that makes one row of the rows of a bag.
        table: (entries, ...).
        indices: (n,), those of all bags, one bag behind the other.
        bounds: (bags + 1,) or more: where each bag begins, and where the last one ends.
        count: number of bags.
        weights: (n,), what each row is multiplied by; None if that is one.
    """

    reduction: str
    table: ir.Value
    indices: ir.Value
    bounds: ir.Value
    count: int
    weights: ir.Value | None = None


@dataclass(frozen=True)
class _Cut:
    """What a step of a Loop reads of a vector: elements from one number of another vector to one of a third.

    Attributes:
        source: the vector.
        begins: where the elements of each step begin.
        ends: where they end.
    """

    source: ir.Value
    begins: ir.Value
    ends: ir.Value


def write_bags(node: ir.Node, visit: Callable[[ir.Node], None], constant: Constant) -> bool:
    """Write a Loop over bags without a Loop, in place.

    Where bags begin has to ascend, as PyTorch demands. What lies before the first one, or behind the end, is in none.

    Args:
        node: any node whose bodies were visited.
        visit: infers the outputs of a new node, and folds what is constant.
        constant: the content of a value that is known in advance, else None.

    Returns:
        Whether it was such a Loop.
    """
    if not is_op(node, "Loop") or len(node.outputs) != 1:
        return False
    found = _read(node, constant)
    if found is None:
        return False
    emitter = Emitter(node, visit, constant)
    rows = emitter.Gather(found.table, found.indices, axis=0)
    if found.weights is not None:
        rows = emitter.Mul(rows, emitter.reshape(found.weights, [*emitter.shape(found.weights), 1]))
    result = emit_bags(emitter, Bags(found.reduction, rows, found.bounds, found.count))
    put_in_place(node, result)
    return True


def _read(node: ir.Node, constant: Constant) -> _Found | None:
    """Tell what a Loop reads; None if it is another one than those over bags."""
    (body,) = bodies_of(node)
    count, reduce = _trips(node, body, constant), body.outputs[1].producer()
    if not count or reduce is None or not _drops_rows(reduce, constant):
        return None
    multiply = _maker(reduce.inputs[0], "Mul")
    read = [reduce.inputs[0]] if multiply is None else list(multiply.inputs)
    gather = next((maker for value in read if (maker := _maker(value, "Gather")) is not None), None)
    cut = _cut_of(gather.inputs[1], body, constant) if gather is not None and _along_rows(gather) else None
    if gather is None or cut is None:
        return None
    table, inside = gather.inputs[0], {output for inner in body for output in inner.outputs} | set(body.inputs)
    weights = None
    if multiply is not None:
        (column,) = (value for value in read if value is not gather.outputs[0])
        weights = _weights(column, cut, body, constant)
    if table is None or (multiply is not None and weights is None):
        return None
    if {table, cut.source, cut.begins, cut.ends, weights} & inside:
        return None
    of_table, of_indices, of_begin = (static_shape(value) for value in (table, cut.source, cut.begins))
    if of_table is None or of_indices is None or of_begin is None or len(of_indices) != 1 or len(of_begin) != 1:
        return None
    if weights is not None and (len(of_table) != 2 or static_shape(weights) != of_indices):
        return None
    if of_begin[0] <= count or not _is_next(cut.begins, cut.ends, count, constant):
        return None
    return _Found(reduce.op_type, table, cut.source, cut.begins, count, weights)


def _cut_of(value: ir.Value | None, body: ir.Graph, constant: Constant) -> _Cut | None:
    """Tell which elements of a vector a value is; None if it is something else."""
    cut = _maker(value, "Slice")
    if cut is None or not _of_step_one(cut.inputs[3:], constant):
        return None
    begins, ends = (_row_of(bound, body.inputs[0]) for bound in cut.inputs[1:3])
    source = cut.inputs[0]
    return None if source is None or begins is None or ends is None else _Cut(source, begins, ends)


def _weights(column: ir.Value | None, rows: _Cut, body: ir.Graph, constant: Constant) -> ir.Value | None:
    """The vector that has a weight for each row, of which a step reads the same elements as of the indices of rows."""
    unsqueeze = _maker(column, "Unsqueeze")
    axes = constant(unsqueeze.inputs[1]) if unsqueeze is not None else None
    cut = _cut_of(unsqueeze.inputs[0], body, constant) if unsqueeze is not None else None
    if cut is None or axes is None or axes.tolist() not in ([1], [-1]):
        return None
    return cut.source if (cut.begins, cut.ends) == (rows.begins, rows.ends) else None


def _trips(node: ir.Node, body: ir.Graph, constant: Constant) -> int:
    """How many steps a Loop takes that nothing ends and that carries nothing; 0 if it is another one."""
    begins = node.inputs[1] if len(node.inputs) > 1 else None
    trips, goes = constant(node.inputs[0]), constant(body.outputs[0])
    starts = constant(begins) if begins is not None else np.asarray(True)
    if trips is None or goes is None or starts is None or not goes.all() or not starts.all() or len(body.inputs) != 2:
        return 0
    return max(int(trips.reshape(())), 0)


def _drops_rows(reduce: ir.Node, constant: Constant) -> bool:
    """Whether a node makes one row of rows, in one of the ways of bags."""
    axes = constant(reduce.inputs[1]) if len(reduce.inputs) > 1 else None
    way = reduce.op_type in _REDUCTIONS and reduce.attributes.get_int("keepdims", 1) == 0
    return way and axes is not None and axes.tolist() == [0]


def _along_rows(gather: ir.Node) -> bool:
    """Whether a Gather takes rows."""
    return gather.attributes.get_int("axis", 0) == 0


def _of_step_one(ways: Sequence[ir.Value | None], constant: Constant) -> bool:
    """Whether the axes and the steps of a Slice, as far as they are there, are the first axis and one."""
    known = [constant(value) for value in ways]
    return all(way is not None and way.tolist() == wanted for way, wanted in zip(known, ([0], [1]), strict=False))


def _maker(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that makes a value, if it is of this type."""
    node = value.producer() if value is not None else None
    return node if is_op(node, op_type) else None


def _row_of(value: ir.Value | None, clock: ir.Value) -> ir.Value | None:
    """The vector whose number of the step a value of one element is; None if it is something else."""
    unsqueeze = _maker(value, "Unsqueeze")
    gather = _maker(unsqueeze.inputs[0], "Gather") if unsqueeze is not None else None
    if gather is None or gather.inputs[1] is not clock or not _along_rows(gather):
        return None
    return gather.inputs[0]


def _is_next(begin: ir.Value, end: ir.Value, count: int, constant: Constant) -> bool:
    """Say whether a vector is another one from its second element on, so that each bag ends where the next begins."""
    begins, ends = constant(begin), constant(end)
    if begins is not None and ends is not None:
        return np.array_equal(begins[1 : count + 1], ends[:count])
    cut = _maker(end, "Slice")
    if cut is None or cut.inputs[0] is not begin:
        return False
    first, last = (constant(value) for value in cut.inputs[1:3])
    size = static_shape(begin)
    if first is None or last is None or size is None or first.tolist() != [1] or int(last.reshape(())) < size[0]:
        return False
    return _of_step_one(cut.inputs[3:], constant)


def emit_bags(e: Emitter, bags: Bags) -> ir.Value:
    """Emit one row for each bag, (count, ...)."""
    n, *rest = e.shape(bags.rows)
    width, count = math.prod(rest), bags.count
    bounds = e.cast(bags.bounds, ir.DataType.INT64)
    if e.shape(bounds) != (count + 1,):
        bounds = e.Slice(bounds, *(np.asarray([number]) for number in (0, count + 1, 0)))
    ones, none = np.ones(count + 1, np.int64), np.zeros(n + 1, np.int64)
    marked = e.ScatterElements(e.literal(none), bounds, ones, axis=0, reduction="add")
    # How many bags have begun: 0 before the first one, count + 1 behind the last.
    begun = e.Slice(e.CumSum(marked, np.asarray(0)), *(np.asarray([number]) for number in (0, n, 0)))
    places = e.Expand(e.reshape(begun, [n, 1]), np.asarray([n, width]))
    rows = e.reshape(bags.rows, [n, width])
    assert rows.dtype is not None
    largest = bags.reduction == "ReduceMax"
    start = np.full((count + 2, width), -np.inf if largest else 0, rows.dtype.numpy())
    way = _REDUCTIONS[bags.reduction]
    added = e.ScatterElements(e.literal(start), places, rows, axis=0, reduction=way)
    kept = e.Slice(added, *(np.asarray([number]) for number in (1, count + 1, 0)))
    if bags.reduction == "ReduceMean" or (largest and bags.default):
        ends = (e.Slice(bounds, *(np.asarray([i]) for i in (first, first + count, 0))) for first in (1, 0))
        sizes = e.cast(e.reshape(e.Sub(*ends), [count, 1]), rows.dtype)
        if largest:
            kept = e.Where(e.Equal(sizes, np.zeros((), rows.dtype.numpy())), np.zeros((), rows.dtype.numpy()), kept)
        else:
            kept = e.Div(kept, e.Max(sizes, np.ones((), rows.dtype.numpy())) if bags.default else sizes)
    return e.reshape(kept, [count, *rest])
