"""Plain numpy versions of operators that onnx's reference evaluator gets wrong or cannot run in full.

In onnx 1.23, ConvTranspose fails with groups, unequal kernels and ``output_shape``; MaxPool counts its indices from the
start of the padded channel and gets ``auto_pad`` wrong; GlobalMaxPool only knows two axes; GlobalLpPool and
MaxRoiPool are missing;
LpNormalization of order 1 takes no absolute values; GroupNormalization, GridSample, DeformConv and others
compute in float32 whatever x is, which finite differences do not bear.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx.reference
import pytest
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_grid_sample

from tests.autodiff import gradcheck


class ConvTranspose(OpRun):
    """Every input element adds its multiple of the kernel to the output; then the padding is cut off."""

    def _run(
        self,
        x,
        w,
        bias=None,
        auto_pad="NOTSET",
        dilations=None,
        group=1,
        kernel_shape=None,
        output_padding=None,
        output_shape=None,
        pads=None,
        strides=None,
    ):
        kernel, rank = w.shape[2:], w.ndim - 2
        ones = [1] * rank
        strides, dilations, extra = strides or ones, dilations or ones, output_padding or [0] * rank
        sizes = x.shape[2:]
        full = [
            (n - 1) * s + (k - 1) * d + 1 + e
            for n, s, k, d, e in zip(sizes, strides, kernel, dilations, extra, strict=True)
        ]
        begin, end = list((pads or [0] * 2 * rank)[:rank]), list((pads or [0] * 2 * rank)[rank:])
        if auto_pad.startswith("SAME") and not output_shape:
            output_shape = [n * s for n, s in zip(sizes, strides, strict=True)]
        if output_shape:
            # A wanted size beyond what the kernels reach is filled with zeros at the end.
            full = [max(have, want) for have, want in zip(full, output_shape, strict=True)]
            total = [max(have - want, 0) for have, want in zip(full, output_shape, strict=True)]
            begin = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
            end = [t - b for t, b in zip(total, begin, strict=True)]
        wide, high = x.shape[1] // group, w.shape[1]
        y = np.zeros((x.shape[0], group * high, *full), x.dtype)
        for g in range(group):
            part, weight = x[:, g * wide : (g + 1) * wide], w[g * wide : (g + 1) * wide]
            for tap in itertools.product(*map(range, kernel)):
                places = tuple(
                    slice(i * d, i * d + (n - 1) * s + 1, s)
                    for i, d, n, s in zip(tap, dilations, sizes, strides, strict=True)
                )
                product = np.einsum("nc...,co->no...", part, weight[(slice(None), slice(None), *tap)])
                y[(slice(None), slice(g * high, (g + 1) * high), *places)] += product
        y = y[(..., *(slice(b, size - e) for b, e, size in zip(begin, end, full, strict=True)))]
        return (y if bias is None else y + bias.reshape(-1, *ones),)


class MaxPool(OpRun):
    """Indices count from the start of the tensor, without the padding."""

    def _run(
        self,
        x,
        auto_pad="NOTSET",
        ceil_mode=0,
        dilations=None,
        kernel_shape=None,
        pads=None,
        storage_order=0,
        strides=None,
    ):
        rank = x.ndim - 2
        strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, list(pads or [0] * 2 * rank)
        reaches = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
        if auto_pad.startswith("SAME"):
            spans = zip(x.shape[2:], strides, reaches, strict=True)
            total = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in spans]
            begin = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
            pads = begin + [t - b for t, b in zip(total, begin, strict=True)]
        sizes = []
        for axis in range(rank):
            room = x.shape[2 + axis] + pads[axis] + pads[rank + axis] - reaches[axis]
            count = (-(-room // strides[axis]) if ceil_mode else room // strides[axis]) + 1
            starts_behind = (count - 1) * strides[axis] >= x.shape[2 + axis] + pads[axis]
            sizes.append(count - 1 if ceil_mode and starts_behind else count)
        positions = np.arange(x.size).reshape(x.shape, order="C")
        if storage_order:
            inside = np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:], order="F")
            positions = positions - np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:]) + inside
        room = [
            max((count - 1) * stride + reach, begin + have + end)
            for count, stride, reach, begin, have, end in zip(
                sizes, strides, reaches, pads[:rank], x.shape[2:], pads[rank:], strict=True
            )
        ]
        inner = (..., *(slice(begin, begin + have) for begin, have in zip(pads[:rank], x.shape[2:], strict=True)))
        wide, at = np.full((*x.shape[:2], *room), -np.inf, x.dtype), np.zeros((*x.shape[:2], *room), np.int64)
        wide[inner], at[inner] = x, positions
        y, indices = np.full((*x.shape[:2], *sizes), -np.inf, x.dtype), np.zeros((*x.shape[:2], *sizes), np.int64)
        for tap in itertools.product(*map(range, kernel_shape)):
            places = (
                ...,
                *(
                    slice(i * d, i * d + (count - 1) * s + 1, s)
                    for i, d, count, s in zip(tap, dilations, sizes, strides, strict=True)
                ),
            )
            larger = wide[places] > y
            y, indices = np.where(larger, wide[places], y), np.where(larger, at[places], indices)
        return (y, indices) if self.n_outputs > 1 else (y,)

    @property
    def n_outputs(self) -> int:
        return len(self.onnx_node.output)


def _window_sums(x, auto_pad, ceil_mode, count_include_pad, dilations, kernel_shape, pads, strides):
    """Sum what each window holds, and count it."""
    rank = x.ndim - 2
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, list(pads or [0] * 2 * rank)
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
    if auto_pad.startswith("SAME"):
        total = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(x.shape[2:], strides, reaches, strict=True)]
        begin = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
        pads = begin + [t - b for t, b in zip(total, begin, strict=True)]
    sizes = []
    for axis in range(rank):
        room = x.shape[2 + axis] + pads[axis] + pads[rank + axis] - reaches[axis]
        count = (-(-room // strides[axis]) if ceil_mode else room // strides[axis]) + 1
        starts_behind = (count - 1) * strides[axis] >= x.shape[2 + axis] + pads[axis]
        sizes.append(count - 1 if ceil_mode and starts_behind else count)
    room = [
        max((count - 1) * s + r, b + n + e)
        for count, s, r, b, n, e in zip(sizes, strides, reaches, pads[:rank], x.shape[2:], pads[rank:], strict=True)
    ]
    inner = tuple(slice(b, b + n) for b, n in zip(pads[:rank], x.shape[2:], strict=True))
    padded = tuple(slice(0, b + n + e) for b, n, e in zip(pads[:rank], x.shape[2:], pads[rank:], strict=True))
    wide, counted = np.zeros((*x.shape[:2], *room), x.dtype), np.zeros(room, x.dtype)
    wide[(..., *inner)] = x
    counted[padded if count_include_pad else inner] = 1
    total, number = np.zeros((*x.shape[:2], *sizes), x.dtype), np.zeros(sizes, x.dtype)
    for tap in itertools.product(*map(range, kernel_shape)):
        places = tuple(
            slice(i * d, i * d + (count - 1) * s + 1, s)
            for i, d, count, s in zip(tap, dilations, sizes, strides, strict=True)
        )
        total += wide[(..., *places)]
        number += counted[places]
    return total, number


class AveragePool(OpRun):
    """Sums shifted copies; onnx's own goes from window to window."""

    def _run(
        self,
        x,
        auto_pad="NOTSET",
        ceil_mode=0,
        count_include_pad=0,
        dilations=None,
        kernel_shape=None,
        pads=None,
        strides=None,
    ):
        geometry = auto_pad, ceil_mode, count_include_pad, dilations, kernel_shape, pads, strides
        total, number = _window_sums(x, *geometry)
        return ((total / number).astype(x.dtype),)


