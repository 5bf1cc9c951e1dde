"""Gradients of ONNX graphs, as ONNX graphs."""

from __future__ import annotations

from ckplan.autodiff.optimizers import OPTIMIZERS, Optimizer, add_optimizer, parse_optimizer
from ckplan.autodiff.record import TrainingGraph
from ckplan.autodiff.training_graph import build_training_graph

__all__ = [
    "OPTIMIZERS",
    "Optimizer",
    "TrainingGraph",
    "add_optimizer",
    "build_training_graph",
    "parse_optimizer",
]
