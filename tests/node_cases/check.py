"""Whether ckplan's gradients of a case are the slopes of its function."""

from __future__ import annotations

import glob
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, numpy_helper

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.registry import NON_DIFFERENTIABLE
from ckplan.errors import CkplanError, UnsupportedOperatorsError
from ckplan.model.loading import normalise
from tests.node_cases.cases import Case, holds_float_path
from tests.node_cases.functions import by_onnxruntime, by_reference
from tests.node_cases.prepare import LOSS, NoFloats, Prepared, Unusable, prepare
from tests.node_cases.retype import in_type, retyped

PASSED, SKIPPED, MISSING, FAILED = "passed", "skipped", "missing", "failed"

RIGHT, REFUSED, WRONG, CRASHED, UNJUDGED = "right", "refused with a reason", "wrong", "crash", "nobody to judge by"
"""What is to be said of a case in the end; see :func:`verdict`."""

NO_FLOATS = "no path of floats from an input to an output"
"""The reason of a case that is none of a gradient."""

_OTHER = "computes another forward value"
"""What onnxruntime is said to do where it does not mean what onnx means."""

_STEPS = (2e-4, 1e-3, 1e-2, 4e-2, 1.5e-1)
_STEADY = 1e-3
"""Slopes that differ by more than this part from one step to the next are no slopes."""
_ELEMENTWISE = 6
"""Parameters of up to this many elements are moved element by element."""
_FEW = 8
"""Elements to move where moving all of them meets a kink."""
_SHIFTS = 3
_SINGLE = 2e-3
"""What float32 may differ by, relative to the size of the gradient."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        name: of the case.
        status: one of ``passed``, ``skipped``, ``missing`` (an operator without a rule) and ``failed``.
        reason: why it was skipped or how it failed; for one that passed, what was special.
        function: who computed the function.
        exact: whether the function was computed in float64.
        slopes: how many slopes were compared.
        runtime: what onnxruntime did with the training graph in float32: ``agrees``, ``no kernel``, ``differs`` or "".
        oracles: what the other oracles said, by name: ``agrees``, ``differs`` or why they did not answer.
    """

    name: str
    status: str
    reason: str = ""
    function: str = ""
    exact: bool = False
    slopes: int = 0
    runtime: str = ""
    oracles: dict[str, str] = field(default_factory=dict)


def verdict(outcome: Outcome) -> str:
    """Say in one word what became of a case: it is to be right, or refused with a reason."""
    if outcome.status == PASSED:
        return RIGHT
    if outcome.status == MISSING or outcome.reason.startswith(("not differentiable", "refused")):
        return REFUSED
    if outcome.status == SKIPPED:
        return UNJUDGED
    return CRASHED if outcome.reason.startswith("crashed") else WRONG


