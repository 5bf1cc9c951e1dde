"""Memory and time of a training step, plan by plan, beside torch eager, its checkpoints and onnxruntime-training.

    python -m benchmarks.frontier [NAMES] [--batch 4] [--rounds 8] [--peer PEER/bin/python]
                                  [--results build/frontier.json] [--picture FILE]

Networks of `benchmarks.exports`, loss ``mse``, dropout off, every parameter trained. torch runs them as modules, plain
and with a checkpoint at every block (``gradient_checkpointing_enable`` of transformers, where a network has it);
onnxruntime runs ckplan's files: without a plan, for shares of that peak, and by `memory`. If `--peer` names its
interpreter (`benchmarks.step_time` says how to make one), onnxruntime-training runs the same forward file with the loss
behind it, for time alone. *Memory* is the high-water of the heap in one step by memray, gradients included, parameters
and inputs not. *Time* is processor time of a step on one thread, the least of all rounds: each side is a process of its
own, they take turns, and pause in between; the spread is how far the ratios of the first and the second half of the
rounds lie apart. Both stand as ratios to torch eager; in the last column is the time without a plan as a ratio to the
faster of the two rivals.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

import ckplan.model
from benchmarks.exports import export
from benchmarks.forward_files import add_mean_squared_error, add_optional_outputs
from benchmarks.frontier_picture import draw
from benchmarks.sides import ROOT, TRAINING_PEER, Side, SideError
from benchmarks.step_heap import file_heap, heap_of_run, torch_step
from ckplan.errors import InfeasibleError
from ckplan.isolation.arrays import load_arrays, save_arrays
from ckplan.meter.facts import read_model
from ckplan.meter.inputs import make_inputs
from ckplan.pipeline import Goal, StepOptions, open_step, rewrite
from ckplan.planner.strategies import parse_strategy

RESULTS = ROOT / "build" / "frontier.json"
NAMES = ("gpt2", "bert", "llama", "t5", "vit", "swin", "whisper", "convnext", "resnet", "mobilenet_v2")
TORCH, CHECKPOINTS, PEER, PLAIN = "torch eager", "torch, checkpoints", "onnxruntime-training", "no plan"
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


def start(kind: str, name: str, batch: int, path: Path, folder: Path, peer: Path | None) -> Side:
    """The process of one side.

    Raises:
        SideError: it cannot run the network.
    """
    command = [sys.executable, "-m", "benchmarks.frontier", "--worker", kind]
    command += ["--batch", str(batch), "--file", str(path), name]
    if kind == PEER:
        command = [str(peer), "-P", str(TRAINING_PEER), str(path), "1"]
    return Side(kind, command, folder / f"{kind}.stderr", {"OMP_NUM_THREADS": "1"})


def files_of(name: str, batch: int, folder: Path, *, for_peer: bool) -> dict[str, Path]:
    """The files of a network by side, and for onnxruntime-training, if it is asked for, the folder of its own."""
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
        ckplan.model.save(model, files[side])
        save_arrays(files[side].with_suffix(".inputs"), make_inputs(read_model(files[side])).arrays)
    if for_peer:
        assert step.training is not None
        (folder / "peer").mkdir()
        write_for_peer(name, batch, step.training.gradients, files[PLAIN], folder / "peer")
        files[PEER] = folder / "peer"
    return files


def write_for_peer(name: str, batch: int, parameters: Iterable[str], plain: Path, folder: Path) -> None:
    """Write what onnxruntime-training reads: the forward file as ckplan reads it, and what is fed to the plain file.

    Parameters that the exporter stored once because their values are equal have tensors of their own there, too.
    """
    forward = folder / "forward.onnx"
    ckplan.model.save(ckplan.model.load(export(name, batch)).model, forward)
    model = onnx.load(forward)
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = {key: array for key, array in load_arrays(plain.with_suffix(".inputs")).items() if key not in weights}
    (target,) = set(feeds) - {value.name for value in model.graph.input}
    add_mean_squared_error(model, target)
    add_optional_outputs(model)
    onnx.save(model, forward)
    np.savez(folder / "feeds.npz", **feeds)  # type: ignore[arg-type]
    (folder / "step.json").write_text(json.dumps({"loss": "loss", "parameters": list(parameters)}))


def measured(name: str, batch: int, rounds: int, peer: Path | None) -> dict[str, dict[str, float]]:
    """Bytes and seconds of each side of a network, and the spread of the ratio to torch's seconds."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = files_of(name, batch, folder, for_peer=peer is not None)
        sides = {}
        for kind, path in {TORCH: Path(), CHECKPOINTS: Path(), **files}.items():
            try:
                sides[kind] = start(kind, name, batch, path, folder, peer)
            except SideError as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
        seconds: dict[str, list[float]] = {kind: [] for kind in sides}
        for _ in range(rounds):
            for kind, side in sides.items():
                time.sleep(PAUSE)
                seconds[kind].append(float(side.ask("step").split()[-1]))
        bytes_of = {kind: int(sides[kind].ask("heap")) for kind in (TORCH, CHECKPOINTS) if kind in sides}
        bytes_of |= {kind: file_heap(path) for kind, path in files.items() if kind != PEER}
        for side in sides.values():
            side.close()
    half = rounds // 2
    parts = [{kind: min(taken[place]) for kind, taken in seconds.items()} for place in (slice(half), slice(half, None))]
    return {
        kind: {
            **({"bytes": bytes_of[kind]} if kind in bytes_of else {}),
            "seconds": min(seconds[kind]),
            "spread": abs(parts[0][kind] / parts[0][TORCH] - parts[1][kind] / parts[1][TORCH]),
        }
        for kind in sides
    }


