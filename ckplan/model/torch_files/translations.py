"""Operators of torch's of which its exporter would make something else than torch computes, or what has no gradient.

Of a cross-entropy with label smoothing it writes one without (``aten_cross_entropy_loss`` in onnxscript), of what
``scatter_reduce`` takes the mean of it writes the last (``aten_scatter_reduce``), an average that is divided by a
number of its own it divides by the size of the window (``aten_avg_pool2d``), and an axis that ``squeeze`` leaves, being
longer than 1, it removes, which no runtime does (``aten_squeeze_dim``). A cross-entropy of probabilities becomes one of
labels, which no runtime loads, and a bag of embeddings a sequence, padding and all (``aten_embedding_bag``). Running
products, and distances between two sets, it does not write at all. Here they are written out as torch has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from ckplan.model.torch_files.grouped_products import grouped_products

_REDUCTIONS = ("none", "mean", "sum")
"""Names of torch's reductions by their numbers."""
_MODES = ("sum", "mean", "max")
"""What torch makes of a bag, by its numbers."""


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Functions that write operators of torch in those of ONNX, as ``torch.onnx.export`` takes them.

    Needs torch and onnxscript.
    """
    import torch

    written: dict[Callable[..., Any], Callable[..., Any]] = {
        torch.ops.aten._cdist_forward.default: _distances,
        torch.ops.aten.avg_pool2d.default: _average(2),
        torch.ops.aten.avg_pool3d.default: _average(3),
        torch.ops.aten.cross_entropy_loss.default: _cross_entropy,
        torch.ops.aten.cumprod.default: _running_products,
        torch.ops.aten.embedding_bag.padding_idx: _embedding_bag,
        torch.ops.aten._grouped_mm.default: grouped_products,
        torch.ops.aten.scatter_reduce.two: _scatter_reduce,
        torch.ops.aten.squeeze.dim: _squeeze,
        torch.ops.aten.squeeze.dims: _squeeze,
    }
    # What transformers computes its experts by where torch's own operator does not do; there once it has been imported.
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        written[torch.ops.transformers.grouped_mm_fallback.default] = grouped_products
    return written


def _cross_entropy(
    self: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """Write ``aten::cross_entropy_loss``; the scores have a batch, and their classes along axis 1.

    Its loss of a sample is ``-(1 - s) w[y] log p[y] - s/C sum_c w[c] log p[c]``; a mean is over the weights of labels.
    """
    from onnxscript import opset18

    op: Any = opset18

    kind = _REDUCTIONS[reduction]
    if target.dtype.is_floating_point():
        return _cross_entropy_of_probabilities(self, target, weight, kind, label_smoothing)
    if not label_smoothing:
        plain = op.SoftmaxCrossEntropyLoss(self, target, weight, reduction=kind, ignore_index=ignore_index)
        return plain[0]
    rank, classes, axis = len(self.shape), self.shape[1], op.Constant(value_ints=[1])
    logarithms = op.LogSoftmax(self, axis=1)
    ignored = op.Equal(target, ignore_index)
    safe = op.Where(ignored, 0, target)
    picked = op.Squeeze(op.GatherElements(logarithms, op.Unsqueeze(safe, axis), axis=1), axis)
    if weight is None:
        own = op.Cast(op.Not(ignored), to=self.dtype)
    else:
        own = op.Where(ignored, _number(0, self), op.Gather(weight, safe))
        logarithms = op.Mul(logarithms, op.Reshape(weight, op.Constant(value_ints=[1, -1, *[1] * (rank - 2)])))
    evenly = op.Where(ignored, _number(0, self), op.ReduceSum(logarithms, axis, keepdims=0))
    of_labels = op.Mul(op.Mul(picked, own), _number(label_smoothing - 1, self))
    losses = op.Add(of_labels, op.Mul(evenly, _number(-label_smoothing / classes, self)))
    if kind == "none":
        return losses
    total = op.ReduceSum(losses, keepdims=0)
    return total if kind == "sum" else op.Div(total, op.ReduceSum(own, keepdims=0))


def _cross_entropy_of_probabilities(self: Any, target: Any, weight: Any, kind: str, label_smoothing: float) -> Any:
    """Write ``aten::cross_entropy_loss`` of a probability of each class: ``-sum_c w[c] q[c] log p[c]``.

    Smoothed, ``q`` is ``(1 - s) target + s/C``; a mean is over samples, whatever their weights.
    """
    from onnxscript import opset18

    op: Any = opset18

    expected = target
    if label_smoothing:
        evenly = _number(label_smoothing / self.shape[1], target)
        expected = op.Add(op.Mul(target, _number(1 - label_smoothing, target)), evenly)
    products = op.Mul(op.LogSoftmax(self, axis=1), expected)
    if weight is not None:
        along = op.Constant(value_ints=[1, -1, *[1] * (len(self.shape) - 2)])
        products = op.Mul(products, op.Reshape(weight, along))
    losses = op.Neg(op.ReduceSum(products, op.Constant(value_ints=[1]), keepdims=0))
    if kind == "none":
        return losses
    return op.ReduceMean(losses, keepdims=0) if kind == "mean" else op.ReduceSum(losses, keepdims=0)


def _distances(x1: Any, x2: Any, p: float, compute_mode: int | None = None) -> Any:
    """Write ``aten::_cdist_forward``: distances [..., P, R] of points [..., P, M] and [..., R, M].

    Euclidean ones of many points torch itself writes otherwise, as roots of ``|a|^2 - 2 a b + |b|^2``.

    Raises:
        NotImplementedError: the norm is not that of 1, 2 or infinity.
    """
    from onnxscript import opset18

    op: Any = opset18

    del compute_mode  # of which there is one here
    last = op.Constant(value_ints=[-1])
    differences = op.Sub(op.Unsqueeze(x1, op.Constant(value_ints=[-2])), op.Unsqueeze(x2, op.Constant(value_ints=[-3])))
    if p == 1:
        return op.ReduceL1(differences, last, keepdims=0)
    if p == 2:
        return op.ReduceL2(differences, last, keepdims=0)
    if p == math.inf:
        return op.ReduceMax(op.Abs(differences), last, keepdims=0)
    raise NotImplementedError(f"distances by the norm of {p}; those of 1, 2 and infinity are written")


def _running_products(self: Any, dim: int, dtype: int | None = None) -> Any:
    """Write ``aten::cumprod``: each pass multiplies with what lies twice as far before, so that few passes do.

    Raises:
        NotImplementedError: the axis is of a free size.
    """
    from onnxscript import opset18

    op: Any = opset18

    products = self if dtype in (None, -1) else op.Cast(self, to=dtype)
    if not len(self.shape):
        return op.Identity(products)
    size = self.shape[dim]
    if not isinstance(size, int):
        raise NotImplementedError(f"running products along an axis of a free size, {size}")
    axis, first, distance = op.Constant(value_ints=[dim]), op.Constant(value_ints=[0]), 1
    while distance < size:
        before = op.Slice(products, first, op.Constant(value_ints=[size - distance]), axis)
        begun = op.Slice(products, first, op.Constant(value_ints=[distance]), axis)
        rest = op.Slice(products, op.Constant(value_ints=[distance]), op.Constant(value_ints=[size]), axis)
        products = op.Concat(begun, op.Mul(rest, before), axis=dim)
        distance *= 2
    return products if size > 1 else op.Identity(products)


def _embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Write ``aten::embedding_bag.padding_idx``: all rows are read at once, and each goes to its bag.

    Returns:
        The bags, and what nothing reads: the bag of each index, what each holds, and the bag of each index again, in
        the place of those of maxima.
    """
    from onnxscript import opset18

    op: Any = opset18

    del scale_grad_by_freq, sparse  # which are about the gradient that torch computes
    first, second = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    begins = op.Slice(offsets, first, op.Constant(value_ints=[-1]), first) if include_last_offset else offsets
    begins = op.Cast(begins, to=ir.DataType.INT64)
    # How many bags have begun at an index; the last ones may be empty and begin behind all.
    places = op.Expand(op.Constant(value_ints=[0]), op.Add(op.Shape(indices), second))
    begun = op.ScatterElements(places, begins, op.Expand(second, op.Shape(begins)), axis=0, reduction="add")
    bag_of = op.Slice(op.Sub(op.CumSum(begun, op.Constant(value_int=0)), second), first, op.Shape(indices), first)
    to = op.Unsqueeze(bag_of, second)
    rows = op.Gather(weight, indices)
    if per_sample_weights is not None:
        rows = op.Mul(rows, op.Unsqueeze(per_sample_weights, second))
    # Not by ScatterND, of which onnxruntime's threads lose additions to one bag.
    places_of_rows = op.Expand(to, op.Shape(rows))
    counted = op.Expand(op.CastLike(1.0, weight), op.Shape(to))
    if padding_idx is not None:
        padding = padding_idx % weight.shape[0] if padding_idx < 0 else padding_idx
        counted = op.CastLike(op.Not(op.Equal(op.Unsqueeze(indices, second), padding)), weight)
    sizes = op.Concat(op.Shape(begins), op.Shape(weight, start=1), axis=0)
    nothing = op.Expand(op.CastLike(0.0, weight), op.Concat(op.Shape(begins), second, axis=0))
    held = op.ScatterElements(nothing, to, counted, axis=0, reduction="add")
    if _MODES[mode] == "max":
        lowest = op.CastLike(-math.inf, weight)
        rows = op.Where(op.Cast(counted, to=ir.DataType.BOOL), rows, lowest)
        highest = op.ScatterElements(op.Expand(lowest, sizes), places_of_rows, rows, axis=0, reduction="max")
        made = op.Where(op.Cast(held, to=ir.DataType.BOOL), highest, op.CastLike(0.0, weight))
    else:
        rows = rows if padding_idx is None else op.Mul(rows, counted)
        empty = op.Expand(op.CastLike(0.0, weight), sizes)
        made = op.ScatterElements(empty, places_of_rows, rows, axis=0, reduction="add")
        made = op.Div(made, op.Max(held, op.CastLike(1.0, weight))) if _MODES[mode] == "mean" else made
    # Copies, as torch's exporter declares them to be what they are in torch, and onnxruntime believes what is declared.
    counts = op.Cast(op.Squeeze(held, second), to=ir.DataType.INT64)
    return made, op.Identity(bag_of), counts, op.Identity(bag_of)


