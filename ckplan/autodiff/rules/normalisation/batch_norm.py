"""Gradients of BatchNormalization, GroupNormalization, InstanceNormalization and MeanVarianceNormalization."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import ONE_PASS, Builder, Gradients
from ckplan.autodiff.composites import DOMAIN
from ckplan.autodiff.reading import attr_float, attr_int, attr_ints, dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.registry import NoGradientError, rule

#: What the normalisations add to a variance unless they say otherwise.
EPSILON = 1e-5

#: Places of a channel from which on a dot product is faster than a product and a sum.
DOT_PLACES = 784


@rule("BatchNormalization", since=14, settings=[3, 4])
def batch_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """In inference mode a multiplication per channel; in training mode the statistics are recomputed from x.

    In inference mode mean and variance are constants of the step. x is kept only if the scale is trained: dscale from
    y would be (y - B) / scale, and scales of zero and nearly zero are common. Behind a Conv that nothing else reads,
    :mod:`ckplan.autodiff.rules.convolution.conv_batch_norm` does without x.

    The running statistics that training mode outputs depend on x too, which costs something only if the loss does.
    Gradients of the statistics that go in are found where a model computes them.
    """
    x, scale, bias = (required_input(node, index) for index in range(3))
    upstream = dy[0]
    channels = shape_of(scale)[0]
    epsilon = attr_float(node, "epsilon", EPSILON)
    if attr_int(node, "training_mode", 0):
        found: Gradients = [None, None, None]
        if upstream is not None:
            _, centred, spread = centre(op, x)
            found = _of_batch(op, node, upstream, centred, spread)
        through = _by_running_statistics(op, node, dy[1:]) if op.wants(x) else None
        if through is not None:
            found = [through if found[0] is None else op.Add(found[0], through), *found[1:]]
        old = [_of_old(op, node, index, dy) for index in (1, 2)]
        return [*found, *old]
    if upstream is None:
        return [None, None, None]
    mean, variance = required_input(node, 3), required_input(node, 4)
    spread = deviation(op, variance, epsilon)
    sums = dscale = dx = dmean = dvariance = None
    if any(op.wants(value) for value in (bias, scale, mean, variance)):
        sums = _channel_sum(op, upstream)
    if op.wants(scale) or op.wants(variance):
        assert sums is not None
        centred = op.Sub(_channel_sum(op, op.Mul(upstream, x)), op.Mul(sums, mean))
        dscale = op.Div(centred, spread)
    if sums is not None and op.wants(mean):
        dmean = op.Neg(op.Mul(sums, op.Div(scale, spread)))
    if dscale is not None and op.wants(variance):
        dvariance = op.Mul(op.Div(op.Mul(dscale, scale), op.Add(variance, epsilon)), -0.5)
    if op.wants(x):
        per_channel = [channels, *[1] * (len(shape_of(x)) - 2)]
        dx = op.Mul(upstream, op.reshape(op.Div(scale, spread), per_channel))
    return [dx, dscale if op.wants(scale) else None, sums if op.wants(bias) else None, dmean, dvariance]


def _of_old(op: Builder, node: ir.Node, index: int, dy: Gradients) -> ir.Value | None:
    """Return the gradient of a running statistic that goes in, by the one that comes out."""
    given = dy[index] if index < len(dy) else None
    if given is None or not op.wants(node.inputs[2 + index]):
        return None
    return op.Mul(given, attr_float(node, "momentum", 0.9))


def _by_running_statistics(op: Builder, node: ir.Node, dy: Gradients) -> ir.Value | None:
    """Return the gradient of x from those of the running mean and variance, None if there are none.

    They are ``momentum old + (1 - momentum) new``, the variance being that of the population.
    """
    x = required_input(node, 0)
    axes = [axis for axis in range(len(shape_of(x))) if axis != 1]
    channels = shape_of(x)[1]
    per_channel = [1, channels, *[1] * (len(shape_of(x)) - 2)]
    share = (1 - attr_float(node, "momentum", 0.9)) * channels / max(math.prod(shape_of(x)), 1)
    total: ir.Value | None = None
    by_mean, by_variance = (*dy, None, None)[:2]
    if by_variance is not None:
        mean = op.Mul(op.reduce_sum(x, axes), channels / max(math.prod(shape_of(x)), 1))
        factor = op.Cast(op.Mul(by_variance, 2 * share), to=x.dtype)
        total = op.Mul(op.Sub(x, mean), op.reshape(factor, per_channel))
    if by_mean is not None:
        factor = op.reshape(op.Cast(op.Mul(by_mean, share), to=x.dtype), per_channel)
        total = op.expand(factor, shape_of(x)) if total is None else op.Add(total, factor)
    return total


@rule("TrainingBatchNormalization", domain=DOMAIN, settings=[3, 4], leading=5)
def training_batch_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads c = x - mean and the variance of the batch.

    With m elements per channel, r = 1 / sqrt(variance + epsilon) and a = scale r, per channel

        dbias = sum(dy),    dscale = r sum(dy c),    dx = a (dy - sum(dy) / m - r dscale c / m),

    of which the last two terms are c normalised by the variance, with scale -dscale / m and bias -sum(dy) / m.
    """
    x, upstream = required_input(node, 0), dy[0]
    found: list[ir.Value | None] = [None, None, None]
    if upstream is not None:
        found = _of_batch(op, node, upstream, *node.outputs[3:5])
    through = _by_running_statistics(op, node, dy[1:3]) if op.wants(x) else None
    if through is not None:
        found[0] = through if found[0] is None else op.Add(found[0], through)
    return [*found, _of_old(op, node, 1, dy), _of_old(op, node, 2, dy)]