def rows(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    """The results as lines of Markdown."""
    columns = (CHECKPOINTS, PEER, PLAIN, *PLANS)
    yield "| network | torch eager | " + " | ".join(columns) + " | to the faster |"
    yield "|---" * (len(columns) + 3) + "|"
    for name, sides in results.items():
        torch = sides[TORCH]
        cells = [f"{torch['bytes'] / 2**20:.1f} MiB, {1000 * torch['seconds']:.0f} ms"]
        for kind in columns:
            cells.append("-" if kind not in sides else _cell(sides[kind], torch))
        yield f"| {name} | " + " | ".join(cells) + f" | {to_the_faster(sides):.2f} |"
    ratios = [to_the_faster(sides) for sides in results.values()]
    yield f"\nWithout a plan, to the faster: median {median(ratios):.2f}, most {max(ratios):.2f}"


def _cell(found: Mapping[str, float], torch: Mapping[str, float]) -> str:
    """Memory, where it was measured, and time as ratios to torch eager."""
    memory = f"{found['bytes'] / torch['bytes']:.2f}, " if "bytes" in found else ""
    return f"{memory}{found['seconds'] / torch['seconds']:.2f} ± {found['spread']:.2f}"


def to_the_faster(sides: Mapping[str, Mapping[str, float]]) -> float:
    """Seconds of a step without a plan as a ratio to those of the faster of torch eager and onnxruntime-training."""
    return sides[PLAIN]["seconds"] / min(sides[kind]["seconds"] for kind in (TORCH, PEER) if kind in sides)


def _panels(results: Mapping[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """Time and memory of each side as ratios to torch eager, network by network."""
    return {
        name: {
            kind: (found["seconds"] / sides[TORCH]["seconds"], found["bytes"] / sides[TORCH]["bytes"])
            for kind, found in sides.items()
            if kind != PEER
        }
        for name, sides in results.items()
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--peer", type=Path, help="interpreter that has onnxruntime-training-cpu 1.19.2")
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
        results[name] = measured(name, chosen.batch, chosen.rounds, chosen.peer)
        chosen.results.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print("\n".join(rows({name: results[name] for name in chosen.names})))


if __name__ == "__main__":
    main()