def _scatter_reduce(self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    """Write ``aten::scatter_reduce.two``; a mean is a sum over how many it is of, and of none what was there before."""
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops.core import aten_scatter_reduce

    op: Any = opset18

    if reduce != "mean":
        return aten_scatter_reduce(self, dim, index, src, reduce, include_self)
    sums = aten_scatter_reduce(self, dim, index, src, "sum", include_self)
    own = op.Expand(op.CastLike(float(include_self), src), op.Shape(self))
    ones = op.Expand(op.CastLike(1.0, src), op.Shape(src))
    counts = op.ScatterElements(own, index, ones, axis=dim, reduction="add")
    return op.Div(sums, op.Max(counts, op.CastLike(1.0, src)))


def _squeeze(self: Any, dim: int | Sequence[int]) -> Any:
    """Write ``aten::squeeze.dim`` or ``aten::squeeze.dims``: axes of a free size are not of size 1."""
    from onnxscript import opset18

    op: Any = opset18

    named = [dim] if isinstance(dim, int) else dim
    axes = [axis for axis in named if len(self.shape) and self.shape[axis] == 1]
    return op.Squeeze(self, op.Constant(value_ints=axes)) if axes else op.Identity(self)


def _average(rank: int) -> Callable[..., Any]:
    """A function that writes ``aten::avg_pool2d`` or ``aten::avg_pool3d``."""

    def average(
        self: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,) * rank,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        from onnxscript.function_libs.torch_lib.ops import nn

        write = getattr(nn, f"aten_avg_pool{rank}d")
        if not divisor_override or ceil_mode:
            return write(self, kernel_size, stride, padding, ceil_mode, count_include_pad)
        # Each window is whole here and its padding counts, so that the average tells the sum.
        written = write(self, kernel_size, stride, padding, ceil_mode, True)
        return _divided(written, self, kernel_size, rank, divisor_override)

    return average


def _divided(average: Any, of: Any, kernel_size: Sequence[int], rank: int, divisor: int) -> Any:
    """What averages over whole windows are, divided by another number than the size of the window."""
    from onnxscript import opset18

    op: Any = opset18

    size = math.prod(kernel_size) if len(kernel_size) == rank else kernel_size[0] ** rank
    return op.Mul(average, _number(size / divisor, of))


def _number(value: float, like: Any) -> Any:
    """A number in the type of a tensor: what stands in the code is a float32, which a Where of other types refuses."""
    from onnxscript import opset18

    op: Any = opset18

    return op.Constant(value=ir.tensor(value, dtype=like.dtype))