def check(case: Case, oracles: bool = False) -> Outcome:
    """Check one case; never raises for what the case does, and infinities on the way are nothing to warn of."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return _check(case, oracles)


def _check(case: Case, oracles: bool) -> Outcome:
    if not holds_float_path(case):
        return Outcome(case.name, SKIPPED, NO_FLOATS)
    try:
        prepared = prepare(case)
    except NoFloats:
        return Outcome(case.name, SKIPPED, NO_FLOATS)
    except Unusable as error:
        return Outcome(case.name, SKIPPED, str(error))
    first: Outcome | None = None
    for attempt in range(_SHIFTS + 1):
        moved = shifted(prepared, attempt)
        try:
            outcome = _attempt(case.name, moved, oracles)
        except Unsteady as error:
            outcome = Outcome(case.name, SKIPPED, f"no slope near the inputs ({error})")
        if attempt and outcome.status == PASSED:
            note = "inputs shifted off a kink"
            outcome = replace(outcome, reason=f"{outcome.reason}; {note}" if outcome.reason else note)
        if outcome.status == FAILED and outcome.runtime in ("agrees", _OTHER) and prepared.how == "reference":
            outcome = _as_runtime_means_it(case.name, moved, outcome)
        if attempt and outcome.reason.startswith("refused"):
            continue  # what was moved decides a shape
        if outcome.status in (PASSED, MISSING) or outcome.reason.startswith(_FINAL):
            return outcome
        first = first or outcome
    assert first is not None
    return first


def _as_runtime_means_it(name: str, case: Prepared, before: Outcome) -> Outcome:
    """Check against onnxruntime's own forward pass, where that is another than onnx's."""
    try:
        function = case.in_runtime()
        ours, theirs = float(function(case.parameters)[0]), float(case.function(case.parameters)[0])
        if abs(ours - theirs) <= 1e-3 * (abs(ours) + abs(theirs)):
            return before
        outcome = _attempt(name, replace(case, function=function, exact=False, how="onnxruntime"), False)
    except Exception:  # the first outcome stands
        return before
    if outcome.status != PASSED:
        return before
    return replace(outcome, reason="onnxruntime's forward value is another than onnx's, and so is the gradient")


class Unsteady(Exception):
    """The function has no slope there."""


_DRAWING = frozenset({"Bernoulli", "Dropout"})

_TRULY_NOT = frozenset(reason for reason in NON_DIFFERENTIABLE.values() if "not differentiated" not in reason)
"""Reasons that are in the nature of an operator."""

_FINAL = ("not differentiable", "crashed", "refused")


def _attempt(name: str, case: Prepared, oracles: bool) -> Outcome:
    training = training_graph(case)
    if isinstance(training, str) and ": refused" in training:
        # Defaults that came with an old opset are float32 whatever the rest is.
        narrow = replace(case, model=retyped(case.model, TensorProto.FLOAT))
        single = training_graph(narrow)
        if not isinstance(single, str):
            case, training = narrow, single
    if isinstance(training, str):
        status, reason = training.split(": ", 1)
        return Outcome(name, status, reason, case.how, case.exact)
    if training is None:
        free = [p for p in case.parameters if p not in case.hyperparameters]
        if not free:
            return Outcome(
                name, SKIPPED, "refused: all floats are settings, which get no gradient", case.how, case.exact
            )
        gradients: dict[str, np.ndarray] = {}
        runtime = ""
    else:
        try:
            gradients = _gradients(training)
        except Exception as error:
            reason = f"crashed: the training graph does not run ({_brief(error)})"
            return Outcome(name, FAILED, reason, case.how, case.exact)
        runtime = _in_runtime(case, gradients)
    gradients.update(
        (p, np.zeros_like(array))
        for p, array in case.parameters.items()
        if p not in gradients and p not in case.hyperparameters
    )
    problem, slopes = _compare(case, gradients)
    reason = problem
    if not problem and training is None:
        reason = "constant between steps: no gradient, and all slopes are zero"
    elif not problem and runtime.startswith("differs"):
        problem = reason = f"onnxruntime {runtime}"
    found: dict[str, str] = {}
    if oracles and training is not None:
        from tests.node_cases.oracles import ask_onnx_ad, ask_torch

        found = {"torch": ask_torch(case, gradients), "onnx-ad": ask_onnx_ad(case, gradients)}
    return Outcome(name, FAILED if problem else PASSED, reason, case.how, case.exact, slopes, runtime, found)


def training_graph(case: Prepared, model: onnx.ModelProto | None = None) -> TrainingGraph | str | None:
    """Build the training graph; None if no float gets a gradient, ``status: reason`` if it cannot be built."""
    try:
        forward = normalise(ir.from_proto(model or case.model))
        present = {str(value.name) for value in forward.model.graph.initializers.values()}
        wrt = [glob.escape(name) for name in case.parameters if name in present]
        if not wrt:
            return None
        return build_training_graph(forward.model, loss=LOSS, wrt=wrt)
    except UnsupportedOperatorsError as error:
        reasons = dict(error.nodes)
        listed = ", ".join(sorted({f"{node.split()[0]} {reason}" for node, reason in reasons.items()}))
        if all(reason in _TRULY_NOT for reason in reasons.values()):
            return f"{SKIPPED}: not differentiable: {listed}"
        return f"{MISSING}: {listed}"
    except CkplanError as error:
        text = str(error)
        if "no parameter is left" in text or "no parameter reaches" in text:
            return None
        if "is quantised" in text:
            return f"{SKIPPED}: not differentiable: {text[:200]}"
        return f"{FAILED}: refused: {text[:200]}"
    except Exception as error:
        return f"{FAILED}: crashed: {_brief(error)}"


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _gradients(training: TrainingGraph) -> dict[str, np.ndarray]:
    """Run a training graph in the reference evaluator, or where that cannot, in onnxruntime."""
    proto = ir.to_proto(training.model)
    names = [output.name for output in proto.graph.output]
    try:
        found = by_reference(proto)({})
    except Exception as error:
        try:
            found = by_onnxruntime(proto)({})
        except Exception:
            raise error from None
    by_name = dict(zip(names, found, strict=True))
    return {parameter: np.asarray(by_name[gradient]) for parameter, gradient in training.gradients.items()}


def _in_runtime(case: Prepared, expected: Mapping[str, np.ndarray]) -> str:
    """Compare the gradients of the model in float32 in onnxruntime."""
    if any(node.op_type in _DRAWING for node in case.model.graph.node):
        return "draws other numbers"
    training = training_graph(case, retyped(case.model, TensorProto.FLOAT))
    if training is None or isinstance(training, str):
        return "not in float32"
    proto = ir.to_proto(training.model)
    try:
        found = dict(zip([o.name for o in proto.graph.output], by_onnxruntime(proto)({}), strict=True))
    except Exception as error:
        text = " ".join(str(error).split())
        kernel = "NOT_IMPLEMENTED" in text or "Could not find an implementation" in text
        if kernel or not _runs(retyped(case.model, TensorProto.FLOAT)):
            return f"no kernel: {text[-90:]}"
        return f"differs: does not run ({text[:160]})"
    if _is_another_value(float(found[training.loss].reshape(())), float(case.function(case.parameters)[0])):
        return _OTHER
    for name, gradient in training.gradients.items():
        ours = np.asarray(found[gradient], dtype=np.float64)
        if name in expected and not near(ours, expected[name], _SINGLE):
            return f"differs in the gradient of '{name}'"
    return "agrees"


def _runs(model: onnx.ModelProto) -> bool:
    """Say whether onnxruntime runs the forward model."""
    try:
        by_onnxruntime(model)({})
    except Exception:  # of its own kinds
        return False
    return True


def _is_another_value(one: float, other: float) -> bool:
    return abs(one - other) > 1e-2 * (abs(one) + abs(other)) + 1e-4


def near(found: np.ndarray, expected: np.ndarray, rtol: float) -> bool:
    """Say whether an array is another, up to a part of the largest element."""
    wanted = np.asarray(expected, dtype=np.float64)
    size = float(np.abs(wanted).max(initial=0.0)) + 1e-3
    return found.shape == wanted.shape and bool(np.all(np.abs(found - wanted) <= rtol * size))


def _compare(case: Prepared, gradients: Mapping[str, np.ndarray]) -> tuple[str, int]:
    """Compare the gradients with slopes; return what is wrong, if anything, and how many slopes were looked at."""
    count = 0
    for name, gradient in gradients.items():
        start = case.parameters[name]
        if gradient.shape != start.shape:
            return f"the gradient of '{name}' has the shape {gradient.shape}, not {start.shape}", count
        if not np.isfinite(gradient.astype(np.float64)).all():
            return f"the gradient of '{name}' is not finite", count
        for direction in _directions(start):
            count += 1
            try:
                problem = _held_against_slope(case, name, gradient, direction)
            except Unsteady:
                if start.size <= _FEW:
                    raise
                # Of many elements one is near a kink in any direction, unless few are moved.
                problem = _held_against_slope(case, name, gradient, _of_few(direction))
            if problem:
                return problem, count
    return "", count


def _held_against_slope(case: Prepared, name: str, gradient: np.ndarray, direction: np.ndarray) -> str:
    """Compare a parameter's gradient with the slope along a direction; return what is wrong, if anything."""
    start, precise = case.parameters[name], case.exact and gradient.dtype == np.float64

    def along(t: float) -> float:
        moved = {**case.parameters, name: start + t * direction}
        try:
            return float(np.asarray(case.function(moved)[0], dtype=np.float64).reshape(()))
        except Exception as error:
            raise Unsteady(f"'{name}' decides a shape: {_brief(error)}") from error

    terms = gradient.astype(np.float64) * direction
    size = float(np.abs(terms).sum())
    with np.errstate(all="ignore"):
        slope, doubt = slope_of(along, max(size, 1e-2), 1e-9 if case.exact else 1e-4)
    allowed = 20 * doubt + (1e-6 if precise else 2e-3) * (size + 1e-2)
    if abs(float(terms.sum()) - slope) > allowed:
        if case.exact and at_kink(along, abs(float(terms.sum()) - slope)):
            raise Unsteady(f"'{name}' is at a kink")
        return f"the gradient of '{name}' gives a slope of {terms.sum():.6g}, not {slope:.6g}"
    return ""


