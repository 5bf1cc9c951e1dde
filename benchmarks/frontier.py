"""Memory and time of a training step, plan by plan, beside torch eager and torch's own checkpointing.

    python -m benchmarks.frontier [NAMES] [--batch 4] [--rounds 8] [--results build/frontier.json] [--picture FILE]

Networks of `benchmarks.exports`, loss ``mse``, dropout off, every parameter trained. torch runs them as modules, plain
and with a checkpoint at every block (``gradient_checkpointing_enable`` of transformers, where a network has it);
onnxruntime runs ckplan's files: without a plan, for shares of that peak, and by `memory`. *Memory* is the high-water of
the heap in one step by memray, gradients included, parameters and inputs not. *Time* is processor time of a step on one
thread, the least of all rounds: each side is a process of its own, they take turns, and pause in between; the spread is
how far the ratios of the first and the second half of the rounds lie apart. Both stand as ratios to torch eager.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.exports import export
from benchmarks.frontier_picture import draw
from benchmarks.step_heap import file_heap, heap_of_run, torch_step
from ckplan.errors import InfeasibleError
from ckplan.isolation.arrays import load_arrays, save_arrays
from ckplan.meter.facts import read_model
from ckplan.meter.inputs import make_inputs
from ckplan.model import save
from ckplan.pipeline import Goal, StepOptions, open_step, rewrite
from ckplan.planner.strategies import parse_strategy

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "frontier.json"
NAMES = ("gpt2", "bert", "llama", "t5", "vit", "swin", "whisper", "convnext", "resnet", "mobilenet_v2")
TORCH, CHECKPOINTS, PLAIN = "torch eager", "torch, checkpoints", "no plan"
PLANS: Mapping[str, tuple[str, Goal]] = {
    "80%": ("auto", Goal(share=0.8)),
    "60%": ("auto", Goal(share=0.6)),
    "40%": ("auto", Goal(share=0.4)),
    "memory": ("memory", Goal()),
}
"""Strategy and goal of the planned files."""
PAUSE = 0.1
"""Seconds between two sides, in which idle threads go to sleep."""


def file_step(path: Path) -> Callable[[], object]:
    """A function that runs one step of a file in onnxruntime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    arrays = load_arrays(path.with_suffix(".inputs"))
    fed = {value.name for value in session.get_inputs()}
    bound = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items() if name in fed}
    return lambda: session.run_with_ort_values(names, bound)


def worker(side: str, name: str, batch: int, path: Path) -> None:
    """One side: its heap on request, else processor seconds of a step for each line that it reads."""
    if side in (TORCH, CHECKPOINTS):
        import torch

        torch.set_num_threads(1)
        step: Callable[[], object] = torch_step(name, batch, checkpoints=side == CHECKPOINTS)
    else:
        step = file_step(path)
    step(), step()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "heap":
            print(heap_of_run(step), flush=True)
            continue
        start = time.process_time()
        result = step()
        print(time.process_time() - start, flush=True)
        del result


class Side:
    """A process that runs steps of one side."""

    def __init__(self, side: str, name: str, batch: int, path: Path) -> None:
        words = ["--worker", side, "--batch", str(batch), "--file", str(path), name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.frontier", *words]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self.runs = self._answer() == "ready"

    def ask(self, what: str) -> float:
        """Seconds of a ``step``, or bytes of the ``heap``."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def files_of(name: str, batch: int, folder: Path) -> dict[str, Path]:
    """The files of a network, by side."""
    step = open_step(export(name, batch), StepOptions.of(loss="mse"))
    models = {PLAIN: step.ordered}
    for plan, (strategy, goal) in PLANS.items():
        try:
            models[plan] = rewrite(step, parse_strategy(strategy), goal).model
        except InfeasibleError:
            continue
    files = {}
    for number, (side, model) in enumerate(models.items()):
        files[side] = folder / f"{number}.onnx"
        save(model, files[side])
        save_arrays(files[side].with_suffix(".inputs"), make_inputs(read_model(files[side])).arrays)
    return files


def measured(name: str, batch: int, rounds: int) -> dict[str, dict[str, float]]:
    """Bytes and seconds of each side of a network, and the spread of the ratio to torch's seconds."""
    with tempfile.TemporaryDirectory() as folder:
        files = files_of(name, batch, Path(folder))
        kinds = {TORCH: Path(), CHECKPOINTS: Path(), **files}
        sides = {kind: side for kind, path in kinds.items() if (side := Side(kind, name, batch, path)).runs}
        seconds: dict[str, list[float]] = {kind: [] for kind in sides}
        for _ in range(rounds):
            for kind, side in sides.items():
                time.sleep(PAUSE)
                seconds[kind].append(side.ask("step"))
        bytes_of = {kind: sides[kind].ask("heap") for kind in (TORCH, CHECKPOINTS) if kind in sides}
        bytes_of |= {kind: file_heap(path) for kind, path in files.items()}
        for side in sides.values():
            side.close()
    half = rounds // 2
    parts = [{kind: min(taken[place]) for kind, taken in seconds.items()} for place in (slice(half), slice(half, None))]
    return {
        kind: {
            "bytes": bytes_of[kind],
            "seconds": min(seconds[kind]),
            "spread": abs(parts[0][kind] / parts[0][TORCH] - parts[1][kind] / parts[1][TORCH]),
        }
        for kind in sides
    }


def rows(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    """The results as lines of Markdown."""
    columns = (CHECKPOINTS, PLAIN, *PLANS)
    yield "| network | torch eager | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 2) + "|"
    for name, sides in results.items():
        torch = sides[TORCH]
        cells = [f"{torch['bytes'] / 2**20:.1f} MiB, {1000 * torch['seconds']:.0f} ms"]
        for kind in columns:
            found = sides.get(kind)
            cells.append(
                "-"
                if found is None
                else f"{found['bytes'] / torch['bytes']:.2f}, {found['seconds'] / torch['seconds']:.2f}"
                f" ± {found['spread']:.2f}"
            )
        yield f"| {name} | " + " | ".join(cells) + " |"


def _panels(results: Mapping[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """Time and memory of each side as ratios to torch eager, network by network."""
    return {
        name: {
            kind: (found["seconds"] / sides[TORCH]["seconds"], found["bytes"] / sides[TORCH]["bytes"])
            for kind, found in sides.items()
        }
        for name, sides in results.items()
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, help="draw what stands in the results, and measure nothing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, default=Path(), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        worker(chosen.worker, chosen.names[0], chosen.batch, chosen.file)
        return
    results = json.loads(chosen.results.read_text(encoding="utf-8")) if chosen.results.exists() else {}
    if chosen.picture:
        chosen.picture.write_text(draw(_panels(results), TORCH, CHECKPOINTS), encoding="utf-8")
        return
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    for name in chosen.names:
        results[name] = measured(name, chosen.batch, chosen.rounds)
        chosen.results.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print("\n".join(rows({name: results[name] for name in chosen.names})))


if __name__ == "__main__":
    main()
