"""Memory-efficient training of ONNX models.

ckplan reads a forward ONNX graph, builds the training graph (forward, loss and gradients) out of standard
operators, plans which activations to keep and which to recompute, and writes a file that keeps to the plan in
stock onnxruntime. The command line is a thin layer over the names of this package:

    forward = ckplan.load("model.onnx", dims={"batch": 8})
    training = ckplan.build_training_graph(forward.model)
    plan = ckplan.plan(training, "memory")
    ckplan.save(ckplan.rewrite(training, plan), "model.training.onnx")
"""

from __future__ import annotations

__version__ = "0.1.0"
