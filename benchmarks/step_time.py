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
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper

import ckplan.model
from ckplan.autodiff import build_training_graph
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime import problem_of
from ckplan.writer import emit
from sample_models.catalogue import BUILDERS
from sample_models.feeds import random_feeds

PAUSE = 0.05
"""Seconds between two sides, in which the idle threads of the first go to sleep."""


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


class SideError(Exception):
    """A side cannot run the model."""


class Side:
    """One side's process."""

    def __init__(self, name: str, command: list[str], folder: Path, threads: int) -> None:
        self.name = name
        self.seconds: list[float] = []
        self._folder = folder
        arguments = [*command, str(folder), str(threads)]
        self._errors = folder / f"{name}.stderr"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._answer()

    def ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            last = self._errors.read_text().strip().splitlines() or ["it said nothing"]
            raise SideError(f"{self.name} ended: {last[-1]}")
        return line.strip()

    def step(self) -> float:
        seconds = float(self.ask("step"))
        time.sleep(PAUSE)
        return seconds

    def gradients(self) -> dict[str, np.ndarray]:
        self.ask("gradients")
        return dict(np.load(self._folder / f"{self.name}.npz"))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def with_loss(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Add a mean cross-entropy to a model that ends with logits, and outputs that onnxruntime-training insists on."""
    if model.graph.output[0].type.tensor_type.shape.dim:
        logits = model.graph.output.pop(0)
        shape = [dim.dim_value or batch for dim in logits.type.tensor_type.shape.dim]
        model.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.INT64, [shape[0], *shape[2:]]))
        loss = helper.make_node("SoftmaxCrossEntropyLoss", [logits.name, "labels"], ["loss"], name="loss")
        model.graph.node.append(loss)
        model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    optional = {"LayerNormalization": ("mean", "inverse"), "SoftmaxCrossEntropyLoss": ("log_prob",)}
    for node in model.graph.node:
        node.output.extend(
            f"{node.output[0]}_{name}" for name in optional.get(node.op_type, ())[len(node.output) - 1 :]
        )
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = batch
    return model


def prepare(case: Case, folder: Path) -> None:
    """Write what the sides read."""
    model = with_loss(case.build(), case.batch)
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


def operator_times(path: str) -> Counter[str]:
    """Milliseconds per operator type in the last of three runs that onnxruntime profiled."""
    events = [event for event in json.loads(Path(path).read_text()) if event.get("cat") == "Node"]
    kernels = [event for event in events if event["name"].endswith("_kernel_time")]
    times: Counter[str] = Counter()
    for event in kernels[len(kernels) * 2 // 3 :]:
        times[event["args"]["op_name"]] += event["dur"] / 1000
    return times


def where(side: Side) -> str:
    """Say which operators take most of a side's time, in milliseconds."""
    path = side.ask("profile")
    if side.name == "torch":
        rows = [(name, seconds * 1000) for name, seconds, _ in json.loads(Path(path).read_text())]
    else:
        rows = operator_times(path).most_common()
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
            commands["peer"] = [str(peer), "-P", str(Path(__file__).with_name("training_peer.py"))]
        sides = []
        for key, command in commands.items():
            try:
                sides.append(Side(key, command, folder, threads))
            except SideError as error:
                if key != "peer":
                    raise
                print(f"{name}: {error}", file=sys.stderr, flush=True)
        gradients = {side.name: side.gradients() for side in sides}
        for side in sides:
            side.step()
        rounds = [[side.step() for side in sides] for _ in range(runs)]
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
