"""Gradients of ONNX graphs, as ONNX graphs."""

from __future__ import annotations

from ckplan.autodiff.training_graph import TrainingGraph, build_training_graph

__all__ = ["TrainingGraph", "build_training_graph"]
