"""Gradients of Fourier transforms, which are linear: the transform the other way.

With the real and imaginary parts of dy as a complex number, the adjoint of ``sum x exp(-i t)`` is
``sum dy exp(i t)``: an inverse transform without its division. Where the input is real, only the real part counts.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_int, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import NoGradientError, rule
from ckplan.autodiff.rules.windows import pad_axes
from ckplan.operators.matching import input_of


@rule("DFT", since=20, fixed=[1, 2])
def dft(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Transforms dy back. What padding with zeros added is cut off; what was cut off gets zeros.

    To the half of a spectrum that is of another length onnxruntime's inverse transform adds the other half wrongly.
    """
    x, g = required_input(node, 0), dy[0]
    assert g is not None
    if 0 in shape_of(x) or 0 in shape_of(g):
        return [None]
    axes = op.constant_ints(node, 2, "axis") or (-2,)
    axis = axes[0] % len(shape_of(x))
    inverse, onesided = attr_int(node, "inverse", 0), attr_int(node, "onesided", 0)
    given = op.constant_ints(node, 1, "dft_length")
    length = shape_of(x)[axis]
    if given:
        length = given[0]
    elif inverse and onesided:
        length = 2 * (length - 1)
    if inverse and onesided and shape_of(x)[axis] != length // 2 + 1:
        raise NoGradientError("of more or fewer bins than half of 'dft_length' and one onnxruntime makes other numbers")
    if inverse:
        result = op.DFT(g, None, np.asarray(axis), onesided=onesided)
        shares = np.full(shape_of(result)[axis], 1.0 / length)
        if onesided:
            # All bins stand for two, but the first and, if the length is even, the last.
            shares[1 : (length + 1) // 2] *= 2
        result = _times(op, result, shares, axis)
    else:
        result = _back(op, g, axis, length)
    result = _resized(op, result, axis, shape_of(x)[axis])
    return [_as_wide(op, result, x)]


def _back(op: Builder, g: ir.Value, axis: int, length: int) -> ir.Value:
    """Emit the adjoint of a transform of this length; bins that ``g`` lacks at the end are zero."""
    return op.scale(op.DFT(_resized(op, g, axis, length), None, np.asarray(axis), inverse=1), float(length))


def _times(op: Builder, value: ir.Value, factors: np.ndarray, axis: int) -> ir.Value:
    if (factors == factors[0]).all():
        return op.scale(value, float(factors[0]))
    shape = [1] * len(shape_of(value))
    shape[axis] = len(factors)
    return op.Mul(value, factors.reshape(shape).astype(dtype_of(value)))


def _resized(op: Builder, value: ir.Value, axis: int, size: int) -> ir.Value:
    """Cut an axis off at the end or put zeros there."""
    return pad_axes(op, value, [axis], [0], [size - shape_of(value)[axis]])


def _as_wide(op: Builder, value: ir.Value, x: ir.Value) -> ir.Value:
    """Drop the imaginary parts if x has none."""
    return op.reshape(_resized(op, value, len(shape_of(value)) - 1, shape_of(x)[-1]), shape_of(x))


@rule("STFT", since=17, fixed=[1, 3])
def stft(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Transforms the frames back and adds them up where they overlap; the window's gradient reads the signal."""
    signal, window, g = required_input(node, 0), input_of(node, 2), dy[0]
    assert g is not None
    if 0 in shape_of(signal) or 0 in shape_of(g):
        return [None] * 4
    steps, lengths = op.constant_ints(node, 1, "frame_step"), op.constant_ints(node, 3, "frame_length")
    assert steps is not None
    length = lengths[0] if lengths else shape_of(window)[0] if window is not None else shape_of(signal)[1]
    batch, total = shape_of(signal)[:2]
    width = shape_of(signal)[2] if len(shape_of(signal)) == 3 else 1
    count = shape_of(g)[1]
    frames = _resized(op, _back(op, g, 2, length), 3, width)
    dsignal = dwindow = None
    if window is not None and op.wants(window):
        places = (np.arange(count)[:, None] * steps[0] + np.arange(length)).astype(np.int32)
        read = op.Gather(op.reshape(signal, [batch, total, width]), places, axis=1)
        dwindow = op.reduce_sum(op.Mul(frames, read), [0, 1, 3], keepdims=False)
    if op.wants(signal):
        if window is not None:
            frames = op.Mul(frames, op.reshape(window, [length, 1]))
        columns = op.reshape(op.transpose(frames, (0, 3, 2, 1)), [batch, width * length, count])
        image, block = np.asarray([1, total]), np.asarray([1, length])
        added = op.Col2Im(columns, image, block, strides=[1, steps[0]])
        dsignal = op.reshape(op.transpose(op.reshape(added, [batch, width, total]), (0, 2, 1)), shape_of(signal))
    return [dsignal, None, dwindow, None]
