"""Second derivatives of the same cases: the training graph differentiated again, against slopes of its gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.errors import CkplanError, ModelError, UnsupportedOperatorsError
from tests.autodiff.control_flow.models import Loop, Scan
from tests.node_cases.cases import FLOATS, Case, holds_float_path
from tests.node_cases.check import (
    FAILED,
    MISSING,
    NO_FLOATS,
    PASSED,
    SKIPPED,
    Outcome,
    Unsteady,
    at_kink,
    shifted,
    slope_of,
    training_graph,
)
from tests.node_cases.functions import by_reference
from tests.node_cases.prepare import NoFloats, Prepared, Unusable, prepare
from tests.node_cases.retype import retyped

_RTOL = 1e-5


def check_second(case: Case) -> Outcome:
    """Differentiate the sum of the squares of a case's gradients, and compare with its slopes.

    Only cases that are computed in float64 count: differences of differences bear no less.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return _check(case)


def _check(case: Case) -> Outcome:
    if not holds_float_path(case):
        return Outcome(case.name, SKIPPED, NO_FLOATS)
    try:
        prepared = prepare(case)
    except NoFloats:
        return Outcome(case.name, SKIPPED, NO_FLOATS)
    except Unusable as error:
        return Outcome(case.name, SKIPPED, str(error))
    first = Outcome(case.name, SKIPPED, "no slope near the inputs")
    for attempt in range(3):
        try:
            outcome = _attempt(case.name, shifted(prepared, attempt))
        except Unsteady:
            continue
        if outcome.status != FAILED:
            return outcome
        first = outcome
    return first


def second_graph(training: TrainingGraph) -> TrainingGraph | None:
    """Differentiate the sum of the squares of all gradients; None where they depend on no parameter.

    Raises:
        UnsupportedOperatorsError: a rule emitted what has no rule.
    """
    losses = [f"sum-of-squares:{name}" for name in training.gradients.values()]
    try:
        return build_training_graph(training.model, loss=losses)
    except UnsupportedOperatorsError:
        raise
    except ModelError as error:
        if "no parameter reaches" in str(error) or "no node of the model" in str(error):
            return None
        raise


def _attempt(name: str, case: Prepared) -> Outcome:
    training = training_graph(case)
    if isinstance(training, str) and ": refused" in training:
        # Defaults that came with an old opset are float32 whatever the rest is.
        training = training_graph(case, retyped(case.model, TensorProto.FLOAT))
    if training is None or isinstance(training, str):
        return Outcome(name, SKIPPED, "refused: there is no first derivative to differentiate")
    try:
        second = second_graph(training)
    except UnsupportedOperatorsError as error:
        listed = ", ".join(sorted({f"{node.split()[0]} {reason}" for node, reason in error.nodes}))
        return Outcome(name, MISSING, f"a rule emitted {listed}")
    except CkplanError as error:
        return Outcome(name, SKIPPED, f"refused: {str(error)[:200]}")
    except Exception as error:
        return Outcome(name, FAILED, f"crashed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    try:
        function = _sum_of_squares(training)
        start = function({})
        gradients = {} if second is None else _gradients(second)
    except Exception as error:  # what the evaluator cannot run
        return Outcome(name, SKIPPED, f"the evaluator cannot run it: {type(error).__name__}")
    if any(np.asarray(array).dtype != np.float64 for array in gradients.values()):
        return Outcome(name, SKIPPED, "not in float64")
    if not np.isfinite(start):
        raise Unsteady
    count = 0
    for parameter in training.gradients:
        array = case.parameters[parameter]
        gradient = gradients.get(parameter, np.zeros_like(array))
        rng = np.random.default_rng([3, array.size])
        direction = rng.uniform(0.5, 1.0, array.shape) * rng.choice([-1.0, 1.0], array.shape)

        def along(t: float, parameter: str = parameter, array: np.ndarray = array, d: np.ndarray = direction) -> float:
            try:
                return function({parameter: array + t * d})
            except Exception as error:  # the number decides a shape, or the evaluator mixes types
                raise Unsteady from error

        size = float(np.abs(gradient * direction).sum()) + 1e-2 * (1 + abs(start))
        slope, doubt = slope_of(along, size, 1e-8)
        count += 1
        if abs(float((gradient * direction).sum()) - slope) > 20 * doubt + _RTOL * size:
            got = float((gradient * direction).sum())
            if at_kink(along, abs(got - slope)):
                raise Unsteady
            return Outcome(name, FAILED, f"second derivative by '{parameter}' is {got:.6g}, not {slope:.6g}")
    return Outcome(name, PASSED, "" if second else "linear: none, and all slopes are zero", "reference", True, count)


def _sum_of_squares(training: TrainingGraph) -> Any:
    proto = _in_double(training)
    names = [output.name for output in proto.graph.output]
    wanted = [names.index(gradient) for gradient in training.gradients.values()]
    run = by_reference(_overridable(proto), Loop, Scan)

    def function(moved: Mapping[str, np.ndarray]) -> float:
        found = run(moved)
        return float(sum((np.asarray(found[index], dtype=np.float64) ** 2).sum() for index in wanted))

    return function


def _in_double(training: TrainingGraph) -> onnx.ModelProto:
    """A training graph in float64, also of operators that onnx has in float32 only: the evaluator takes either."""
    proto = ir.to_proto(training.model)
    double = all(value.type.tensor_type.elem_type == TensorProto.DOUBLE for value in proto.graph.output)
    return proto if double else retyped(proto, TensorProto.DOUBLE)


def _overridable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with all floating initializers as inputs too."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    present = {value.name for value in copy.graph.input}
    for tensor in copy.graph.initializer:
        if tensor.data_type in FLOATS and tensor.name not in present:
            copy.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return copy


def _gradients(training: TrainingGraph) -> dict[str, np.ndarray]:
    proto = _in_double(training)
    found = dict(zip([output.name for output in proto.graph.output], by_reference(proto, Loop, Scan)({}), strict=True))
    return {parameter: np.asarray(found[gradient]) for parameter, gradient in training.gradients.items()}
