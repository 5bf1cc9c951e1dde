"""What to do when onnxruntime has no kernel for a node."""

from __future__ import annotations

import re

import onnx_ir as ir

_MISSING = re.compile(r"Could not find an implementation|Failed to find kernel|NOT_IMPLEMENTED", re.IGNORECASE)


def advice(reason: str, model: ir.Model) -> str:
    """Return the next thing to try after onnxruntime refused to load a model, empty if that is not for a kernel.

    Args:
        reason: what onnxruntime said.
        model: what it was to load.
    """
    if not _MISSING.search(reason):
        return ""
    if any(value.dtype == ir.DataType.BFLOAT16 for value in _values(model.graph)):
        return (
            "the model calculates in bfloat16, for which onnxruntime has few CPU kernels and inserts no Casts as it "
            "does for float16: run it on a GPU, or export it in float32 or float16"
        )
    return "onnxruntime has no kernel for that operator, opset and element type on this device"


def _values(graph: ir.Graph) -> list[ir.Value]:
    outputs = [output for node in ir.traversal.RecursiveGraphIterator(graph) for output in node.outputs]
    return [*graph.inputs, *graph.initializers.values(), *outputs]
