"""Time of a training step (strategy `none`) in onnxruntime against torch eager, alternating, on the same threads.

    python -m benchmarks.step_time [--only gpt] [--runs 5] [--threads 2]

torch runs the same forward graph operator by operator and differentiates it itself. Needs torch. Only the ratio means
anything on a shared machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import onnx
import onnxruntime
import torch

import ckplan.model
from benchmarks.gradients import training_graph
from ckplan.plan.strategies import parse_strategy
from ckplan.rewrite import emit, problem_of
from sample_models.catalogue import BUILDERS
from sample_models.feeds import random_feeds
from tests.oracles.torch_oracle import torch_step

MODELS = {
    "resnet50": (lambda: BUILDERS["resnet50"](), 16),
    "gpt": (lambda: BUILDERS["gpt"](layers=12, width=256, heads=4, vocabulary=4096, sequence=256), 8),
}
"""Builder and batch size."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| model | onnxruntime s | torch eager s | ratio (median of pairs) |\n|---|---|---|---|")
    for name in arguments.only:
        build, batch = MODELS[name]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            training = training_graph(build(), batch, folder)
            feeds = random_feeds(onnx.load(folder / "forward.onnx"), batch=batch)
            for value in training.model.graph.inputs:
                if not value.is_initializer() and value.name not in feeds:
                    shape = [int(dim) for dim in value.shape or ()]
                    feeds[value.name] = torch.randn(shape).numpy()
            plan = parse_strategy("none").solve(problem_of(training.model))
            path = folder / "training.onnx"
            ckplan.model.save(emit(training.model, plan), path)
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = arguments.threads
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            step = torch_step(training.model, feeds, training.loss, list(training.gradients))
            pairs = []
            for _ in range(arguments.runs + 1):
                started = time.perf_counter()
                session.run(None, feeds)
                middle = time.perf_counter()
                step()
                pairs.append((middle - started, time.perf_counter() - middle))
        pairs = pairs[1:]
        ours, theirs = (median(column) for column in zip(*pairs, strict=True))
        print(f"| {name} | {ours:.2f} | {theirs:.2f} | {median(a / b for a, b in pairs):.2f} |", flush=True)


if __name__ == "__main__":
    main()