class Sum(OpRun):
    """Broadcasts; onnx's own adds to the first summand."""

    def _run(self, *xs):
        return (np.asarray(sum(xs[1:], xs[0])),)


class Mean(OpRun):
    """As Sum."""

    def _run(self, *xs):
        return (np.asarray(sum(xs[1:], xs[0]) / len(xs)).astype(xs[0].dtype),)


class Softsign(OpRun):
    """Of scalars too."""

    def _run(self, x):
        return (np.asarray(x / (1 + np.abs(x))),)


class LpPool(OpRun):
    """Windows that reach over the end, as ceil_mode has them, are counted once; onnx's own repeats what they hold.

    No kernel rounds between, so that powers of half precision find a place.
    """

    def _run(self, x, auto_pad="NOTSET", ceil_mode=0, dilations=None, kernel_shape=None, p=2, pads=None, strides=None):
        powers = np.abs(x.astype(np.float64)) ** p
        total, _ = _window_sums(powers, auto_pad, ceil_mode, 0, dilations, kernel_shape, pads, strides)
        return ((total ** (1 / p)).astype(x.dtype),)


class GlobalMaxPool(OpRun):
    """Over all spatial axes."""

    def _run(self, x):
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(OpRun):
    """Over all spatial axes, as LpPool."""

    def _run(self, x, p=2):
        powers = np.abs(x.astype(np.float64)) ** p
        return ((powers.sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)).astype(x.dtype),)


def _normal(x, axes, epsilon):
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + epsilon)


class GroupNormalization(OpRun):
    """In the type of x throughout."""

    def _run(self, x, scale, bias, epsilon=1e-5, num_groups=1, stash_type=1):
        groups = x.reshape(x.shape[0], num_groups, -1)
        channels = (-1, *[1] * (x.ndim - 2))
        return (_normal(groups, -1, epsilon).reshape(x.shape) * scale.reshape(channels) + bias.reshape(channels),)


