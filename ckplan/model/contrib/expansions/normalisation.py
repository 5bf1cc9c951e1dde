"""Normalisations with what is added before and behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.model.contrib.emitter import Emitter, NotExpandableError, Results
from ckplan.model.contrib.registry import expansion


def root_mean_square(
    e: Emitter, x: ir.Value, scale: ir.Value | None, axes: Sequence[int], epsilon: float
) -> tuple[ir.Value, ir.Value]:
    """Emit x / sqrt(mean(x^2) + epsilon) * scale, sums in at least float32.

    Args:
        e: the emitter.
        x: any rank.
        scale: broadcast to x; None for one.
        axes: the axes of the mean.
        epsilon: added to the mean.

    Returns:
        The result in the type of the scale (of x, without one), and the inverse root mean square.
    """
    wide = e.wide(x)
    square = e.ReduceMean(e.Mul(wide, wide), np.asarray(axes, dtype=np.int64), keepdims=1)
    inverse = e.Reciprocal(e.Sqrt(e.Add(square, epsilon)))
    normal = e.Mul(wide, inverse)
    if scale is None:
        return e.cast(normal, x.dtype), inverse
    return e.cast(e.Mul(normal, e.cast(scale, wide.dtype)), scale.dtype), inverse


@expansion("SimplifiedLayerNormalization")
def simplified_layer_normalization(e: Emitter) -> Results:
    """Layer normalisation without the mean: X / sqrt(mean(X^2) + epsilon) * scale."""
    x = e.required(0)
    rank = len(e.shape(x))
    axes = range(e.int_attribute("axis", -1) % rank, rank)
    y, inverse = root_mean_square(e, x, e.required(1), list(axes), e.float_attribute("epsilon", 1e-5))
    return [y, inverse]


@expansion("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(e: Emitter) -> Results:
    """The same of input + skip + bias, and that sum."""
    total = _aligned_sum(e, e.required(0), e.required(1), e.input(3))
    y, inverse = root_mean_square(e, total, e.required(2), [-1], e.float_attribute("epsilon", 1e-12))
    return [y, None, inverse, total]


@expansion("LayerNormalization")
def layer_normalization(e: Emitter) -> Results:
    """The operator that ONNX took over in opset 17."""
    return _layer_norm(e, e.required(0), e.required(1), e.input(2), e.int_attribute("axis", -1), 1e-5, 0)


@expansion("SkipLayerNormalization")
def skip_layer_normalization(e: Emitter) -> Results:
    """Layer normalisation of input + skip + bias, and that sum."""
    total = _aligned_sum(e, e.required(0), e.required(1), e.input(4))
    return [*_layer_norm(e, total, e.required(2), e.input(3), -1, 1e-12, 0), total]


@expansion("EmbedLayerNormalization")
def embed_layer_normalization(e: Emitter) -> Results:
    """Layer normalisation of the sum of word, position and segment embeddings; the lengths from the mask."""
    ids, segments, mask, positions = e.required(0), e.input(1), e.input(7), e.input(8)
    batch, length = e.shape(ids)
    rows: ir.Value = (
        e.slice(e.required(3), 0, length, 0) if positions is None else e.Gather(e.required(3), positions, axis=0)
    )
    total = e.Add(e.Gather(e.required(2), ids, axis=0), rows)
    if segments is not None:
        total = e.Add(total, e.Gather(e.required(4), segments, axis=0))
    lengths = None
    if e.reads_output(1):
        if mask is None:
            lengths = e.literal(np.zeros(batch, dtype=np.int32))
        else:
            counted = e.Cast(e.Equal(mask, 1), to=int(ir.DataType.INT32))
            lengths = e.ReduceSum(counted, np.asarray([1], dtype=np.int64), keepdims=0)
    y = _layer_norm(e, total, e.required(5), e.required(6), -1, 1e-12, 0)[0]
    return [y, lengths, total]


@expansion("GatedRMSNorm")
def gated_rms_norm(e: Emitter) -> Results:
    """RMS normalisation of groups of C elements, times an activation of the gate."""
    x, scale, gate = e.required(0), e.required(1), e.required(2)
    shape, (count,) = e.shape(x), e.shape(scale)
    wide = e.wide(x)
    groups = e.reshape(wide, [*shape[:-1], shape[-1] // count, count])
    normal, _ = root_mean_square(e, groups, e.cast(scale, wide.dtype), [-1], e.float_attribute("epsilon", 1e-5))
    z = e.wide(gate)
    opened = e.Sigmoid(z)
    if e.text_attribute("activation", "silu") != "sigmoid":
        opened = e.Mul(z, opened)
    return [e.cast(e.Mul(e.reshape(normal, shape), opened), x.dtype)]


@expansion("BranchwiseRMSNorm")
def branchwise_rms_norm(e: Emitter) -> Results:
    """RMS normalisation of each branch; the scale is per element of all branches, or shared by them."""
    x, scale = e.required(0), e.input(1)
    shape = e.shape(x)
    branches = e.int_attribute("num_branches")
    grouped = [*shape[:-1], branches, shape[-1] // branches] if branches else list(shape)
    wide = e.reshape(e.wide(x), grouped)
    if scale is not None:
        size = int(np.prod(e.shape(scale)))
        scale = e.cast(e.reshape(scale, grouped[-1:] if size == grouped[-1] else grouped[-2:]), wide.dtype)
    normal, _ = root_mean_square(e, wide, scale, [-1], e.float_attribute("epsilon", 1e-5))
    return [e.cast(e.reshape(normal, shape), x.dtype)]


@expansion("GroupNorm")
def group_norm(e: Emitter) -> Results:
    """Group normalisation, channels last by default, with SiLU behind it on request."""
    return [_group_norm(e, e.required(0))]


@expansion("SkipGroupNorm")
def skip_group_norm(e: Emitter) -> Results:
    """Group normalisation of x + skip + bias, and that sum."""
    x, skip, bias = e.required(0), e.required(3), e.input(4)
    last = bool(e.int_attribute("channels_last", 1))
    channels = e.shape(x)[-1 if last else 1]
    if len(e.shape(skip)) == 2:
        skip = e.reshape(skip, [e.shape(skip)[0], 1, 1, channels] if last else [e.shape(skip)[0], channels, 1, 1])
    if bias is not None and not last:
        bias = e.reshape(bias, [channels, 1, 1])
    total = e.plus(x, skip, bias)
    return [_group_norm(e, total), total]


def _aligned_sum(e: Emitter, first: ir.Value, second: ir.Value, bias: ir.Value | None) -> ir.Value:
    total: ir.Value = e.plus(e.Add(first, second), bias)
    return total


def _layer_norm(
    e: Emitter, x: ir.Value, scale: ir.Value, bias: ir.Value | None, axis: int, epsilon: float, first: int
) -> list[ir.Value | None]:
    """Emit a LayerNormalization with as many of its three outputs as are read, counted from output ``first``."""
    count = 3 if e.reads_output(first + 1) or e.reads_output(first + 2) else 1
    results = e.LayerNormalization(
        x, scale, bias, axis=axis, epsilon=e.float_attribute("epsilon", epsilon), _outputs=count
    )
    return [*results, *[None] * (3 - count)]


def _group_norm(e: Emitter, x: ir.Value) -> ir.Value:
    if len(e.shape(x)) != 4:
        raise NotExpandableError("its input does not have four axes")
    last, dtype = bool(e.int_attribute("channels_last", 1)), x.dtype
    scale, bias = e.required(1), e.required(2)
    x = e.cast(e.transpose(x, [0, 3, 1, 2]) if last else x, scale.dtype)
    y: ir.Value = e.GroupNormalization(
        x, scale, bias, num_groups=e.int_attribute("groups"), epsilon=e.float_attribute("epsilon", 1e-5)
    )
    if e.int_attribute("activation"):
        y = e.Mul(y, e.Sigmoid(y))
    return e.cast(e.transpose(y, [0, 2, 3, 1]) if last else y, dtype)
