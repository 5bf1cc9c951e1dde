"""The heap of one training step without a plan: ckplan's file in stock onnxruntime beside torch eager.

    python -m benchmarks.step_heap [NAMES] [--batch 4]

The networks of `benchmarks.exports`, loss ``mse`` against a target, dropout off, every parameter trained. Both sides
are watched by memray in a process of their own: the high-water of one step, gradients included, without parameters and
inputs. torch makes its gradients anew (``zero_grad(set_to_none=True)``); onnxruntime's arena is off. What strategy
`memory` comes to stands beside.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.exports import EXPORTS, export, network_of
from ckplan.isolation.arrays import save_arrays
from ckplan.meter.facts import read_model
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.meter.running.process import run_job
from ckplan.model import save
from ckplan.pipeline import StepOptions, open_step, rewrite
from ckplan.planner.strategies import parse_strategy


def torch_step(name: str, batch: int, *, checkpoints: bool = False) -> Callable[[], None]:
    """A function that runs one step of a network in torch and lets go of the gradients of the one before.

    Raises:
        ValueError: checkpoints are asked for, and the network has none.
    """
    import torch

    network, example = network_of(name, batch)
    if checkpoints:
        inner = network.network
        if not getattr(inner, "supports_gradient_checkpointing", False):
            raise ValueError(f"{name} has no checkpoints of its own")
        for module in inner.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        inner.gradient_checkpointing_enable({"use_reentrant": False})
        for module in inner.modules():  # transformers looks at it there; normalisations stay as they are
            if hasattr(module, "gradient_checkpointing"):
                module.training = True
    torch.manual_seed(0)
    with torch.no_grad():
        target = torch.randn_like(network(example))

    def step() -> None:
        network.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(network(example), target).backward()

    return step


def torch_heap(name: str, batch: int) -> int:
    """In a process of its own: bytes of one step of torch at its high-water, gradients included."""
    step = torch_step(name, batch)
    for _ in range(2):  # the first builds what all share
        step()
    return heap_of_run(step)


def heap_of_run(step: Callable[[], object]) -> int:
    """Bytes of the heap at its high-water while a function runs, beyond what there is before."""
    import memray

    with tempfile.TemporaryDirectory() as folder:
        destination = memray.FileDestination(str(Path(folder) / "capture.bin"))
        with memray.Tracker(destination=destination, file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS):
            step()
        return memray.FileReader(str(Path(folder) / "capture.bin")).metadata.peak_memory


def heaps(name: str, batch: int) -> tuple[int, int]:
    """Bytes of one step at the high-water of the heap, gradients included: the plain file, and `memory`'s."""
    step = open_step(export(name, batch), StepOptions.of(loss="mse"))
    models = (step.ordered, rewrite(step, parse_strategy("memory")).model)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.onnx" for number in range(len(models))]
        for model, path in zip(models, files, strict=True):
            save(model, path)
        return file_heap(files[0]), file_heap(files[1])


def file_heap(path: Path) -> int:
    """Bytes of one step of a file in onnxruntime at the high-water of the heap, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs"
        save_arrays(inputs, make_inputs(read_model(path)).arrays)
        return int(run_job("ckplan.meter.memory.heap", request_for(path, inputs, "cpu", None))["run"])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(EXPORTS))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--torch", action="store_true", help="print torch's bytes for one network, and nothing else")
    arguments = parser.parse_args()
    if arguments.torch:
        print(torch_heap(arguments.names[0], arguments.batch))
        return
    print("| network | torch eager | ckplan, no plan | ratio | `memory` | ratio |\n|---|---|---|---|---|---|")
    for name in arguments.names:
        command = [sys.executable, "-m", "benchmarks.step_heap", name, "--batch", str(arguments.batch), "--torch"]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        torch = int(told.stdout.split()[-1])
        plain, lean = heaps(name, arguments.batch)
        sizes = [f"{size / 2**20:.1f}" for size in (torch, plain, lean)]
        print(
            f"| {name} | {sizes[0]} | {sizes[1]} | {plain / torch:.2f} | {sizes[2]} | {lean / torch:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
