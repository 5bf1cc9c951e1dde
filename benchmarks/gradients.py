"""How far ckplan's gradients are from torch's in float64, beside how far torch's own in float32 are.

    python -m benchmarks.gradients [--only gpt resnet50]

Gradients are computed by the training graph in stock onnxruntime (float32), by torch in float32 and by torch in
float64 from the same forward graph, weights and inputs. Distances are relative, in L2 over all gradients of a model.
Networks with ReLU and max-pooling are ill-conditioned, a sign flips at a kink, so each is also tried with Softplus in
the place of ReLU. Needs torch.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

import ckplan.model
from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime import problem_of
from ckplan.writer import emit
from sample_models.catalogue import BUILDERS
from sample_models.feeds import random_feeds
from tests.oracles.torch_oracle import torch_gradients

MODELS = {
    "resnet50": (lambda: BUILDERS["resnet50"](image=64), 8),
    "mobilenet_v2": (lambda: BUILDERS["mobilenet_v2"](image=96), 8),
    "mobilenet_v3": (lambda: BUILDERS["mobilenet_v3"](image=96), 8),
    "unet": (lambda: BUILDERS["unet"](image=64), 4),
    "gpt": (lambda: BUILDERS["gpt"](layers=12, width=256, heads=4, vocabulary=4096, sequence=128), 4),
}
"""Builder and batch size."""


def smooth(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with Softplus in the place of ReLU."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Softplus"
    return copy


def training_graph(model: onnx.ModelProto, batch: int, folder: Path) -> TrainingGraph:
    path = folder / "forward.onnx"
    onnx.save(model, path)
    return build_training_graph(ckplan.model.load(path, dims={"batch": batch}).model)


def run(training: TrainingGraph, feeds: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """Gradients from onnxruntime, of the graph as strategy `memory` rewrites it."""
    plan = parse_strategy("memory").solve(problem_of(training.model))
    path = folder / "training.onnx"
    ckplan.model.save(emit(training.model, plan), path, force=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = session.run(list(training.gradients.values()), feeds)
    return dict(zip(training.gradients, found, strict=True))


def distance(found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> float:
    error = sum(float(np.sum((found[name].astype(np.float64) - exact[name]) ** 2)) for name in exact)
    return float(np.sqrt(error / sum(float(np.sum(value.astype(np.float64) ** 2)) for value in exact.values())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = parser.parse_args()
    print("| model | activations | ckplan float32 | torch float32 | ratio |\n|---|---|---|---|---|")
    for name in arguments.only:
        build, batch = MODELS[name]
        for label, model in (("as built", build()), ("Softplus for ReLU", smooth(build()))):
            if label != "as built" and not any(node.op_type == "Softplus" for node in model.graph.node):
                continue
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                training = training_graph(model, batch, folder)
                parameters = list(training.gradients)
                fed = [value for value in training.model.graph.inputs if not value.is_initializer()]
                feeds = random_feeds(onnx.load(folder / "forward.onnx"), batch=batch)
                for value in fed:
                    if value.name not in feeds:  # the target that the default loss adds
                        shape = [int(dim) for dim in value.shape or ()]
                        feeds[value.name] = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
                ours = run(training, feeds, folder)
                exact = torch_gradients(training.model, feeds, training.loss, parameters, torch.float64)[1]
                single = torch_gradients(training.model, feeds, training.loss, parameters, torch.float32)[1]
            found, own = distance(ours, exact), distance(single, exact)
            print(f"| {name} | {label} | {found:.2e} | {own:.2e} | {found / own:.2f} |", flush=True)


if __name__ == "__main__":
    main()
