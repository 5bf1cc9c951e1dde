"""Gradients of operators that pick elements by index.

Adding up the gradients of elements that were picked several times is the hard part. onnxruntime's ``ScatterND`` with
``reduction="add"`` lets threads race for the same element on the CPU and loses some of the additions, so everything
here goes through ``ScatterElements``, which is sequential, exact and works in the buffer of its first input. Its
indices have the shape of the updates; they are kept small by using 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.scattering import diagonal_sums, rows_of_diagonals, scatter_add, scatter_columns
from ckplan.autodiff.idioms.slices import stretch
from ckplan.autodiff.idioms.tables import Lookups, add_lookups, is_narrow
from ckplan.autodiff.idioms.transposes import before_transpose
from ckplan.autodiff.reading import attr_int, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import NoGradientError, rule
from ckplan.autodiff.rules.placement.parts import gradient_of_part
from ckplan.autodiff.rules.placement.shape import pad
from ckplan.keys import PADDING_ROW
from ckplan.operators.matching import input_of

_MOST_RUNS = 32
"""Runs of neighbours beyond which fixed indices are scattered like any others: each takes three nodes."""

_PASSES = 2
"""How often the gradient may be passed over, as a ratio of what was picked: runs that are short are scattered."""


@rule("Gather", fixed=[1])
def gather(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The gradient added to the rows that were picked.

    What other readers of a table (the output layer of a language model with tied embeddings) contributed already is
    added to in place, so there is never a second tensor of its size. The padding row of a table gets nothing.
    """
    data, indices, g = required_input(node, 0), required_input(node, 1), dy[0]
    assert g is not None
    shape = shape_of(data)
    axis = attr_int(node, "axis", 0) % len(shape)
    picked = list(shape)
    picked[axis] = math.prod(shape_of(indices))
    if 0 in picked or 0 in shape:
        return [None]
    rows = op.reshape(g, picked)
    known = op.constant_of(indices)
    padding = node.metadata_props.get(PADDING_ROW)
    if padding is not None and (known is None or int(padding) in known):
        is_padding = op.Equal(op.reshape(indices, [picked[0], *[1] * (len(picked) - 1)]), int(padding))
        rows = op.Where(is_padding, 0.0, rows)
    if known is not None:
        runs = _runs(known.reshape(-1) % shape[axis])
        if len(runs) == 1:
            return [gradient_of_part(op, data, rows, axis, range(runs[0][0], runs[0][-1] + 1))]
        if len(runs) <= _MOST_RUNS and len(runs) * shape[axis] <= _PASSES * picked[axis]:
            return [_shifted(op, rows, axis, runs, shape)]
        step = _step_of(runs)
        if step and len(runs[0]) <= _MOST_RUNS * step:
            return [_overlapped(op, rows, axis, runs, step, shape)]
    which = op.reshape(indices, [picked[axis]])
    from_start = known is not None and known.min() >= 0 and padding is None and data not in op.partials
    if axis == 0 and from_start and len(shape) == 2:
        assert known is not None
        source, perm = before_transpose(g)
        by_column = perm == (*range(1, len(perm)), 0)
        diagonals = rows_of_diagonals(known) if by_column else None  # as a table of distances is read
        if diagonals is not None:
            sums = diagonal_sums(op, op.reshape(source, (shape[1], *known.shape[-2:])))
            return [scatter_columns(op, op.constant(diagonals), sums, shape[0])]
        if by_column and is_narrow(shape, picked[0]):
            return [scatter_columns(op, which, op.reshape(source, (shape[1], picked[0])), shape[0])]
    others = op.take_partial(data)
    if axis == 0:
        flat = op.reshape(rows, (picked[0], math.prod(shape[1:])))
        return [add_lookups(op, shape, Lookups(which, flat, others))]
    return [scatter_add(op, others or op.zeros(shape, g), axis, which, rows)]


def _runs(indices: np.ndarray) -> list[np.ndarray]:
    """Indices [n] cut wherever the next is not one larger."""
    return np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)


def _step_of(runs: Sequence[np.ndarray]) -> int:
    """How far windows, runs of the same length, are apart; 0 if they are none, or not all as far."""
    starts = np.asarray([run[0] for run in runs])
    steps = np.unique(np.diff(starts))
    alike = len({len(run) for run in runs}) == 1 and len(steps) == 1 and steps[0] > 0
    return int(steps[0]) if alike else 0


def _overlapped(
    op: Builder, rows: ir.Value, axis: int, windows: Sequence[np.ndarray], step: int, shape: Sequence[int]
) -> ir.Value:
    """Add up overlapping windows, as those of ``torch.Tensor.unfold``.

    What stands in all of them from the j-th step to the next lies side by side, so that there are as many sums as steps
    in a window, however many windows there are.
    """
    outer, inner, length = shape[:axis], shape[axis + 1 :], len(windows[0])
    apart = op.reshape(rows, [*outer, len(windows), length, *inner])
    total: ir.Value | None = None
    for begin in range(0, length, step):
        end = min(begin + step, length)
        piece = apart if end - begin == length else stretch(op, apart, axis + 1, begin, end)
        first = int(windows[0][0]) + begin
        whole = _padded(op, piece, axis + 1, 0, step - (end - begin))
        piece = op.reshape(whole, [*outer, len(windows) * step, *inner])
        if first + len(windows) * step > shape[axis]:  # what the last window is filled up with stands behind the end
            piece = stretch(op, piece, axis, 0, shape[axis] - first)
        placed = _padded(op, piece, axis, first, shape[axis] - first - shape_of(piece)[axis])
        total = placed if total is None else op.Add(total, placed)
    assert total is not None
    return total


