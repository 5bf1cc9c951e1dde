"""Time of a training step (strategy `none`) in onnxruntime against torch eager and onnxruntime-training.

    python -m benchmarks.step_time [--only gpt] [--runs 7] [--threads 2] [--peer PEER/bin/python] [--where]

All sides compute the loss and the gradients of all parameters from the same forward file, weights and inputs, each in a
process of its own, one at a time and in turn; the ratios are medians over the rounds. Gradients are compared once, by
their relative distance in L2. torch is used as its users do, with fused normalisation, loss and attention. Batch
normalisation is in training mode. Only ratios mean anything on a shared machine.

onnxruntime-training ended with 1.19.2 and needs a virtual environment of its own:

    python3.11 -m venv PEER
    PEER/bin/pip install onnxruntime-training-cpu==1.19.2 numpy==1.26.4 onnx==1.16.2 protobuf==4.25.9

Without `--peer` it is left out. `--where` prints which operators take the time on each side. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import onnx

import ckplan.model
from benchmarks.forward_files import add_cross_entropy, add_optional_outputs, set_batch
from benchmarks.kernel_times import kernel_times
from benchmarks.sides import TRAINING_PEER, Side, SideError
from ckplan.autodiff import build_training_graph
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime import problem_of
from ckplan.writer import emit
from sample_models.catalogue import BUILDERS
from sample_models.feeds import random_feeds

PAUSE = 0.05
"""Seconds between two sides, in which the idle threads of the first go to sleep."""

PROFILED = 3
"""Runs that the sides profile; the last one counts."""


@dataclass(frozen=True)
class Case:
    """A model at a size.

    Attributes:
        build: makes the forward model; its first output is the loss, or logits that get a cross-entropy.
        batch: batch size.
        heads: of attention, where torch runs its own GPT; 0 where it runs the graph.
    """

    build: Callable[[], onnx.ModelProto]
    batch: int
    heads: int = 0


_GPT = partial(BUILDERS["gpt"], layers=12, width=256, heads=4, vocabulary=4096, sequence=256)

MODELS = {
    "resnet50": Case(partial(BUILDERS["resnet50"], training=True), 16),
    "gpt": Case(_GPT, 8, heads=4),
    "mobilenet_v2": Case(partial(BUILDERS["mobilenet_v2"], training=True), 16),
    "unet": Case(partial(BUILDERS["unet"], training=True, classes=2), 4),
    "lstm": Case(partial(BUILDERS["lstm"], layers=2, width=256, vocabulary=1024, sequence=128), 32),
}


def seconds_of_step(side: Side) -> float:
    """Seconds by the clock of one step, after which the side rests."""
    seconds, _ = side.ask("step").split()
    time.sleep(PAUSE)
    return float(seconds)


def gradients_of(side: Side, folder: Path) -> dict[str, np.ndarray]:
    """The loss and the gradients that a side computes."""
    side.ask("gradients")
    return dict(np.load(folder / f"{side.name}.npz"))


def prepare(case: Case, folder: Path) -> None:
    """Write what the sides read."""
    model = case.build()
    set_batch(model, case.batch)
    if model.graph.output[0].type.tensor_type.shape.dim:
        add_cross_entropy(model)
    add_optional_outputs(model)
    onnx.save(model, folder / "forward.onnx")
    training = build_training_graph(ckplan.model.load(folder / "forward.onnx").model, training=True)
    plan = parse_strategy("none").solve(problem_of(training.model))
    ckplan.model.save(emit(training.model, plan), folder / "training.onnx")
    np.savez(folder / "feeds.npz", **random_feeds(model, batch=case.batch))  # type: ignore[arg-type]
    names = {"loss": training.loss, "heads": case.heads, "gradients": dict(training.gradients)}
    (folder / "step.json").write_text(json.dumps(names | {"parameters": list(training.gradients)}))


def distance(found: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> float:
    """The relative distance in L2 over all gradients."""
    names = [name for name in reference if name != "loss"]
    error = sum(float(np.sum((found[n].astype(np.float64) - reference[n]) ** 2)) for n in names)
    return float(np.sqrt(error / sum(float(np.sum(reference[n].astype(np.float64) ** 2)) for n in names)))


def where(side: Side) -> str:
    """Say which operators take most of a side's time, in milliseconds."""
    path = side.ask("profile")
    if side.name == "torch":
        rows = [(name, seconds * 1000) for name, seconds, _ in json.loads(Path(path).read_text())]
    else:
        rows = [(name, milliseconds) for name, milliseconds, _ in kernel_times(path, PROFILED)]
    total = sum(milliseconds for _, milliseconds in rows)
    return f"{side.name} {total:.0f} ms: " + ", ".join(f"{name} {milliseconds:.0f}" for name, milliseconds in rows[:14])


def compare(name: str, runs: int, threads: int, peer: Path | None, explain: bool) -> str:
    """Measure one model and return its row."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(MODELS[name], folder)
        worker = [sys.executable, "-m", "benchmarks.step_worker"]
        commands = {"ckplan": [*worker, "ckplan"], "torch": [*worker, "torch"]}
        if peer is not None:
            commands["peer"] = [str(peer), "-P", str(TRAINING_PEER)]
        sides = []
        for key, command in commands.items():
            try:
                sides.append(Side(key, [*command, str(folder), str(threads)], folder / f"{key}.stderr"))
            except SideError as error:
                if key != "peer":
                    raise
                print(f"{name}: {error}", file=sys.stderr, flush=True)
        gradients = {side.name: gradients_of(side, folder) for side in sides}
        for side in sides:
            seconds_of_step(side)
        rounds = [[seconds_of_step(side) for side in sides] for _ in range(runs)]
        columns = list(zip(*rounds, strict=True))
        cells = [f"{median(columns[0]):.3f}"]
        for index, side in enumerate(sides[1:], 1):
            ratio = median(row[0] / row[index] for row in rounds)
            apart = distance(gradients["ckplan"], gradients[side.name])
            cells += [f"{median(columns[index]):.3f}", f"{ratio:.2f}", f"{apart:.0e}"]
        cells += ["-"] * (3 * (len(commands) - len(sides)))
        if explain:
            for side in sides:
                print(where(side), file=sys.stderr, flush=True)
        for side in sides:
            side.close()
        best = median(row[0] / min(row[1:]) for row in rounds)
    return f"| {name} | {' | '.join(cells)} | {best:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", type=Path, help="interpreter that has onnxruntime-training-cpu 1.19.2")
    parser.add_argument("--where", action="store_true", help="print which operators take the time, to stderr")
    arguments = parser.parse_args()
    rivals = ["torch"] + (["onnxruntime-training"] if arguments.peer else [])
    heads = ["model", "ckplan s"] + [
        f"{rival} {what}" for rival in rivals for what in ("s", "ratio", "gradients apart")
    ]
    print(f"| {' | '.join([*heads, 'ratio to the faster'])} |\n|{'---|' * (len(heads) + 1)}")
    for name in arguments.only:
        print(compare(name, arguments.runs, arguments.threads, arguments.peer, arguments.where), flush=True)


if __name__ == "__main__":
    main()
