"""BatchNormalization by the statistics of the batch, out of operators that every device of onnxruntime has.

``training_mode=1`` is not used: onnxruntime's CUDA kernel refuses it, and its gradient would have to make the
statistics again. Here the centred input c = x - mean is kept in place of x, which nothing else reads behind a
convolution; the statistics, a few numbers per channel, stay at hand. With r = 1 / deviation, a = scale r and m
elements per channel, per channel

    y = a c + bias,    dbias = sum(dy),    dscale = r sum(dy c),    dx = a (dy - sum(dy) / m) - a r^2 sum(dy c) c / m.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients, attr_float, dtype_of, required_input, shape_of
from ckplan.autodiff.paths import Composite
from ckplan.autodiff.rules.batch_norm import EPSILON, affine, channel_products, inverse_deviation


def cast(op: Builder, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the value in another element type; itself if it has that type."""
    return value if value.dtype == dtype else op.Cast(value, to=dtype)


def batch_normalization(op: Builder, node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value, Composite]:
    """Emit a BatchNormalization in training form.

    Args:
        op: the builder, in a scope of its own.
        node: a BatchNormalization of x [N, C, ...] in either form; it stays as it is.

    Returns:
        The normalised x; mean and population variance [C] of the batch, float32 at least; and how y is differentiated.
    """
    x, scale, bias = (required_input(node, index) for index in range(3))
    shape, narrow = shape_of(x), x.dtype
    assert narrow is not None
    # Sums over an activation do not fit into half precision.
    dtype = ir.DataType.FLOAT if dtype_of(x).itemsize < 4 else narrow
    channels, rank = shape[1], len(shape)
    axes = [axis for axis in range(rank) if axis != 1]
    share = 1.0 / max(math.prod(shape[axis] for axis in axes), 1)
    wide = cast(op, x, dtype)
    mean = op.Mul(op.reduce_sum(wide, axes), share)
    centred = op.Sub(wide, mean)
    # From c: the mean of the squares less the square of the mean loses all digits where the mean is large.
    variance = op.Mul(channel_products(op, centred, centred), share)
    inverse = inverse_deviation(op, variance, attr_float(node, "epsilon", EPSILON))
    factor = op.Mul(cast(op, scale, dtype), inverse)
    y = cast(op, affine(op, centred, factor, cast(op, bias, dtype)), narrow)

    def gradient(op: Builder, dy: Gradients) -> Gradients:
        assert dy[0] is not None
        upstream = cast(op, dy[0], dtype)
        dx = dscale = None
        sums = op.reduce_sum(upstream, axes, keepdims=False)
        if op.wants(x) or op.wants(scale):
            # The second is transposed; of c that would be a value that the forward pass has too, kept till now.
            along = channel_products(op, centred, upstream)
            if op.wants(scale):
                dscale = _like(op, op.Mul(along, inverse), scale)
            if op.wants(x):
                slope = op.Mul(op.Mul(along, factor), op.Mul(op.Mul(inverse, inverse), -share))
                rest = affine(op, centred, slope, op.Mul(op.Mul(sums, factor), -share))
                main = op.Mul(upstream, op.reshape(factor, [channels, *[1] * (rank - 2)]))
                dx = cast(op, op.Add(main, rest), narrow)
        return [dx, dscale, _like(op, sums, bias) if op.wants(bias) else None]

    return y, op.reshape(mean, [channels]), variance, Composite((x, scale, bias), gradient)


def running(op: Builder, old: ir.Value, batch: ir.Value, momentum: float) -> ir.Value:
    """Emit the new running statistic ``momentum * old + (1 - momentum) * batch``, as ONNX defines it."""
    return op.Add(op.Mul(old, momentum), op.Mul(_like(op, batch, old), 1.0 - momentum))


def _like(op: Builder, value: ir.Value, like: ir.Value) -> ir.Value:
    assert like.dtype is not None
    return cast(op, value, like.dtype)


def splits(nodes: Sequence[ir.Node]) -> dict[ir.Node, bool]:
    """Say which of some BatchNormalizations need running statistics of their own.

    Exporters merge initializers of equal content, and fresh layers have equal ones: the running mean may be the bias.
    Nodes that share scale, bias, mean and variance are taken for one layer that is applied several times.
    """
    layers: dict[ir.Value, tuple[ir.Value, ...]] = {}
    result = {}
    for node in nodes:
        layer = tuple(required_input(node, index) for index in range(1, 5))
        result[node] = any(
            layers.setdefault(layer[index - 1], layer) != layer or not _is_only(layer[index - 1], index)
            for index in (3, 4)
        )
    return result


def _is_only(value: ir.Value, index: int) -> bool:
    """Say whether a value is read as this input of BatchNormalizations and as nothing else."""
    read = all(use.idx == index and use.node.op_type == "BatchNormalization" for use in value.uses())
    return read and not value.is_graph_output()