def _of_few(direction: np.ndarray) -> np.ndarray:
    """The same direction of a few elements."""
    chosen = np.random.default_rng(direction.size).choice(direction.size, _FEW, replace=False)
    kept = np.zeros(direction.size, dtype=bool)
    kept[chosen] = True
    return np.where(kept.reshape(direction.shape), direction, 0.0)


def _directions(start: np.ndarray) -> Iterable[np.ndarray]:
    if not start.size:
        return
    if start.size <= _ELEMENTWISE:
        for index in range(start.size):
            yield np.eye(start.size)[index].reshape(start.shape)
        return
    for seed in range(2):
        rng = np.random.default_rng([seed, start.size])
        yield rng.uniform(0.5, 1.0, start.shape) * rng.choice([-1.0, 1.0], start.shape)


def slope_of(function: Callable[[float], float], size: float, enough: float) -> tuple[float, float]:
    """The slope at zero from central differences of fourth order, and how far two steps' results differ.

    Raises:
        Unsteady: no two steps agree, or the function is not finite.
    """
    best: tuple[float, float] | None = None
    before: float | None = None
    for step in _STEPS:
        near_by = function(step) - function(-step)
        far = function(2 * step) - function(-2 * step)
        slope = (8 * near_by - far) / (12 * step)
        if not np.isfinite(slope):
            break
        if before is not None:
            doubt = abs(slope - before)
            if best is None or doubt < best[1]:
                best = before, doubt
            if doubt <= enough * size:
                break
        before = slope
    if best is None or best[1] > _STEADY * max(size, abs(best[0])):
        raise Unsteady("not finite" if best is None else "two steps give two slopes")
    return best


