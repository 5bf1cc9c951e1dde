"""Gradients of operators that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_float, attr_int, attr_ints, attr_str, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.placement.parts import gradient_of_part, is_part
from ckplan.operators.matching import input_of


@rule("Reshape", fixed=[1], factor="pass")
@rule("Flatten", factor="pass")
@rule("Squeeze", since=13, fixed=[1], factor="pass")
@rule("Unsqueeze", since=13, fixed=[1], factor="pass")
def reshape(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The gradient in the input's shape."""
    assert dy[0] is not None
    return [op.reshape(dy[0], shape_of(required_input(node, 0)))]


@rule("Transpose", factor="pass")
def transpose(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The gradient transposed back; a product that nothing else reads is made in the other layout at once."""
    assert dy[0] is not None
    rank = len(shape_of(dy[0]))
    perm = attr_ints(node, "perm") or tuple(reversed(range(rank)))
    turned = _turned_product(op, dy[0]) if perm == (1, 0) else None
    return [turned or op.transpose(dy[0], [perm.index(axis) for axis in range(rank)])]


def _turned_product(op: Builder, value: ir.Value) -> ir.Value | None:
    """The transpose of a value as the product ``B^T A^T``, if it is a product ``A B`` made for its sake alone."""
    node = value.producer()
    if node is None or node.op_type != "Gemm" or value.uses():
        return None
    addend = input_of(node, 2)
    if addend is not None:
        addend = op.transpose(addend, (1, 0)) if len(shape_of(addend)) == 2 else None
        if addend is None:
            return None
    flip_a, flip_b = attr_int(node, "transA", 0), attr_int(node, "transB", 0)
    alpha, beta = attr_float(node, "alpha", 1.0), node.attributes.get("beta")
    return op.Gemm(
        node.inputs[1],
        node.inputs[0],
        addend,
        alpha=alpha,
        beta=None if beta is None else beta.as_float(),
        transA=1 - flip_b,
        transB=1 - flip_a,
    )


@rule("Concat")
def concat(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The pieces of the gradient; all at once by Split, or one Slice each where only some are needed."""
    g = dy[0]
    assert g is not None
    axis = attr_int(node, "axis", 0) % len(shape_of(g))
    inputs = [required_input(node, i) for i in range(len(node.inputs))]
    sizes = [shape_of(x)[axis] for x in inputs]
    if len(inputs) == 1:
        return [g]
    if all(op.wants(x) for x in inputs):
        return op.Split(g, np.asarray(sizes, dtype=np.int64), axis=axis, _outputs=len(sizes))
    ends = np.cumsum(sizes)
    return [
        cut(op, g, axis, int(end) - size, int(end)) if op.wants(x) else None
        for x, size, end in zip(inputs, sizes, ends, strict=True)
    ]


def cut(op: Builder, value: ir.Value, axis: int, start: int, end: int, step: int = 1) -> ir.Value:
    """Slice one axis; the value itself if nothing is cut off."""
    if (start, step) == (0, 1) and end == shape_of(value)[axis]:
        return value
    bounds = [np.asarray([number], dtype=np.int64) for number in (start, end, axis, step)]
    return op.Slice(value, *(bounds if step != 1 else bounds[:3]))


def pad(op: Builder, value: ir.Value, before: Sequence[int], after: Sequence[int]) -> ir.Value:
    """Put zeros around a value; the value itself if there are none to put."""
    if not any(before) and not any(after):
        return value
    return op.Pad(value, np.asarray([*before, *after], dtype=np.int64))


@rule("Split", fixed=[1])
def split(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The gradients put together, with zeros for pieces that got none."""
    shape = shape_of(required_input(node, 0))
    axis = attr_int(node, "axis", 0) % len(shape)
    sizes = [shape_of(output)[axis] for output in node.outputs]
    present = [index for index, g in enumerate(dy) if g is not None]
    first, last = present[0], present[-1]
    some = dy[first]
    assert some is not None
    pieces = [
        op.zeros(shape_of(node.outputs[index]), some) if (g := dy[index]) is None else g
        for index in range(first, last + 1)
    ]
    joined = op.Concat(*pieces, axis=axis) if len(pieces) > 1 else some
    before, after = [0] * len(shape), [0] * len(shape)
    before[axis], after[axis] = sum(sizes[:first]), sum(sizes[last + 1 :])
    return [pad(op, joined, before, after)]


@rule("Slice", since=10, fixed=[1, 2, 3, 4])
def slice_(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The gradient with zeros where the slice skipped elements, if not with that of another slice there."""
    x = required_input(node, 0)
    shape = shape_of(x)
    starts, ends = op.constant_ints(node, 1, "starts"), op.constant_ints(node, 2, "ends")
    assert starts is not None
    assert ends is not None
    axes = op.constant_ints(node, 3, "axes") or tuple(range(len(starts)))
    steps = op.constant_ints(node, 4, "steps") or (1,) * len(starts)
    g = dy[0]
    assert g is not None
    if 0 in shape_of(g):
        return [None]
    before, after, parts = [0] * len(shape), [0] * len(shape), []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        axis %= len(shape)
        taken = range(shape[axis])[start:end:step]
        if step < 0:
            taken = taken[::-1]
            g = cut(op, g, axis, -1, -(2**62), -1)
        if len(taken) < shape[axis]:
            parts.append((axis, taken))
    if len(parts) == 1 and is_part(shape[parts[0][0]], parts[0][1]):
        return [gradient_of_part(op, x, g, *parts[0])]
    for axis, taken in parts:
        g = _spread(op, g, axis, taken.step)
        before[axis] = taken[0]
        after[axis] = shape[axis] - taken[-1] - 1
    return [pad(op, g, before, after)]


def _spread(op: Builder, value: ir.Value, axis: int, step: int) -> ir.Value:
    """Put ``step - 1`` zeros between neighbours along an axis."""
    shape = list(shape_of(value))
    count = shape[axis]
    if step == 1 or count == 1:
        return value
    apart = op.reshape(value, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    after = [0] * (len(shape) + 1)
    after[axis + 1] = step - 1
    padded = op.reshape(pad(op, apart, [0] * len(after), after), [*shape[:axis], count * step, *shape[axis + 1 :]])
    return cut(op, padded, axis, 0, (count - 1) * step + 1)


@rule("Expand", fixed=[1])
def expand(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The sum over the copies."""
    assert dy[0] is not None
    return [op.sum_to_shape(dy[0], shape_of(required_input(node, 0)))]


@rule("Tile", since=6, fixed=[1])
def tile(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The sum over the copies."""
    assert dy[0] is not None
    shape, tiled = shape_of(required_input(node, 0)), shape_of(dy[0])
    if 0 in tiled:
        return [None]
    apart: list[int] = []
    for dim, size in zip(shape, tiled, strict=True):
        apart += [size // dim, dim]
    summed = op.reduce_sum(op.reshape(dy[0], apart), range(0, 2 * len(shape), 2), keepdims=False) if apart else dy[0]
    return [op.reshape(summed, shape)]


@rule("DepthToSpace")
def depth_to_space(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The elements moved back."""
    assert dy[0] is not None
    block = attr_int(node, "blocksize", 1)
    if attr_str(node, "mode", "DCR") == "DCR":
        return [op.SpaceToDepth(dy[0], blocksize=block)]
    batch, depth, height, width = shape_of(required_input(node, 0))
    apart = op.reshape(dy[0], [batch, depth // block**2, height, block, width, block])
    return [op.reshape(op.transpose(apart, (0, 1, 3, 5, 2, 4)), [batch, depth, height, width])]


@rule("SpaceToDepth")
def space_to_depth(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The elements moved back, in the mode in which they came (opset 28; DCR before)."""
    mode = attr_str(node, "mode", "DCR")
    return [op.DepthToSpace(dy[0], blocksize=attr_int(node, "blocksize", 1), mode=mode)]


@rule("Trilu", fixed=[1])
def trilu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The same triangle of the gradient."""
    return [op.Trilu(dy[0], *node.inputs[1:], upper=attr_int(node, "upper", 1))]


@rule("ReverseSequence")
def reverse_sequence(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reversed again."""
    batch, time = attr_int(node, "batch_axis", 1), attr_int(node, "time_axis", 0)
    return [op.ReverseSequence(dy[0], node.inputs[1], batch_axis=batch, time_axis=time)]


@rule("Range", since=11, fixed=[1])
def range_(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """By the start: the sum; by the step: the sum of numbers counted from 0. How many there are is a choice."""
    start, delta, g = required_input(node, 0), required_input(node, 2), dy[0]
    assert g is not None
    numbers = np.arange(shape_of(g)[0], dtype=dtype_of(g))
    dstart = op.reduce_sum(g, [0], keepdims=False) if op.wants(start) else None
    ddelta = op.reduce_sum(op.Mul(g, numbers), [0], keepdims=False) if op.wants(delta) else None
    return [dstart, None, ddelta]
