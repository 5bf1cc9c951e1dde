"""Ways to compute a model's outputs: the function whose slopes the gradients have to match."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnx.reference.op_run
import onnxruntime

from tests.autodiff.gradcheck import Erf, Gelu, Pad
from tests.autodiff.reference_operators import OPERATORS

_RUNTIME_OPSET, _RUNTIME_IR = 26, 10
"""What onnxruntime 1.31 can load, and the oldest form of file that the tests need."""

_PAD_OPSET = 18

Function = Callable[[Mapping[str, Any]], list[Any]]
"""From feeds by name to the outputs in the order of the graph."""


def by_reference(model: onnx.ModelProto, *more: type[onnx.reference.op_run.OpRun]) -> Function:
    """Run a model in onnx's reference evaluator, with better versions of the operators it gets wrong, and of more."""
    # Ours is written for pads that are an input; older models have them as an attribute.
    version = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    better = [Erf, Gelu, *OPERATORS, *more, *([Pad] if version >= _PAD_OPSET else [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = onnx.reference.ReferenceEvaluator(model, new_ops=better)

    def function(feeds: Mapping[str, Any]) -> list[Any]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return list(session.run(None, dict(feeds)))

    return function


def by_onnxruntime(model: onnx.ModelProto) -> Function:
    """Run a model in onnxruntime on the CPU, with default options.

    Raises:
        Exception: of many kinds, if onnxruntime has no kernel or finds the model invalid.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        known_to_runtime(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def function(feeds: Mapping[str, Any]) -> list[Any]:
        return list(session.run(None, dict(feeds)))

    return function


def known_to_runtime(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with the newest versions that onnxruntime knows, if it is valid under them, else return it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = min(copy.ir_version, _RUNTIME_IR)
    for entry in copy.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = min(entry.version, _RUNTIME_OPSET)
    if copy.opset_import == model.opset_import:
        return copy
    try:
        onnx.checker.check_model(copy)
        onnx.shape_inference.infer_shapes(copy, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return model
    return copy


def agree(found: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> bool:
    """Say whether outputs are those expected; lists are compared item by item, and None with None only."""
    if len(found) != len(expected):
        return False
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, list) or isinstance(ours, list):
            if not (isinstance(ours, list) and isinstance(theirs, list) and agree(ours, theirs, rtol, atol)):
                return False
            continue
        if ours is None or theirs is None:
            if ours is not theirs:
                return False
            continue
        one, other = np.asarray(ours), np.asarray(theirs)
        if one.shape != other.shape:
            return False
        if one.dtype.kind in "OUS" or other.dtype.kind in "OUS":
            same = bool(np.all(one == other))
        else:
            with np.errstate(all="ignore"):
                same = np.allclose(one.astype(float), other.astype(float), rtol=rtol, atol=atol, equal_nan=True)
        if not same:
            return False
    return True