def _padded(op: Builder, value: ir.Value, axis: int, before: int, after: int) -> ir.Value:
    """A value with zeros around it along an axis."""
    pads = [[0] * len(shape_of(value)) for _ in range(2)]
    pads[0][axis], pads[1][axis] = before, after
    return pad(op, value, *pads)


def _shifted(op: Builder, rows: ir.Value, axis: int, runs: Sequence[np.ndarray], shape: Sequence[int]) -> ir.Value:
    """Put each run of rows where it was picked and add them up, as for overlapping windows.

    Scattered, an element would take 20 bytes for a while: its index as it is given and as the kernel copies it.
    """
    total: ir.Value | None = None
    start = 0
    for run in runs:
        end = start + len(run)
        piece = stretch(op, rows, axis, start, end)
        placed = _padded(op, piece, axis, int(run[0]), shape[axis] - int(run[-1]) - 1)
        total = placed if total is None else op.Add(total, placed)
        start = end
    assert total is not None
    return total


@rule("GatherElements", fixed=[1])
def gather_elements(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The gradient added to the elements that were picked."""
    data, g = required_input(node, 0), dy[0]
    assert g is not None
    into = op.take_partial(data) or op.zeros(shape_of(data), g)
    return [op.ScatterElements(into, node.inputs[1], g, axis=attr_int(node, "axis", 0), reduction="add")]


@rule("GatherND", since=11, fixed=[1])
def gather_nd(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The gradient added to the slices that were picked."""
    data, indices, g = required_input(node, 0), required_input(node, 1), dy[0]
    assert g is not None
    shape = shape_of(data)
    count, batch = math.prod(shape_of(indices)[:-1]), attr_int(node, "batch_dims", 0)
    if 0 in shape or count == 0:
        return [None]
    depth = batch + shape_of(indices)[-1]
    rows = math.prod(shape[:depth])
    flat = flat_indices(op, indices, shape, batch)
    zeros = op.zeros([rows, math.prod(shape[depth:])], g)
    added = scatter_add(op, zeros, 0, flat, op.reshape(g, [count, math.prod(shape[depth:])]))
    return [op.reshape(added, shape)]


def flat_indices(op: Builder, indices: ir.Value, shape: Sequence[int], batch: int) -> ir.Value:
    """Turn index tuples (of GatherND) into positions among the slices of the data.

    Args:
        op: the builder.
        indices: [..., tuple]; negative ones count from the end.
        shape: of the data.
        batch: how many leading axes data and indices have in common.

    Returns:
        One integer for each tuple, of rank 1.
    """
    width = shape_of(indices)[-1]
    dims = np.asarray(shape[batch : batch + width], dtype=np.int64)
    strides = np.asarray([math.prod(dims[i + 1 :].tolist()) for i in range(width)], dtype=np.int64)
    positions = op.ReduceSum(op.Mul(op.Mod(indices, dims), strides), np.asarray([-1]), keepdims=0)
    if batch:
        batches = math.prod(shape[:batch])
        positions = op.reshape(positions, [batches, -1 if 0 in shape else math.prod(shape_of(positions)) // batches])
        positions = op.Add(positions, np.arange(batches, dtype=np.int64).reshape(-1, 1) * math.prod(dims.tolist()))
    return op.reshape(positions, [math.prod(shape_of(indices)[:-1])])


@rule("TopK", since=10, fixed=[1])
def topk(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The gradient put where the values came from."""
    if dy[0] is None:
        return [None]
    zeros = op.zeros(shape_of(required_input(node, 0)), dy[0])
    return [op.ScatterElements(zeros, node.outputs[1], dy[0], axis=attr_int(node, "axis", -1))]


@rule("Compress", since=9, fixed=[1])
def compress(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """A Gather of the elements chosen, if the file says which."""
    data, condition, g = required_input(node, 0), op.constant_of(input_of(node, 1)), dy[0]
    assert g is not None
    if condition is None:
        raise NoGradientError("its condition is computed at run time, so that the number of results depends on it")
    axis = attr_int(node, "axis", 0)
    shape = shape_of(data) if "axis" in node.attributes else (math.prod(shape_of(data)),)
    if 0 in shape_of(g):
        return [None]
    chosen = np.flatnonzero(condition).astype(np.int32)
    into = op.zeros(shape, g)
    return [op.reshape(scatter_add(op, into, axis % len(shape), op.constant(chosen), g), shape_of(data))]


@rule("OneHot", fixed=[0, 1])
def one_hot(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Of the two values: the gradient summed over the positions that are off, and over those that are on."""
    g, values = dy[0], required_input(node, 2)
    assert g is not None
    zero_one = np.asarray([0, 1], dtype=dtype_of(values))
    depth = op.constant_ints(node, 1, "depth")  # as integers: shape inference does not read every type it may have
    assert depth is not None
    on = op.OneHot(node.inputs[0], np.asarray(depth[0], np.int64), zero_one, axis=attr_int(node, "axis", -1))
    axes = range(len(shape_of(g)))
    chosen = op.reshape(op.reduce_sum(op.Mul(g, on), axes), [1])
    rest = op.Sub(op.reshape(op.reduce_sum(g, axes), [1]), chosen)
    return [None, None, op.Concat(rest, chosen, axis=0)]