class MeanVarianceNormalization(OpRun):
    """In the type of x throughout."""

    def _run(self, x, axes=None):
        axes = axes or (0, 2, 3)
        centred = x - x.mean(axis=tuple(axes), keepdims=True)
        return (centred / (np.sqrt((centred**2).mean(axis=tuple(axes), keepdims=True)) + 1e-9),)


class LpNormalization(OpRun):
    """The norm of order 1 is that of absolute values."""

    def _run(self, x, axis=-1, p=2):
        norm = (np.abs(x) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
        return (x / np.where(norm == 0, 1, norm),)


class LRN(OpRun):
    """In the type of x throughout."""

    def _run(self, x, alpha=1e-4, beta=0.75, bias=1.0, size=1):
        sums = np.zeros_like(x)
        for c in range(x.shape[1]):
            sums[:, c] = (x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2).sum(axis=1)
        return ((x / (bias + alpha / size * sums) ** beta).astype(x.dtype),)


class GridSample(op_grid_sample.GridSample):
    """Positions in the type of the grid."""

    def _gs_denormalize_coordinates(self, n, dims, align_corners):
        pairs = zip(n, dims, strict=True)
        return np.asarray([self._gs_denormalize(n=v, length=dim, align_corners=align_corners) for v, dim in pairs])


class DeformConv(OpRun):
    """Columns of samples with zeros outside, times the kernel; positions in the type of the offsets."""

    def _run(
        self,
        x,
        w,
        offset,
        bias=None,
        mask=None,
        dilations=None,
        group=1,
        kernel_shape=None,
        offset_group=1,
        pads=None,
        strides=None,
    ):
        (n, c, height, width), (high, narrow, kh, kw), places = x.shape, w.shape, offset.shape[2:]
        strides, dilations, pads = strides or [1, 1], dilations or [1, 1], pads or [0] * 4
        offset = offset.reshape(n, offset_group, kh, kw, 2, *places)
        gain = np.ones((n, offset_group, kh, kw, *places)) if mask is None else mask.reshape(*offset.shape[:4], *places)
        y = np.zeros((n, high, *places), x.dtype)
        every = (range(n), range(c), range(kh), range(kw), range(places[0]), range(places[1]))
        for b, channel, i, j, p, q in itertools.product(*every):
            part = channel * offset_group // c
            v = p * strides[0] - pads[0] + i * dilations[0] + offset[b, part, i, j, 0, p, q]
            u = q * strides[1] - pads[1] + j * dilations[1] + offset[b, part, i, j, 1, p, q]
            sample = 0.0
            for row, column in itertools.product((np.floor(v), np.floor(v) + 1), (np.floor(u), np.floor(u) + 1)):
                if 0 <= row < height and 0 <= column < width:
                    sample += (1 - abs(v - row)) * (1 - abs(u - column)) * x[b, channel, int(row), int(column)]
            first = channel // narrow * (high // group)
            filters = slice(first, first + high // group)
            y[b, filters, p, q] += w[filters, channel % narrow, i, j] * sample * gain[b, part, i, j, p, q]
        return (y if bias is None else y + bias.reshape(-1, 1, 1),)


class MaxRoiPool(OpRun):
    """Regions are rounded to whole elements, halves away from zero; bins without elements are 0."""

    def _run(self, x, rois, pooled_shape=None, spatial_scale=1.0):
        y = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
        for r, (image, *ends) in enumerate(rois):
            x1, y1, x2, y2 = (np.sign(end) * np.floor(abs(end) * spatial_scale + 0.5) for end in ends)
            for i, j in itertools.product(*map(range, pooled_shape)):
                window = []
                bins = ((i, pooled_shape[0], y1, y2, x.shape[2]), (j, pooled_shape[1], x1, x2, x.shape[3]))
                for number, count, start, end, size in bins:
                    width = max(end - start + 1, 1) / count
                    limits = np.floor(number * width) + start, np.ceil((number + 1) * width) + start
                    window.append(slice(*(int(min(max(limit, 0), size)) for limit in limits)))
                found = x[(int(image), slice(None), *window)]
                if found.size:
                    y[r, :, i, j] = found.max(axis=(1, 2))
        return (y,)


OPERATORS = [
    AveragePool,
    ConvTranspose,
    DeformConv,
    gradcheck.GatherElements,
    GridSample,
    GlobalLpPool,
    GlobalMaxPool,
    GroupNormalization,
    LRN,
    LpNormalization,
    LpPool,
    MaxPool,
    MaxRoiPool,
    Mean,
    MeanVarianceNormalization,
    Softsign,
    Sum,
]


@pytest.fixture
def use_reference_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the gradient checks use the operators of this module."""

    def evaluator(model):
        return onnx.reference.ReferenceEvaluator(
            model, new_ops=[gradcheck.Erf, gradcheck.Gelu, gradcheck.Pad, *OPERATORS]
        )

    monkeypatch.setattr(gradcheck, "evaluator", evaluator)
