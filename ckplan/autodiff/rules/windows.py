"""Sliding windows: what Conv, ConvTranspose and the pooling operators have in common.

All sizes are per spatial axis. Tap ``i`` of output ``p`` reads input ``p * stride + i * dilation - begin``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.slices import slice_axes
from ckplan.autodiff.reading import attr_ints, attr_str, required_input, shape_of

IN_PLANES_ELEMENTS = 2**16
"""Elements from which on a Pad is worth two nodes more: to pad them takes a GPU longer than to start a kernel."""


@dataclass(frozen=True)
class Window:
    """The geometry of a sliding window.

    Attributes:
        inputs: spatial sizes of what the window slides over.
        outputs: how many places it stops at.
        kernel: taps.
        strides: step between places.
        dilations: step between taps.
        begin: padding before the first element.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]

    @property
    def end(self) -> tuple[int, ...]:
        """Padding that the last place needs after the last element; negative where trailing elements are not read."""
        spans = zip(self.outputs, self.strides, self.kernel, self.dilations, self.inputs, self.begin, strict=True)
        return tuple((p - 1) * s + (k - 1) * d + 1 - size - b for p, s, k, d, size, b in spans)

    @property
    def transposed_padding(self) -> dict[str, list[int]]:
        """Attributes of the ConvTranspose that writes what the window reads: ``pads`` and ``output_padding``.

        Both ends of all axes are padded alike where that is possible: onnxruntime's CUDA kernel knows no other padding,
        and others run on the CPU, with a copy there and back. It takes no ``output_padding`` of a stride or more.
        """
        extra = [begin - end for begin, end in zip(self.begin, self.end, strict=True)]
        if all(0 <= size < stride for size, stride in zip(extra, self.strides, strict=True)):
            return {"pads": [*self.begin, *self.begin], "output_padding": extra}
        pads = [*self.begin, *(max(size, 0) for size in self.end)]
        return {"pads": pads, "output_padding": [max(-size, 0) for size in self.end]}

    @property
    def reach(self) -> tuple[int, ...]:
        """Distance from the first to the last tap."""
        return tuple((k - 1) * d for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def is_dilated(self) -> bool:
        """Whether taps lie apart along some axis."""
        return any(d > 1 and k > 1 for d, k in zip(self.dilations, self.kernel, strict=True))

    @property
    def taps(self) -> list[tuple[int, ...]]:
        """All taps, in the order in which a kernel lies in memory."""
        return list(itertools.product(*map(range, self.kernel)))

    @property
    def is_pointwise(self) -> bool:
        """Whether every output reads exactly the input at its own place."""
        return self.size == 1 and self.inputs == self.outputs and not any(self.begin)

    @property
    def size(self) -> int:
        """Number of taps."""
        return math.prod(self.kernel)

    @property
    def places(self) -> int:
        """Number of outputs of one channel of one sample."""
        return math.prod(self.outputs)


def window_of(node: ir.Node, inputs: Sequence[int], outputs: Sequence[int], kernel: Sequence[int]) -> Window:
    """Read the attributes of a Conv or pooling node.

    Args:
        node: the node; ``strides``, ``dilations``, ``pads`` and ``auto_pad`` mean the same in all of them.
        inputs: spatial shape of its input.
        outputs: spatial shape of its output, from which ``auto_pad`` follows.
        kernel: spatial shape of its kernel.
    """
    ones = (1,) * len(kernel)
    strides = attr_ints(node, "strides") or ones
    dilations = attr_ints(node, "dilations") or ones
    begin = (attr_ints(node, "pads") or (0,) * 2 * len(kernel))[: len(kernel)]
    automatic = attr_str(node, "auto_pad", "NOTSET")
    if automatic != "NOTSET":
        begin = (0,) * len(kernel)
    window = Window(tuple(inputs), tuple(outputs), tuple(kernel), strides, dilations, begin)
    if automatic.startswith("SAME"):
        lower = automatic == "SAME_LOWER"
        begin = tuple((max(total, 0) + lower) // 2 for total in window.end)
        window = Window(tuple(inputs), tuple(outputs), tuple(kernel), strides, dilations, begin)
    return window


def convolution_window(node: ir.Node) -> Window:
    """The window of a Conv, or of a composite with the same inputs, attributes and output."""
    x, weight, y = required_input(node, 0), required_input(node, 1), node.outputs[0]
    return window_of(node, shape_of(x)[2:], shape_of(y)[2:], shape_of(weight)[2:])


def pad_axes(
    op: Builder,
    value: ir.Value,
    axes: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    fill: float | None = None,
) -> ir.Value:
    """Pad some axes, or crop where the padding is negative; no node if there is nothing to do.

    Args:
        op: the builder.
        value: what to pad.
        axes: counted from the front.
        begin: elements before, for each of the axes.
        end: elements behind.
        fill: what they hold; zeros if left out.
    """
    shape = shape_of(value)
    ends = [shape[axis] + min(last, 0) for axis, last in zip(axes, end, strict=True)]
    value = slice_axes(op, value, axes, [max(-first, 0) for first in begin], ends)
    begin, end = [max(first, 0) for first in begin], [max(last, 0) for last in end]
    if not any(begin) and not any(end):
        return value
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, first, last in zip(axes, begin, end, strict=True):
        before[axis], after[axis] = first, last
    return _padded_in_planes(op, value, before, after, fill)


def _padded_in_planes(
    op: Builder, value: ir.Value, before: list[int], after: list[int], fill: float | None
) -> ir.Value:
    """Emit a Pad; for CUDA one of large tensors over the last two axes of a view.

    Of up to four axes CUDA pads the last two 50 times as fast as any others; to the CPU they are alike. Axes that are
    not padded are one with those beside them, and so are all that lie behind a padded one.
    """
    shape = shape_of(value)
    whole = [size + first + last for size, first, last in zip(shape, before, after, strict=True)]
    padded = [axis for axis in range(len(shape)) if before[axis] or after[axis]]
    first, last = padded[0], padded[-1]
    planes = first >= len(shape) - 2 and len(shape) <= 4
    if op.device != "cuda" or planes or last > first + 1 or math.prod(whole) < IN_PLANES_ELEMENTS:
        return op.Pad(value, np.asarray(before + after, dtype=np.int64), fill)
    behind = math.prod(shape[last + 1 :])
    high = [shape[first]] if last > first else []
    view = op.reshape(value, [math.prod(shape[:first]), *high, shape[last] * behind])
    ends = [[0, *amount[first:last], amount[last] * behind] for amount in (before, after)]
    return op.reshape(op.Pad(view, np.asarray(ends, dtype=np.int64).reshape(-1), fill), whole)


def tap_of(op: Builder, padded: ir.Value, window: Window, tap: Sequence[int], axes: Sequence[int]) -> ir.Value:
    """Return what one tap of the window reads of an input that is padded at the beginning (and at the end).

    Args:
        op: the builder.
        padded: the input.
        window: its strides, dilations and numbers of outputs.
        tap: the place in the window along each of the axes.
        axes: those that the window moves along.
    """
    starts = [i * d for i, d in zip(tap, window.dilations, strict=True)]
    spans = zip(starts, window.outputs, window.strides, strict=True)
    return slice_axes(op, padded, axes, starts, [a + (p - 1) * s + 1 for a, p, s in spans], window.strides)


def permuted(op: Builder, value: ir.Value, perm: Sequence[int], shape: Sequence[int]) -> ir.Value:
    """Transpose and reshape; a single Reshape if only axes of one element move.

    Two Reshapes in a row are merged by onnxruntime into a new node, which its PRIORITY_BASED order then puts last.
    """
    old = shape_of(value)
    moving = [axis for axis in perm if old[axis] != 1]
    if moving != sorted(moving):
        value = op.Transpose(value, perm=list(perm))
    return op.reshape(value, shape)


def told_apart(op: Builder, value: ir.Value, axis: int, stride: int) -> Iterator[ir.Value]:
    """Yield the elements of each residue modulo the stride along an axis, all of them by one pass.

    Args:
        op: the builder.
        value: of a size that the stride divides along the axis.
        axis: not negative.
        stride: step between the elements of a residue.
    """
    if stride == 1:
        yield value
        return
    lead, rest = shape_of(value)[:axis], shape_of(value)[axis + 1 :]
    width = shape_of(value)[axis] // stride
    split = op.reshape(value, [*lead, width, stride, *rest])
    parts = op.Split(split, axis=axis + 1, num_outputs=stride, _outputs=stride)
    yield from (op.reshape(part, [*lead, width, *rest]) for part in parts)


def places_of(window: Window, tap: Sequence[int], sizes: Sequence[int]) -> np.ndarray:
    """Which places of a plane a tap reads, counted row by row, int32.

    Args:
        window: geometry.
        tap: the tap, along the first axes of the window or all.
        sizes: of the plane along these axes, padded.
    """
    spans = zip(tap, window.dilations, window.strides, window.outputs, strict=False)
    along = [index * dilation + stride * np.arange(count) for index, dilation, stride, count in spans]
    grid = np.meshgrid(*along, indexing="ij")
    return np.ravel_multi_index(grid, tuple(sizes)).reshape(-1).astype(np.int32) if along else np.zeros(1, np.int32)