@rule("StatelessBatchNormalization", domain=DOMAIN, leading=3)
def stateless_batch_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """As :func:`training_batch_normalization`, of which nothing outlasts the step."""
    assert dy[0] is not None
    return _of_batch(op, node, dy[0], *node.outputs[1:3])


def _of_batch(op: Builder, node: ir.Node, dy: ir.Value, centred: ir.Value, variance: ir.Value) -> list[ir.Value | None]:
    """Return the gradients of x, scale and bias of a normalisation by the statistics of the batch.

    Args:
        op: the builder.
        node: the normalisation.
        dy: gradient of what is normalised.
        centred: x without its mean, in at least single precision.
        variance: that of the batch, one number per channel.
    """
    x, scale, bias = (required_input(node, index) for index in range(3))
    assert x.dtype is not None
    assert centred.dtype is not None
    dx = dscale = None
    channels, rank = shape_of(x)[1], len(shape_of(x))
    axes = [axis for axis in range(rank) if axis != 1]
    share = 1.0 / max(math.prod(shape_of(x)[axis] for axis in axes), 1)
    zeros, ones = np.zeros(channels, dtype_of(centred)), np.ones(channels, dtype_of(centred))
    upstream = op.cast(dy, centred.dtype)
    sums = op.reduce_sum(upstream, axes, keepdims=False)

    def divided(value: ir.Value, factor: ir.Value | np.ndarray, offset: ir.Value | np.ndarray = zeros) -> ir.Value:
        """Emit factor * value / sqrt(variance + epsilon) + offset, which is what the operator computes."""
        return op.BatchNormalization(
            value, factor, offset, zeros, variance, epsilon=attr_float(node, "epsilon", EPSILON)
        )

    if op.wants(x) or op.wants(scale):
        # The second is transposed; of c that would be a value that the forward pass has too, kept till now.
        wide = _channel_sum(op, divided(plane_products(op, centred, upstream), ones))
        dscale = op.cast(wide, scale.dtype) if op.wants(scale) else None
        if op.wants(x):
            rest = divided(centred, op.Mul(wide, -share), op.Mul(sums, -share))
            dx = op.cast(divided(op.Add(upstream, rest), op.cast(scale, centred.dtype)), x.dtype)
    return [dx, dscale, op.cast(sums, bias.dtype) if op.wants(bias) else None]


