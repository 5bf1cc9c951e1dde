"""What onnxruntime does not load, or its CPU provider has few kernels for, and what can be done about it."""

from __future__ import annotations

import re

import onnx_ir as ir

from ckplan.model.normal_form.opset import EXPORT_AGAIN

_NO_BFLOAT16 = (
    "many operators take bfloat16 from opset 22 on only, and onnxruntime has few kernels for it: export the model in "
    "float32 or float16"
)
"""What to do about a file whose operators do not take bfloat16."""
_FEW_DOUBLES = "onnxruntime lacks kernels for some operators in float64: export the model in float32"
"""What to do about a file in double precision that does not run."""
_ONE_TYPE = "cast what it reads to one type, or export the model with all of it in one"
"""What to do about a node that reads bfloat16 beside another type."""
_UNKNOWN = re.compile(r"(\S+?):(\w+)\(-?\d+\) is not a registered function/op")
_UNREGISTERED = "No Op registered for"  # in a domain that onnxruntime knows
_ENDED = "it ends the process"
_NEWER_IR = re.compile(r"max supported IR version: (\d+)")
_NEWER_OPSET = re.compile(r"it knows opsets of \S+ up to (\d+) only")
_MISSING = re.compile(
    r"Could not find an implementation|Failed to find kernel|NOT_IMPLEMENTED|does not support \w+ yet", re.IGNORECASE
)


def bfloat16_advice(reason: str) -> str:
    """Return the next thing to try where inference refuses a node for bfloat16.

    Args:
        reason: what it said: that the operator does not take the type, or that it is not that of what else is read.
    """
    return _ONE_TYPE if "inconsistent type" in reason else _NO_BFLOAT16


def loading_advice(reason: str, model: ir.Model) -> str:
    """Return the next thing to try after onnxruntime refused to load a model, empty where nothing is known.

    Args:
        reason: what onnxruntime said.
        model: what it was to load.
    """
    unknown = _UNKNOWN.search(reason)
    if (unknown and unknown[1] == "ai.onnx") or _UNREGISTERED in reason:
        return EXPORT_AGAIN
    if unknown:
        return f"give the library of the kernels of {unknown[1]}::{unknown[2]} with --custom-ops"
    if _ENDED in reason and ir.DataType.FLOAT16 in _types(model.graph):
        return "onnxruntime's optimisers fail on some models in float16 on a CPU: export it in float32"
    if newer := _NEWER_IR.search(reason):
        return f"install a newer onnxruntime, or set the model's `ir_version` to {newer[1]} with onnx and save it"
    if newer := _NEWER_OPSET.search(reason):
        return f"install a newer onnxruntime, or export the model with opset {newer[1]} or older"
    if not _MISSING.search(reason):
        return ""
    if ir.DataType.BFLOAT16 in _types(model.graph):
        return (
            "the model calculates in bfloat16, for which onnxruntime has few CPU kernels and inserts no Casts as it "
            "does for float16: run it on a GPU, or export it in float32 or float16"
        )
    if ir.DataType.DOUBLE in _types(model.graph):
        return _FEW_DOUBLES
    return "onnxruntime has no kernel for that operator, opset and element type on this device"


def running_advice(reason: str) -> str:
    """Return the next thing to try after a kernel refused to run, empty where nothing is known.

    Args:
        reason: what onnxruntime said: some kernels tell only then that they have no double precision.
    """
    return _FEW_DOUBLES if _MISSING.search(reason) and "double" in reason else ""


def half_precision_notes(model: ir.Model) -> tuple[str, ...]:
    """Return what has to be said of a model in half precision that is planned, or runs, on a CPU.

    Nothing has to be of one whose weights lie in half precision, and are cast before anything is computed of them.
    """
    kinds = _calculated_types(model.graph)
    notes = []
    if ir.DataType.FLOAT16 in kinds:
        notes.append(
            "the model calculates in float16, most of which onnxruntime's CPU provider does in float32 between Casts "
            "that it inserts: there a plan saves less, and another plan may round differently"
        )
    if ir.DataType.BFLOAT16 in kinds:
        notes.append(
            "the model calculates in bfloat16, for which onnxruntime has few CPU kernels and inserts no Casts: it "
            "needs a GPU to run"
        )
    return tuple(notes)


def _calculated_types(graph: ir.Graph) -> set[ir.DataType | None]:
    """The element types of what nodes read and make, but for those that only cast."""
    nodes = (node for node in ir.traversal.RecursiveGraphIterator(graph) if node.op_type not in ("Cast", "CastLike"))
    return {value.dtype for node in nodes for value in (*node.inputs, *node.outputs) if value is not None}


def _types(graph: ir.Graph) -> set[ir.DataType | None]:
    outputs = (output for node in ir.traversal.RecursiveGraphIterator(graph) for output in node.outputs)
    return {value.dtype for value in (*graph.inputs, *graph.initializers.values(), *outputs)}
