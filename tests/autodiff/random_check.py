"""Gradients of random models: against slopes, in onnxruntime, and recomputed against not recomputed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import numpy_helper

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.model.loading import normalise
from ckplan.pipeline import Step, rewrite, step_of
from ckplan.planner.strategies import parse_strategy
from tests.autodiff.gradcheck import onnxruntime_run, to_dtype, to_overridable
from tests.node_cases.check import Unsteady, at_kink, slope_of
from tests.node_cases.functions import by_reference

STRATEGIES = ("sqrt", "memory")


@dataclass(frozen=True)
class Found:
    """What became of a random model.

    Attributes:
        problem: what is wrong, empty if nothing is.
        skipped: why nothing can be said.
        nodes: of the forward model.
        repeats: how many nodes the plans recomputed.
    """

    problem: str = ""
    skipped: str = ""
    nodes: int = 0
    repeats: int = 0


def check_model(model: onnx.ModelProto, runtime: bool = True, recompute: bool = False) -> Found:
    """Check the gradients of a model whose parameters are called ``p*`` and whose output is ``loss``.

    Args:
        model: in float64, without inputs.
        runtime: compare float32 in onnxruntime too.
        recompute: compare files planned by :data:`STRATEGIES` with the file without a plan, bit for bit: as they are
            written, and as onnxruntime fuses them by default.
    """
    size = len(model.graph.node)
    if not _reads_parameters(model):
        return Found(skipped="the loss depends on no parameter", nodes=size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = build_training_graph(_loaded(model), loss="loss", wrt=["p*"])
        try:
            problem = _against_slopes(model, training)
        except Unsteady as error:
            return Found(skipped=f"no slope: {error}", nodes=size)
        if problem or not (runtime or recompute):
            return Found(problem, nodes=size)
        problem, repeats = _in_runtime(model, training, recompute)
    return Found(problem, nodes=size, repeats=repeats)


def _loaded(model: onnx.ModelProto) -> ir.Model:
    return normalise(ir.from_proto(model)).model


def _reads_parameters(model: onnx.ModelProto) -> bool:
    needed = {"loss"}
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
    return any(name.startswith("p") for name in needed)


def _run(training: TrainingGraph) -> dict[str, np.ndarray]:
    proto = ir.to_proto(training.model)
    names = [output.name for output in proto.graph.output]
    found = dict(zip(names, by_reference(proto)({}), strict=True))
    return {parameter: np.asarray(found[gradient]) for parameter, gradient in training.gradients.items()}


def _against_slopes(model: onnx.ModelProto, training: TrainingGraph) -> str:
    """Compare slopes along two random directions of all parameters at once."""
    function = by_reference(to_overridable(model))
    start = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name.startswith("p")}
    gradients = _run(training)
    for name, gradient in gradients.items():
        if gradient.shape != start[name].shape:
            return f"the gradient of {name} has the shape {gradient.shape}, not {start[name].shape}"
        if not np.isfinite(gradient).all():
            return f"the gradient of {name} is not finite"
    for seed in range(2):
        rng = np.random.default_rng(seed)
        direction = {n: rng.uniform(0.5, 1.0, a.shape) * rng.choice([-1.0, 1.0], a.shape) for n, a in start.items()}

        def along(t: float, direction: dict[str, np.ndarray] = direction) -> float:
            return float(function({name: start[name] + t * direction[name] for name in start})[0])

        terms = {name: float((gradient * direction[name]).sum()) for name, gradient in gradients.items()}
        size = sum(float(np.abs(gradient * direction[name]).sum()) for name, gradient in gradients.items()) + 1e-2
        slope, doubt = slope_of(along, size, 1e-9)
        if abs(sum(terms.values()) - slope) > 20 * doubt + 1e-6 * size:
            if at_kink(along, abs(sum(terms.values()) - slope)):
                raise Unsteady("at a kink")
            return f"the gradients give a slope of {sum(terms.values()):.8g}, not {slope:.8g} (terms {terms})"
    return ""


def _in_runtime(model: onnx.ModelProto, training: TrainingGraph, recompute: bool) -> tuple[str, int]:
    single = build_training_graph(_loaded(to_dtype(model, np.float32)), loss="loss", wrt=["p*"])
    if recompute:
        return _recomputed(step_of(single))
    plain = onnxruntime_run(single.model)
    exact = _run(training)
    total = sum(float(np.abs(gradient).max(initial=0.0)) for gradient in exact.values())
    for name, gradient in exact.items():
        found = plain[single.gradients[name]]
        # Rounding of one parameter's gradient is that of the sums it comes from, which may cancel.
        if not np.all(np.abs(found - gradient) <= 3e-3 * (np.abs(gradient).max(initial=0.0) + 0.1 * total + 1e-2)):
            return f"onnxruntime's gradient of {name} differs by {np.abs(found - gradient).max():.2g}", 0
    return "", 0


def _recomputed(step: Step) -> tuple[str, int]:
    """Compare planned files with the file without a plan; returns what is wrong, and how many nodes ran again."""
    plain = [run(step.ordered) for run in (_without_fusion, onnxruntime_run)]
    repeats = 0
    for name in STRATEGIES:
        planned = rewrite(step, parse_strategy(name))
        repeats += planned.plan.recomputed
        for run, before in zip((_without_fusion, onnxruntime_run), plain, strict=True):
            for key, value in run(planned.model).items():
                if not np.array_equal(value, before[key], equal_nan=True):
                    return f"recomputed by {name}, {key} differs by {np.abs(value - before[key]).max():.2g}", repeats
    return "", repeats


def _without_fusion(model: ir.Model) -> dict[str, np.ndarray]:
    """Run a model in onnxruntime exactly as it is written."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {}), strict=True))
