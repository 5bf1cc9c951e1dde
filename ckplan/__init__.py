"""Memory-efficient training of ONNX models.

ckplan reads a forward ONNX graph, builds the training graph (forward, loss and gradients) out of standard
operators, plans which activations to keep and which to recompute, and writes a file that keeps to the plan in
stock onnxruntime. The command line is a thin layer over the names of this package::

    ckplan.rewrite("model.onnx", budget="40%", dims={"batch": 8}, output="training.onnx")

The names are imported when they are first used, so that ``import ckplan`` costs nothing.

Importing it turns onnxruntime's telemetry off for this process and those it starts, unless onnxruntime is loaded
already or ``ORT_DISABLE_TELEMETRY`` is set to something else: names of models are nobody else's business.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ckplan.version import __version__ as __version__

if TYPE_CHECKING:
    from ckplan.answers.analysis import Analysis as Analysis
    from ckplan.answers.explanation import Explanation as Explanation
    from ckplan.answers.fit import Fit as Fit
    from ckplan.answers.pareto import Pareto as Pareto
    from ckplan.api import analyze as analyze
    from ckplan.api import artifacts as artifacts
    from ckplan.api import build_training_graph as build_training_graph
    from ckplan.api import explain as explain
    from ckplan.api import fit as fit
    from ckplan.api import measure as measure
    from ckplan.api import open_model as open_model
    from ckplan.api import pareto as pareto
    from ckplan.api import plan as plan
    from ckplan.api import rewrite as rewrite
    from ckplan.api import verify as verify
    from ckplan.autodiff import OPTIMIZERS as OPTIMIZERS
    from ckplan.autodiff import TrainingGraph as TrainingGraph
    from ckplan.autodiff import add_optimizer as add_optimizer
    from ckplan.autodiff import parse_optimizer as parse_optimizer
    from ckplan.bundle.manifest import Artifacts as Artifacts
    from ckplan.bundle.manifest import open_artifacts as open_artifacts
    from ckplan.comparison import Comparison as Comparison
    from ckplan.comparison import Limits as Limits
    from ckplan.comparison import compare_files as compare_files
    from ckplan.errors import CkplanError as CkplanError
    from ckplan.meter import Measurement as Measurement
    from ckplan.meter import Verification as Verification
    from ckplan.meter.checkup import checkup as checkup
    from ckplan.meter.memory.meters import register_meter as register_meter
    from ckplan.model import ForwardModel as ForwardModel
    from ckplan.model import load as load
    from ckplan.model import save as save
    from ckplan.model.torch_files.export import export as export
    from ckplan.operators.gradients import rule as rule
    from ckplan.operators.record import Operator as Operator
    from ckplan.operators.sessions import use_custom_ops as use_custom_ops
    from ckplan.operators.table import register_operator as register_operator
    from ckplan.pipeline import Goal as Goal
    from ckplan.pipeline import Planned as Planned
    from ckplan.pipeline import Step as Step
    from ckplan.planner import Plan as Plan
    from ckplan.planner import Problem as Problem
    from ckplan.planner import Timeline as Timeline
    from ckplan.planner import bottlenecks as bottlenecks
    from ckplan.planner import simulate as simulate
    from ckplan.planner.strategies import STRATEGIES as STRATEGIES
    from ckplan.planner.strategies import parse_strategy as parse_strategy
    from ckplan.planner.strategies import register_strategy as register_strategy
    from ckplan.report.writers import register_reporter as register_reporter
    from ckplan.runtime import problem_of as problem_of
    from ckplan.training.checkpoint import read_checkpoint as read_checkpoint
    from ckplan.training.export import export_weights as export_weights
    from ckplan.training.trainer import Trainer as Trainer
    from ckplan.writer.emit import emit as emit

# onnxruntime reads it once, when its library is loaded (docs/Privacy.md of its repository).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOMES = {
    "answers.analysis": ("Analysis",),
    "answers.explanation": ("Explanation",),
    "answers.fit": ("Fit",),
    "answers.pareto": ("Pareto",),
    "api": (
        "analyze",
        "artifacts",
        "build_training_graph",
        "explain",
        "fit",
        "measure",
        "open_model",
        "pareto",
        "plan",
        "rewrite",
        "verify",
    ),
    "autodiff": ("OPTIMIZERS", "TrainingGraph", "add_optimizer", "parse_optimizer"),
    "bundle.manifest": ("Artifacts", "open_artifacts"),
    "comparison": ("Comparison", "Limits", "compare_files"),
    "errors": ("CkplanError",),
    "meter": ("Measurement", "Verification"),
    "meter.checkup": ("checkup",),
    "meter.memory.meters": ("register_meter",),
    "model": ("ForwardModel", "load", "save"),
    "model.torch_files.export": ("export",),
    "operators.gradients": ("rule",),
    "operators.record": ("Operator",),
    "operators.sessions": ("use_custom_ops",),
    "operators.table": ("register_operator",),
    "pipeline": ("Goal", "Planned", "Step"),
    "planner": ("Plan", "Problem", "Timeline", "bottlenecks", "simulate"),
    "planner.strategies": ("STRATEGIES", "parse_strategy", "register_strategy"),
    "report.writers": ("register_reporter",),
    "runtime": ("problem_of",),
    "training.checkpoint": ("read_checkpoint",),
    "training.trainer": ("Trainer",),
    "training.export": ("export_weights",),
    "writer": ("emit",),
}
"""The public names, by the module that they come from; the imports above tell type checkers the same."""

__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"ckplan.{home}"), name)
    raise AttributeError(f"module 'ckplan' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
