"""Quantisation as ONNX has it since it knows 16 bits; before, onnxruntime's own operators did."""

from __future__ import annotations

from ckplan.model.contrib.emitter import Emitter, Results
from ckplan.model.contrib.registry import expansion


@expansion("QuantizeLinear", "DequantizeLinear")
def quantise(e: Emitter) -> Results:
    """The operators of ONNX of the same names."""
    operands = [e.required(0), e.required(1), e.input(2)]
    size = e.int_attribute("block_size") or None
    return [e.emit(e.node.op_type, *operands, axis=e.int_attribute("axis", 1), block_size=size)]
