"""Gradients of operators of com.microsoft that standard operators cannot say."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.presence import there
from ckplan.autodiff.reading import attr_int, is_floating, required_input, shape_of
from ckplan.autodiff.registry import NoGradientError, rule
from ckplan.operators.matching import input_of


@rule("Inverse", domain="com.microsoft")
def inverse(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Gradient -Y^T dY Y^T, from the output. The forward node stays what it is: ONNX has no inverse."""
    y = node.outputs[0]
    rank = len(shape_of(y))
    turned = op.Transpose(y, perm=[*range(rank - 2), rank - 1, rank - 2])
    return [op.Neg(op.MatMul(op.MatMul(turned, dy[0]), turned))]


@rule("MatMulNBits", domain="com.microsoft", fixed=(1, 2, 3, 4))
def matmul_nbits(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Gradient dy W of ``y = x W^T + bias``; W, in blocks of 4 or 8 bits, is written out here and dead at once."""
    x, bias = required_input(node, 0), input_of(node, 5)
    assert dy[0] is not None
    if input_of(node, 4) is not None:
        raise NoGradientError("its inputs are reordered (g_idx)")
    dx = db = None
    if op.wants(x):
        rows, outputs = math.prod(shape_of(dy[0])[:-1]), shape_of(dy[0])[-1]
        weight = _dequantised(op, node, dy[0])
        product = op.MatMul(op.reshape(dy[0], (rows, outputs)), op.CastLike(weight, dy[0]))
        dx = op.reshape(product, shape_of(x))
    if bias is not None and op.wants(bias):
        db = op.sum_to_shape(dy[0], shape_of(bias))
    return [dx, None, None, None, None, db][: len(node.inputs)]


@rule("GatherBlockQuantized", domain="com.microsoft", fixed=(0, 2, 3))
def gather_block_quantized(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """No gradient: rows of a quantised table are looked up, which is not trained."""
    return [None] * len(node.inputs)


def _dequantised(op: Builder, node: ir.Node, after: ir.Value) -> ir.Value:
    """Emit the matrix [N, K] that the blocks of a MatMulNBits stand for, not before ``after`` is there.

    Of constants alone onnxruntime would compute it when the file is loaded, and keep it.
    """
    packed, scales, points = required_input(node, 1), required_input(node, 2), input_of(node, 3)
    columns, rows, size = (attr_int(node, name, 0) for name in ("K", "N", "block_size"))
    bits, blocks = attr_int(node, "bits", 4), -(-columns // size)
    if bits not in (4, 8):
        raise NoGradientError(f"its weights have {bits} bits")
    zero = op.Cast(op.Not(there(op, after)), to=ir.DataType.UINT8)
    numbers = op.Cast(_unpacked(op, packed, (rows, blocks, size), bits, zero), to=scales.dtype)
    if points is None:
        offset: ir.Value | float = float(1 << (bits - 1))
    elif is_floating(points):
        offset = op.reshape(points, (rows, blocks, 1))
    else:
        held = blocks + blocks % 2 if bits == 4 else blocks
        whole = _first_columns(op, _unpacked(op, points, (rows, held), bits, zero), blocks)
        offset = op.Cast(op.reshape(whole, (rows, blocks, 1)), to=scales.dtype)
    weight = op.Mul(op.Sub(numbers, offset), op.reshape(scales, (rows, blocks, 1)))
    return _first_columns(op, op.reshape(weight, (rows, blocks * size)), columns)


def _first_columns(op: Builder, matrix: ir.Value, count: int) -> ir.Value:
    if shape_of(matrix)[1] == count:
        return matrix
    start, end, axis = (np.asarray([number], np.int64) for number in (0, count, 1))
    return op.Slice(matrix, start, end, axis)


def _unpacked(op: Builder, packed: ir.Value, shape: tuple[int, ...], bits: int, zero: ir.Value) -> ir.Value:
    """Emit the uint8 numbers of a tensor that holds one, or two (the first in the low bits), a byte."""
    eight = np.uint8
    if bits == 8:
        return op.reshape(op.BitShift(packed, zero, direction="RIGHT"), shape)
    pairs = (math.prod(shape) // 2, 1)
    whole = op.reshape(op.BitShift(packed, zero, direction="RIGHT"), pairs)
    low, high = op.BitwiseAnd(whole, eight(15)), op.BitShift(whole, eight(4), direction="RIGHT")
    return op.reshape(op.Concat(low, high, axis=1), shape)