def centre(op: Builder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Emit the statistics of a batch, in at least single precision: sums do not fit into half precision.

    Args:
        op: the builder.
        x: (N, C, ...).

    Returns:
        The mean, (1, C, 1, ...); x without it; and the variance, (C,).
    """
    wide = op.wide(x)
    mean = _mean(op, wide)
    centred = op.Sub(wide, mean)
    # From c: the mean of the squares less the square of the mean loses all digits where the mean is large. Dot products
    # as in the gradient would take a hundredth of a network's step less, and three nodes more for each normalisation.
    return mean, centred, _mean(op, op.Mul(centred, centred), keepdims=False)


def _mean(op: Builder, value: ir.Value, keepdims: bool = True) -> ir.Value:
    """Emit the mean of each channel of (N, C, ...).

    Of a large tensor over places first: a CPU takes 0.8 to 0.9 of the time of all in one pass, and a GPU a sixth.
    """
    axes = [axis for axis in range(len(shape_of(value))) if axis != 1]
    if size_of(value) > ONE_PASS and axes[1:]:
        value = op.ReduceMean(value, np.asarray(axes[1:], dtype=np.int64), keepdims=1)
    return op.ReduceMean(value, np.asarray(axes, dtype=np.int64), keepdims=int(keepdims))


def deviation(op: Builder, variance: ir.Value, epsilon: float) -> ir.Value:
    """Return sqrt(variance + epsilon): a constant where the variance is one, as onnxruntime would fold it."""
    known = op.constant_of(variance)
    if known is not None:
        return op.constant(np.sqrt(known.astype(np.float64) + epsilon).astype(dtype_of(variance)))
    return op.Sqrt(op.Add(variance, epsilon))


def inverse_deviation(op: Builder, variance: ir.Value, epsilon: float) -> ir.Value:
    """Emit 1 / sqrt(variance + epsilon)."""
    return op.Reciprocal(deviation(op, variance, epsilon))


def _channel_sum(op: Builder, value: ir.Value) -> ir.Value:
    return op.reduce_sum(value, [axis for axis in range(len(shape_of(value))) if axis != 1], keepdims=False)


@rule("InstanceNormalization")
def instance_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads x; mean and variance, one per sample and channel, are recomputed from it."""
    x, scale, bias = (required_input(node, index) for index in range(3))
    assert dy[0] is not None
    samples, channels, *sizes = shape_of(x)
    flat = [samples, channels, 1, math.prod(sizes)]
    return by_own_statistics(op, (x, scale, bias), dy[0], flat, [3], attr_float(node, "epsilon", EPSILON))


@rule("GroupNormalization", since=21)
def group_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads x; mean and variance, one per sample and group, are recomputed from it."""
    x, scale, bias = (required_input(node, index) for index in range(3))
    assert dy[0] is not None
    samples, channels, *sizes = shape_of(x)
    groups = attr_int(node, "num_groups", 1)
    flat = [samples, groups, channels // groups, math.prod(sizes)]
    return by_own_statistics(op, (x, scale, bias), dy[0], flat, [2, 3], attr_float(node, "epsilon", EPSILON))


def by_own_statistics(
    op: Builder,
    inputs: tuple[ir.Value, ir.Value, ir.Value],
    dy: ir.Value,
    flat: Sequence[int],
    axes: Sequence[int],
    epsilon: float,
) -> Gradients:
    """Differentiate a normalisation by the statistics of its own input, with a scale and a bias per channel.

    With c = x - mean, r = 1 / deviation and m elements per statistic,
    dx = r (scale dy - mean(scale dy) - c r^2 mean(scale dy c)). Two activations are made, the result in one of them.

    Args:
        op: the builder.
        inputs: x, and a scale and a bias with a number for each channel, or one for all.
        dy: gradient of the output.
        flat: shape of x as (samples, groups, channels of a group, elements).
        axes: the axes of ``flat`` that share a statistic.
        epsilon: added to the variance.
    """
    x, scale, bias = inputs
    shape, dtype = shape_of(x), x.dtype
    assert dtype is not None
    # Sums over an activation do not fit into half precision.
    x, dy, scale = (op.wide(value) for value in (op.reshape(x, flat), op.reshape(dy, flat), scale))
    count = math.prod(flat[axis] for axis in axes)
    mean = op.Mul(op.reduce_sum(x, axes), 1.0 / count)
    centred = op.Sub(x, mean)
    # In two steps: ReduceSumSquare takes half as long again as a product and ReduceSum.
    square = op.reduce_sum(op.Mul(centred, centred), axes)
    inverse = inverse_deviation(op, op.Mul(square, 1.0 / count), epsilon)
    dy_sums = op.reduce_sum(dy, [3])
    products = op.reduce_sum(op.Mul(dy, centred), [3])
    dscale = dbias = dx = None
    if op.wants(inputs[1]):
        dscale = _of_channels(op, op.Mul(products, inverse), scale)
    if op.wants(bias):
        dbias = _of_channels(op, dy_sums, bias)
    if op.wants(inputs[0]):
        per_channel = op.reshape(scale, [1, flat[1], flat[2], 1] if size_of(scale) > 1 else [1] * 4)
        share = op.Mul(inverse, 1.0 / count)
        offset = op.Mul(op.reduce_sum(op.Mul(dy_sums, per_channel), axes), share)
        cube = op.Mul(op.Mul(inverse, inverse), share)
        slope = op.Mul(op.reduce_sum(op.Mul(products, per_channel), axes), cube)
        rest = affine(op, centred, op.Neg(slope), op.Neg(offset))
        dx = op.reshape(op.Add(op.Mul(dy, op.Mul(per_channel, inverse)), rest), shape)
    results = [dx, dscale, dbias]
    return [None if g is None else op.cast(g, dtype) for g in results]


def _of_channels(op: Builder, sums: ir.Value, parameter: ir.Value) -> ir.Value:
    """Emit the gradient of a scale or bias from what each sample and channel, (N, G, C / G, 1), adds to it.

    onnxruntime takes one number for all channels, too.
    """
    axes = [0] if size_of(parameter) > 1 else range(4)
    return op.reshape(op.reduce_sum(sums, axes), shape_of(parameter))


def plane_products(op: Builder, one: ir.Value, other: ir.Value) -> ir.Value:
    """Emit sums of the products of two values over parts of a plane, (N, C, ...): one number or a few for each plane.

    Where planes are large, by dot products: one pass without a temporary, in less than half of the time (two
    16x96x112x112: 5.9 ms against 15.2 on one thread, 16x192x28x28: 0.9 against 1.3, 14x14: 1.0 against 0.4).

    Args:
        op: the builder.
        one: (N, C, ...).
        other: in the same shape.
    """
    samples, channels, *sizes = shape_of(one)
    places = math.prod(sizes)
    if places < DOT_PLACES:
        return op.reduce_sum(op.Mul(one, other), range(2, 2 + len(sizes)), keepdims=False)
    # Of no more places than needed: short sums are the more exact ones.
    parts = next(parts for parts in range(places // DOT_PLACES, 0, -1) if places % parts == 0)
    rows = [samples, channels, parts, 1, places // parts]
    # onnxruntime merges the transposition into the product, which then is one of two rows.
    return op.MatMul(op.reshape(one, rows), op.Transpose(op.reshape(other, rows), perm=[0, 1, 2, 4, 3]))


def affine(op: Builder, value: ir.Value, factor: ir.Value | None, offset: ir.Value | None) -> ir.Value:
    """Emit ``factor * value + offset`` in one pass and without a temporary.

    The kernel that does so is that of BatchNormalization in inference form, with mean 0 and variance 1.

    Args:
        op: the builder.
        value: (N, C, ...).
        factor: (1, C, 1, ...), or (N, C, 1, ...) for one per sample and channel; None for ones.
        offset: in the shape of ``factor``; None for zeros, but not both.
    """
    shape = shape_of(value)
    channels = next(size_of(term) for term in (factor, offset) if term is not None)
    if channels != shape[1]:
        value = op.reshape(value, [1, channels, *shape[2:]])
    zeros, ones = np.zeros(channels, dtype_of(value)), np.ones(channels, dtype_of(value))
    slope = ones if factor is None else op.reshape(factor, [channels])
    start = zeros if offset is None else op.reshape(offset, [channels])
    return op.reshape(op.BatchNormalization(value, slope, start, zeros, ones, epsilon=0.0), shape)


@rule("MeanVarianceNormalization", since=13)
def mean_variance_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads x; with c = x - mean and r = 1 / (deviation + 1e-9), dx = r (dy - mean(dy)) - c r^3 mean(dy c).

    The last term has r^3 for r^2 / deviation, which differs by 1e-9 relative to the deviation.
    """
    assert dy[0] is not None
    source = required_input(node, 0)
    x, upstream = op.wide(source), op.wide(dy[0])  # sums of squares do not fit into half precision
    axes, rank = attr_ints(node, "axes", (0, 2, 3)) or (), len(shape_of(x))
    if len({axis % rank for axis in axes if -rank <= axis < rank}) < len(axes):
        raise NoGradientError(f"its axes are {list(axes)}, one of which its input lacks or which stands there twice")
    share = 1.0 / math.prod(shape_of(x)[axis] for axis in axes)
    centred = op.Sub(x, op.Mul(op.reduce_sum(x, axes), share))
    deviation = op.Sqrt(op.Mul(op.reduce_sum(op.Mul(centred, centred), axes), share))
    inverse = op.Reciprocal(op.Add(deviation, 1e-9))
    along = op.Mul(op.reduce_sum(op.Mul(upstream, centred), axes), share)
    slope = op.Mul(along, op.Mul(inverse, inverse))
    offset = op.Mul(op.reduce_sum(upstream, axes), share)
    return [op.cast(op.Mul(op.Sub(op.Sub(upstream, op.Mul(centred, slope)), offset), inverse), source.dtype)]