def at_kink(function: Callable[[float], float], mismatch: float) -> bool:
    """Say whether the slopes to the left and to the right differ by as much as is to be explained.

    For a smooth function they differ by the step only, so that no wrong gradient is excused.
    """
    here = function(0.0)
    jumps = [abs(function(step) + function(-step) - 2 * here) / step for step in (1e-5, 4e-4)]
    slopes = [(function(step) - function(-step)) / (2 * step) for step in (1e-4, 4e-4, 2e-3, 4e-3)]
    return max(jumps) > 0.5 * mismatch or max(slopes) - min(slopes) > 0.25 * mismatch


def shifted(case: Prepared, attempt: int) -> Prepared:
    """Move the parameters off ties and kinks, further with each attempt."""
    if not attempt:
        return case
    rng = np.random.default_rng([7, attempt])
    last = attempt == _SHIFTS  # roots and logarithms of random numbers

    def away(array: np.ndarray) -> np.ndarray:
        if last:
            return np.abs(array) + rng.uniform(0.1, 0.3, array.shape)
        return array + attempt * 0.03 * rng.uniform(-1.0, 1.0, array.shape) * (0.3 + np.abs(array))

    moved = {name: away(array) for name, array in case.parameters.items() if name not in case.hyperparameters}
    moved = {name: np.asarray(array) for name, array in {**case.parameters, **moved}.items()}
    copy = onnx.ModelProto()
    copy.CopyFrom(case.model)
    for tensor in copy.graph.initializer:
        if tensor.name in moved:
            tensor.CopyFrom(numpy_helper.from_array(in_type(moved[tensor.name], tensor.data_type), tensor.name))
    return replace(case, model=copy, parameters=moved)


def tally(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Count outcomes by status."""
    return Counter(outcome.status for outcome in outcomes)
