"""The columns into which onnxruntime's CPU kernels of convolutions copy what they read, and what tells them where."""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.runtime.sizes import dimensions_of

_PIECE = 2**16
"""Bytes of the buffer that a thread of a convolution works in."""

_ABREAST = 8
"""Places of a DeformConv's output that are looked up together."""


def columns_of(node: ir.Node, threads: int) -> list[int]:
    """Bytes of each tensor that a convolution works in, in turn.

    Args:
        node: Conv, ConvTranspose, ConvInteger or DeformConv, or a fused one.
        threads: on which kernels with a buffer for each run.
    """
    if node.op_type == "DeformConv":
        return _deformed(node)
    if node.op_type == "ConvTranspose":
        return [_transposed(node)]
    return [_integer(node) if node.op_type == "ConvInteger" else _convolution(node, threads)]


def _convolution(node: ir.Node, most: int) -> int:
    """The columns of one sample and group, or of as much of them as fits into a small buffer for each thread.

    They are made at once where there are more filters than places in the output, else piece by piece. A kernel of one
    place that moves by one needs none, and the same goes for one that is as wide as what it reads
    (``core/mlas/lib/convolve.cpp``, ``MlasConvPrepare``).
    """
    found = _shapes(node)
    if found is None or node.domain == "com.microsoft.nchwc":  # blocked: no columns (``core/mlas/lib/snchwc.cpp``)
        return 0
    data, weight, result, itemsize = found
    group = node.attributes["group"].as_int() if "group" in node.attributes else 1
    places, taps, filters = math.prod(result[2:]), math.prod(weight[2:]), weight[0] // group
    if min(places, taps, filters) < 1:  # nothing is made
        return 0
    if _moves_by_one(node, taps) and (taps == 1 or (weight[1] == 1 and _spans(data[2:], weight[2:]))):
        return 0
    if filters > places:
        return math.ceil(weight[1] * taps * places * itemsize)
    if data[0] * group > 1:
        return min(most, data[0] * group) * _PIECE
    # One sample is cut along its places, the pieces being multiples of 16 of them.
    threads = min(most, filters * places * weight[1] * taps // 2**16 + 1)
    piece = math.ceil(math.ceil(places / threads) / 16) * 16
    return max(1, min(threads, math.ceil(places / piece))) * _PIECE


def _moves_by_one(node: ir.Node, taps: int) -> bool:
    """Whether a convolution has strides of one and no padding; a kernel of one place pads nothing by itself."""
    strides = node.attributes.get_ints("strides", ()) or ()
    pads = node.attributes.get_ints("pads", ()) or ()
    padded = node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID") and taps > 1
    return all(stride == 1 for stride in strides) and not (padded or any(pads))


def _spans(places: tuple[int, ...], taps: tuple[int, ...]) -> bool:
    """Whether a two-dimensional kernel is as wide as what it reads, or a single column as high."""
    return len(places) == 2 and (taps[1] == places[1] or (taps[0] == places[0] and taps[1] == 1))


def _transposed(node: ir.Node) -> int:
    """The columns of one sample and group (``core/providers/cpu/nn/conv_transpose.cc``)."""
    found = _shapes(node)
    if found is None:
        return 0
    data, weight, _, itemsize = found
    return math.ceil(math.prod(weight[1:]) * math.prod(data[2:]) * itemsize)


def _integer(node: ir.Node) -> int:
    """The columns of one sample and group, unless its kernel is one place that moves by one and pads nothing.

    ``core/providers/cpu/quantization/conv_integer.cc``.
    """
    found = _shapes(node)
    if found is None:
        return 0
    _, weight, result, _ = found
    taps = math.prod(weight[2:])
    return 0 if taps == 1 and _moves_by_one(node, taps) else weight[1] * taps * math.prod(result[2:])


def _deformed(node: ir.Node) -> list[int]:
    """Where a sample's output looks, four corners and their weights for each tap and place, and all of its columns.

    Places are taken eight at a time (``core/providers/cpu/nn/deform_conv.cc``).
    """
    found = _shapes(node)
    if found is None:
        return []
    data, weight, result, itemsize = found
    places, taps = math.prod(result[2:]), math.prod(weight[2:])
    offsets = node.attributes.get_int("offset_group", 1)
    corners = offsets * taps * -(-places // _ABREAST) * _ABREAST * 4 * (4 + itemsize)
    return [math.ceil(corners), math.ceil(data[1] * taps * places * itemsize)]


def _shapes(node: ir.Node) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], float] | None:
    data, weight, result = node.inputs[0], node.inputs[1], node.outputs[0]
    if data is None or weight is None or result.dtype is None:
        return None
    shapes = dimensions_of(data), dimensions_of(weight), dimensions_of(result)
    if shapes[0] is None or shapes[1] is None or shapes[2] is None:
        return None
    return shapes[0], shapes[1], shapes[2], result.dtype.itemsize
