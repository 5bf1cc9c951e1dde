"""Every rule in float16 and bfloat16 against its gradient in float64, at the same numbers.

float16 runs in onnxruntime with default options, which inserts Casts where it has no kernel. It does not for bfloat16,
so that is left to onnx's reference evaluator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from ckplan.autodiff import TrainingGraph
from ckplan.autodiff.registry import entries
from tests.node_cases.cases import Case, all_cases, holds_float_path
from tests.node_cases.check import _gradients, training_graph
from tests.node_cases.functions import by_onnxruntime, by_reference
from tests.node_cases.prepare import Prepared, Unusable, prepare
from tests.node_cases.retype import retyped

_TRIED = 4
"""Cases of an operator that are tried until one can be computed."""

_STEPS = {TensorProto.FLOAT16: 2.0**-10, TensorProto.BFLOAT16: 2.0**-7}
_ALLOWED = 20
"""Roundings, each of one step of the type relative to the largest element of the gradient."""

_DRAWING = frozenset({"Bernoulli", "Dropout"})
_OPERATORS = sorted({entry.op_type for entry in entries() if not entry.domain} - _DRAWING)
_SMALL_ENOUGH = 3000


class Uncomputed(Exception):
    """Nobody can compute a case in the type; says why."""


def _candidates(op_type: str) -> list[Case]:
    found = [case for case in all_cases() if op_type in case.operators and holds_float_path(case)]
    sized = sorted((_size(case), case.name, case) for case in found)
    return [case for size, _, case in sized if 0 < size <= _SMALL_ENOUGH][:_TRIED]


def _size(case: Case) -> int:
    weights = sum(int(np.prod(tensor.dims)) for tensor in case.model.graph.initializer)
    return weights + sum(np.size(value) for value in case.inputs if not isinstance(value, list))


def _built(case: Prepared, model: onnx.ModelProto) -> TrainingGraph:
    found = training_graph(case, model)
    if not isinstance(found, TrainingGraph):
        raise Uncomputed(found or "no gradient")
    return found


def _expected(case: Prepared, half: onnx.ModelProto) -> dict[str, np.ndarray]:
    for kind in (TensorProto.DOUBLE, TensorProto.FLOAT):
        try:
            found = _gradients(_built(case, retyped(half, kind)))
        except Exception as error:
            reason = " ".join(str(error).split())[:150]
            continue
        if not all(np.isfinite(array).all() and np.abs(array).max(initial=0) < 1e4 for array in found.values()):
            raise Uncomputed("the gradient has no place in half precision")
        return found
    raise Uncomputed(f"not in float64: {reason}")


def _found(training: TrainingGraph, half: onnx.ModelProto, kind: int) -> dict[str, np.ndarray]:
    proto = ir.to_proto(training.model)
    compute = by_onnxruntime if kind == TensorProto.FLOAT16 else by_reference
    try:
        results = compute(proto)({})
    except Exception as error:
        try:
            compute(half)({})
        except Exception as theirs:
            raise Uncomputed(f"not the forward pass either: {' '.join(str(theirs).split())[-150:]}") from error
        if kind != TensorProto.FLOAT16:
            raise Uncomputed(f"not by the reference: {' '.join(str(error).split())[-150:]}") from error
        raise
    named = dict(zip([output.name for output in proto.graph.output], results, strict=True))
    return {name: np.asarray(named[gradient]) for name, gradient in training.gradients.items()}


def _check(case: Case, kind: int) -> None:
    try:
        prepared = prepare(case)
    except Unusable as error:
        raise Uncomputed(str(error)) from error
    half = retyped(prepared.model, kind)
    expected = _expected(prepared, half)
    training = _built(prepared, half)
    for name, found in _found(training, half, kind).items():
        wanted = expected[name].astype(np.float64)
        assert found.dtype == onnx.helper.tensor_dtype_to_np_dtype(kind) or found.dtype == np.float32
        size = float(np.abs(wanted).max(initial=0)) + 1e-3
        error = float(np.abs(found.astype(np.float64) - wanted).max(initial=0)) / size
        assert error <= _ALLOWED * _STEPS[kind], f"{case.name}: the gradient of '{name}' is off by {error:.3g}"


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("op_type", _OPERATORS)
def test_rule(op_type: str, kind: int) -> None:
    reasons: Sequence[str] = []
    for case in _candidates(op_type):
        try:
            _check(case, kind)
        except Uncomputed as error:
            reasons = [*reasons, f"{case.name}: {error}"]
        else:
            return
    pytest.skip("no case of the onnx package can be computed: " + ("; ".join(reasons) or "there is none")[:300])
