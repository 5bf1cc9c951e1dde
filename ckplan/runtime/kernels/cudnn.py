"""Bytes that cuDNN's convolutions take while they run, beyond their outputs.

On tensor cores cuDNN works with channels last: what it reads and what it makes is copied into that layout and back.
Read off the counters of an H100 (onnxruntime-gpu 1.31, cuDNN 9, products in TF32): the convolutions of a ResNet-50, a
DenseNet-121 and a U-Net, plain and transposed, take as much as what they read, what they make and their filters. Those
of one place that move by one take 512 bytes as a rule. What an algorithm asks for is counted; cuDNN may choose another
one, and onnxruntime's arena may hand out a free chunk that is up to twice as large.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.planner.arena.regions import chunk_size
from ckplan.runtime.sizes import bytes_of, dimensions_of

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})


def convolution_workspace(node: ir.Node) -> int:
    """Workspace of a convolution in bytes; 0 where it is a product at each place, or sizes are not known."""
    data, filters = node.inputs[:2]
    taps = None if filters is None else dimensions_of(filters)
    if data is None or filters is None or taps is None:
        return 0
    if math.prod(taps[2:]) == 1 and all(stride == 1 for stride in node.attributes.get_ints("strides", ()) or ()):
        return 0
    return sum(chunk_size(bytes_of(value)) for value in (data, filters, node.outputs[0]))
