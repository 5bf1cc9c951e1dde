"""Memory-efficient training of ONNX models.

ckplan reads a forward ONNX graph, builds the training graph (forward, loss and gradients) out of standard
operators, plans which activations to keep and which to recompute, and writes a file that keeps to the plan in
stock onnxruntime. The command line is a thin layer over the names of this package::

    forward = ckplan.load("model.onnx", dims={"batch": 8})
    training = ckplan.build_training_graph(forward.model)
    problem = ckplan.problem_of(training.model)
    plan = ckplan.parse_strategy("memory").solve(problem)
    ckplan.save(ckplan.emit(training.model, plan), "training.onnx")

The names are imported when they are first used, so that ``import ckplan`` costs nothing.

Importing it turns onnxruntime's telemetry off for this process and those it starts, unless onnxruntime is loaded
already or ``ORT_DISABLE_TELEMETRY`` is set to something else: names of models are nobody else's business.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckplan.answers.analysis import Analysis, analyze
    from ckplan.answers.explanation import Explanation, explain
    from ckplan.autodiff import OPTIMIZERS, TrainingGraph, add_optimizer, build_training_graph, parse_optimizer
    from ckplan.comparison import Comparison, Limits, compare_files
    from ckplan.errors import CkplanError
    from ckplan.meter import Measurement, Verification, verify
    from ckplan.meter.checkup import checkup
    from ckplan.model import ForwardModel, load, save
    from ckplan.operators.gradients import rule
    from ckplan.planner import Plan, Problem, Timeline, bottlenecks, simulate
    from ckplan.planner.strategies import STRATEGIES, parse_strategy, register_strategy
    from ckplan.runtime.problem_of import problem_of
    from ckplan.writer.emit import emit

__version__ = "0.1.0"

# onnxruntime reads it once, when its library is loaded (docs/Privacy.md of its repository).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOME = {
    "Analysis": "ckplan.answers.analysis",
    "analyze": "ckplan.answers.analysis",
    "OPTIMIZERS": "ckplan.autodiff",
    "TrainingGraph": "ckplan.autodiff",
    "add_optimizer": "ckplan.autodiff",
    "build_training_graph": "ckplan.autodiff",
    "parse_optimizer": "ckplan.autodiff",
    "Comparison": "ckplan.comparison",
    "Limits": "ckplan.comparison",
    "compare_files": "ckplan.comparison",
    "CkplanError": "ckplan.errors",
    "Explanation": "ckplan.answers.explanation",
    "explain": "ckplan.answers.explanation",
    "Measurement": "ckplan.meter",
    "Verification": "ckplan.meter",
    "verify": "ckplan.meter",
    "checkup": "ckplan.meter.checkup",
    "ForwardModel": "ckplan.model",
    "load": "ckplan.model",
    "save": "ckplan.model",
    "rule": "ckplan.operators.gradients",
    "Plan": "ckplan.planner",
    "Problem": "ckplan.planner",
    "Timeline": "ckplan.planner",
    "bottlenecks": "ckplan.planner",
    "simulate": "ckplan.planner",
    "STRATEGIES": "ckplan.planner.strategies",
    "parse_strategy": "ckplan.planner.strategies",
    "register_strategy": "ckplan.planner.strategies",
    "emit": "ckplan.writer",
    "problem_of": "ckplan.runtime",
}

__all__ = [
    "OPTIMIZERS",
    "STRATEGIES",
    "Analysis",
    "CkplanError",
    "Comparison",
    "Explanation",
    "ForwardModel",
    "Limits",
    "Measurement",
    "Plan",
    "Problem",
    "Timeline",
    "TrainingGraph",
    "Verification",
    "add_optimizer",
    "analyze",
    "bottlenecks",
    "build_training_graph",
    "checkup",
    "compare_files",
    "emit",
    "explain",
    "load",
    "parse_optimizer",
    "parse_strategy",
    "problem_of",
    "register_strategy",
    "rule",
    "save",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ckplan' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
