"""Gradients of pooling operators."""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_int, attr_ints, attr_str, dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.registry import NoGradientError, rule
from ckplan.autodiff.rules.pooling import pool_maxima
from ckplan.autodiff.rules.windows import Window, pad_axes, window_of

#: Operators whose gradient reads their output, and operators whose gradient reads what they multiply.
_KEEP_OUTPUT = frozenset({"Relu", "LeakyRelu", "Sigmoid", "Tanh", "Softmax", "Exp", "Sqrt"})
_KEEP_INPUT = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Mul", "Einsum"})

#: Bytes of an index.
_INT64 = 8


@rule("MaxPool")
def max_pool(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Scatters dy to where the maxima were; of equal values the one that onnxruntime reports takes it, the first.

    Where they were is an int64 per output. It is made in the forward pass where x need not be kept for anything else
    and is the larger tensor. Otherwise, as behind a Relu, x is read again: where it is large it is compared with its
    maxima, see :mod:`ckplan.autodiff.rules.pooling.pool_maxima`, else a second MaxPool in the backward pass makes
    nothing else that lasts: its indices die at once, and no merging of common subexpressions can mistake it for the
    first, which has one output fewer.

    Windows that overlap add up in onnxruntime's order, which is fixed on a CPU; on a GPU it may not be.
    """
    x, upstream = required_input(node, 0), dy[0]
    if upstream is None:
        return [None]
    by_columns = attr_int(node, "storage_order", 0) != 0
    if len(node.outputs) > 1 and node.outputs[1].name and not by_columns:
        return [_scattered(op, x, upstream, _window(node, x), node.outputs[1])]
    if by_columns or _is_kept(x, node) or size_of(upstream) * _INT64 >= size_of(x) * dtype_of(x).itemsize:
        return [to_maxima(op, node, x, upstream)]
    return [_scattered(op, x, upstream, _window(node, x), _forward_indices(op, node))]


def to_maxima(op: Builder, node: ir.Node, x: ir.Value, dy: ir.Value) -> ir.Value:
    """Emit the gradient of x, which is read again.

    Args:
        op: the builder.
        node: with the attributes of a MaxPool, whose first output its maxima are.
        x: what the maxima are made of.
        dy: gradient of the maxima.
    """
    window = _window(node, x)
    if pool_maxima.suits(x, window):
        return pool_maxima.gradient(op, x, dy, window)
    indices = op.MaxPool(
        x,
        _outputs=2,
        kernel_shape=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        pads=_pads(node, window),
        ceil_mode=attr_int(node, "ceil_mode", 0),
    )[1]
    return _scattered(op, x, dy, window, indices)


def _scattered(op: Builder, x: ir.Value, dy: ir.Value, window: Window, indices: ir.Value) -> ir.Value:
    """Emit the gradient of x from that of the maxima and where in x they are."""
    count = size_of(dy)
    apart = all(s > reach for s, reach in zip(window.strides, window.reach, strict=True))
    scattered = op.ScatterElements(
        op.zeros([size_of(x)], dy),
        op.reshape(indices, [count]),
        op.reshape(dy, [count]),
        reduction=None if apart else "add",
    )
    return op.reshape(scattered, shape_of(x))


def _is_kept(x: ir.Value, reader: ir.Node) -> bool:
    """Say whether a value is there in the backward pass anyway: fed, or read by another gradient."""
    producer = x.producer()
    if producer is None or producer.op_type in _KEEP_OUTPUT:
        return True
    return any(other is not reader and other.op_type in _KEEP_INPUT for other in x.consumers())


def _forward_indices(op: Builder, node: ir.Node) -> ir.Value:
    """Give a forward MaxPool its second output."""
    if len(node.outputs) < 2:
        node.resize_outputs(2)
    indices = node.outputs[1]
    indices.name = op.unique_name(f"{node.name}/indices")
    op.infer(node)
    return indices


def _window(node: ir.Node, x: ir.Value) -> Window:
    """The window of a pooling node.

    Raises:
        NoGradientError: onnxruntime pads it otherwise than ONNX says, and so makes an output of another shape.
    """
    kernel = attr_ints(node, "kernel_shape") or ()
    window = window_of(node, shape_of(x)[2:], shape_of(node.outputs[0])[2:], kernel)
    if attr_str(node, "auto_pad", "NOTSET").startswith("SAME") and window.is_dilated:
        raise NoGradientError("onnxruntime's 'auto_pad' does not count its dilations; write 'pads' in its place")
    return window


def _pads(node: ir.Node, window: Window) -> list[int]:
    """Return a pooling node's ``pads``; with ``auto_pad`` what it stands for."""
    given = attr_ints(node, "pads")
    automatic = node.attributes.get("auto_pad")
    if automatic is None or automatic.as_string() == "NOTSET":
        return list(given or (0,) * 2 * len(window.kernel))
    if automatic.as_string() == "VALID":  # with ceil_mode the last place may reach over the end all the same
        return [0] * 2 * len(window.kernel)
    return [*window.begin, *(max(size, 0) for size in window.end)]


@rule("AveragePool")
def average_pool(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads no forward value."""
    x, upstream = required_input(node, 0), dy[0]
    assert upstream is not None
    window = _window(node, x)
    counts = _counts(node, window)
    if (counts == counts.flat[0]).all():
        return [spread(op, upstream, window, 1.0 / float(counts.flat[0]))]
    weights = (1.0 / counts).astype(dtype_of(upstream))
    return [spread(op, op.Mul(upstream, weights), window)]


def _counts(node: ir.Node, window: Window) -> np.ndarray:
    """Return how many elements each place of an AveragePool averages over, (1, 1, places...)."""
    include = attr_int(node, "count_include_pad", 0)
    pads = _pads(node, window)
    rank = len(window.kernel)
    per_axis = []
    for axis in range(rank):
        first = -pads[axis] if include else 0
        last = window.inputs[axis] + (pads[rank + axis] if include else 0)
        starts = np.arange(window.outputs[axis]) * window.strides[axis] - pads[axis]
        reads = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        per_axis.append(((reads >= first) & (reads < last)).sum(axis=1))
    product: np.ndarray = functools.reduce(np.multiply.outer, per_axis)
    return np.asarray(product, dtype=np.float64)[None, None]


def spread(op: Builder, value: ir.Value, window: Window, factor: float = 1.0) -> ir.Value:
    """Emit the adjoint of summing over windows: each element goes to all inputs of its window, times a factor.

    Windows side by side are a nearest-neighbour Resize (30 times faster than an Expand between axes), windows one
    apart an AveragePool, others a ConvTranspose of single channels.

    Args:
        op: the builder.
        value: (N, C, places...).
        window: geometry.
        factor: multiplies the result.
    """
    shape = shape_of(value)
    rank = len(window.kernel)
    undilated = not window.is_dilated
    axes = range(2, 2 + rank)
    if undilated and window.strides == window.kernel and not any(window.begin):
        value = op.Mul(value, factor) if factor != 1.0 else value
        sizes = [p * k for p, k in zip(window.outputs, window.kernel, strict=True)]
        if window.places == 1:  # a window may be far larger than what it covers
            covered = [k - max(end, 0) for k, end in zip(window.kernel, window.end, strict=True)]
            value = op.expand(value, [*shape[:2], *covered])
            return pad_axes(op, value, axes, [0] * rank, [max(-end, 0) for end in window.end])
        if window.size > 1:
            value = op.Resize(
                value,
                None,
                None,
                np.asarray([*shape[:2], *sizes], dtype=np.int64),
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        return pad_axes(op, value, axes, [0] * rank, [-size for size in window.end])
    ones = all(s == 1 for s in window.strides)
    inside = all(0 <= b < k and 0 <= e < k for b, e, k in zip(window.begin, window.end, window.kernel, strict=True))
    if undilated and ones and inside:
        value = op.Mul(value, factor * window.size) if not math.isclose(factor * window.size, 1.0) else value
        begin = [k - 1 - b for k, b in zip(window.kernel, window.begin, strict=True)]
        end = [k - 1 - e for k, e in zip(window.kernel, window.end, strict=True)]
        return op.AveragePool(value, kernel_shape=window.kernel, pads=[*begin, *end], count_include_pad=1)
    single = op.reshape(value, [shape[0] * shape[1], 1, *window.outputs])
    kernel = np.full([1, 1, *window.kernel], factor, dtype=dtype_of(value))
    result = op.ConvTranspose(
        single,
        kernel,
        kernel_shape=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        **window.transposed_padding,
    )
    return op.reshape(result, [*shape[:2], *window.inputs])


@rule("GlobalAveragePool")
def global_average_pool(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads no forward value."""
    shape = shape_of(required_input(node, 0))
    return [op.expand(op.Mul(dy[0], 1.0 / math.prod(shape[2:])), shape)]


@rule("GlobalMaxPool")
def global_max_pool(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Of equal values the first one takes the gradient, as in MaxPool."""
    x, upstream = required_input(node, 0), dy[0]
    assert upstream is not None
    shape = shape_of(x)
    flat = [*shape[:2], math.prod(shape[2:])]
    indices = op.ArgMax(op.reshape(x, flat), axis=2)
    updates = op.reshape(upstream, [*shape[:2], 1])
    return [op.reshape(op.ScatterElements(op.zeros(flat, upstream), indices, updates, axis=2), shape)]


@rule("LpPool")
def lp_pool(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Is sgn(x) |x|^(p-1) times dy / y^(p-1), summed over the windows that read x; 0 where a window is all zero.

    Powers of what half precision holds have no place in it.
    """
    x, upstream = required_input(node, 0), dy[0]
    assert upstream is not None
    p = attr_int(node, "p", 2)
    source, norm, g = (op.wide(value) for value in (x, node.outputs[0], upstream))
    shared = spread(op, _over_norm(op, g, norm, p), _window(node, x))
    return [op.cast(_times_power(op, source, shared, p), x.dtype)]


@rule("GlobalLpPool")
def global_lp_pool(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """As LpPool, with one window."""
    x, upstream = required_input(node, 0), dy[0]
    assert upstream is not None
    p = attr_int(node, "p", 2)
    source, norm, g = (op.wide(value) for value in (x, node.outputs[0], upstream))
    return [op.cast(_times_power(op, source, _over_norm(op, g, norm, p), p), x.dtype)]


def _over_norm(op: Builder, dy: ir.Value, y: ir.Value, p: int) -> ir.Value:
    """Emit dy / y^(p-1), 0 where y is 0."""
    if p == 1:
        return dy
    # Where y is 0, so is every x of the window, and any divisor but 0 is right.
    y = op.Where(op.Equal(y, 0.0), np.ones((), dtype_of(y)), y)
    return op.Div(dy, y if p == 2 else op.Pow(y, float(p - 1)))


def _times_power(op: Builder, x: ir.Value, factor: ir.Value, p: int) -> ir.Value:
    """Emit sgn(x) |x|^(p-1) times a factor."""
    if p == 1:
        return op.Mul(op.Sign(x), factor)
    if p == 2:
        return op.Mul(x, factor)
    return op.Mul(op.Mul(op.Sign(x), op.Pow(op.Abs(x), float(p - 1))), factor)
