"""Local functions that import another version of ONNX's operators than the model does.

onnxruntime takes their nodes for those of the model's version, and onnx's inliner converts them in easy cases only: it
wants types for all that they read, and calls two values alike where a function is called twice.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.errors import ModelError


def level_functions(model: ir.Model) -> None:
    """Give functions the model's version where none of their operators changed between that and their own."""
    for function in _others(model):
        versions = (function.opset_imports[""], model.graph.opset_imports[""])
        nodes = [node for node in function.all_nodes() if node.domain in ("", "ai.onnx")]
        if all(_since(node.op_type, versions[0]) == _since(node.op_type, versions[1]) for node in nodes):
            function.opset_imports[""] = versions[1]


def refusal_of_several(model: ir.Model, reason: str) -> ModelError | None:
    """What to say of a model that failed where a function is of another version than its own; None where none is.

    Args:
        model: the model.
        reason: what failed, in one line.
    """
    found = next(iter(_others(model)), None)
    if found is None:
        return None
    versions = (found.opset_imports[""], model.graph.opset_imports[""])
    return ModelError(
        f"function {found.domain}::{found.name} is of opset {versions[0]}, and the model of opset {versions[1]}: "
        f"they cannot be brought together ({reason})",
        "export the model and its functions with one opset",
    )


def _others(model: ir.Model) -> list[ir.Function]:
    version = model.graph.opset_imports.get("")
    functions = model.functions.values()
    return [one for one in functions if version and one.opset_imports.get("", version) != version]


def _since(op_type: str, version: int) -> int:
    """Since which version an operator is what it is in another one; 0 if that does not have it."""
    import onnx

    return onnx.defs.get_schema(op_type, version, "").since_version if onnx.defs.has(op_type, version, "") else 0
