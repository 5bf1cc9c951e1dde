"""Steps of language models beside torch with its fused attention, which keeps no scores.

    python -m benchmarks.fused_attention [NAMES] [--tokens 256 1024 2048] [--pieces 32] [--rounds 8]

The networks of `benchmarks.attention_forms` as transformers makes them by default: attention is torch's
``scaled_dot_product_attention``, which on a CPU goes through keys block by block (Dao et al., arXiv:2205.14135), there
and back, and makes the scores a second time. Files: without a plan, whole and with attention in pieces, and by `memory`
with attention in pieces. *Memory* is the high-water of the heap in one step by memray, gradients included, parameters
and inputs not; *time* is processor time of a step on one thread, the least of all rounds, in turns in one process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx_ir as ir

import ckplan.model
from benchmarks.attention_forms import NETWORKS, export, network_of
from benchmarks.frontier import file_step
from benchmarks.step_heap import file_heap, heap_of_run
from ckplan.isolation.arrays import save_arrays
from ckplan.meter.facts import read_model
from ckplan.meter.inputs import make_inputs
from ckplan.pipeline import Goal, StepOptions, open_step, rewrite
from ckplan.planner.strategies import parse_strategy


def torch_step(name: str, tokens: int) -> Callable[[], None]:
    """A function that runs one step of a network in torch, on one thread."""
    import torch

    torch.set_num_threads(1)
    network, given = network_of(name, tokens)

    def step() -> None:
        found = network(*given)
        result = found.logits if hasattr(found, "logits") else found.last_hidden_state
        network.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(result, torch.ones_like(result)).backward()

    return step


def files(path: Path, pieces: int) -> Iterator[ir.Model]:
    """The step of a file without a plan, whole and in pieces, and in pieces by `memory`."""
    yield open_step(path, StepOptions.of(loss="mse")).ordered
    cut = open_step(path, StepOptions.of(loss="mse", chunks=f"attention={pieces}"))
    yield cut.ordered
    yield rewrite(cut, parse_strategy("memory"), Goal()).model


def row(name: str, tokens: int, pieces: int, rounds: int, folder: Path) -> str:
    """Memory and time of torch, and those of files as ratios, as cells of a table."""
    steps: list[Callable[[], object]] = [torch_step(name, tokens)]
    path = folder / "model.onnx"
    export(name, tokens, True, path)
    paths = []
    for number, model in enumerate(files(path, pieces)):
        paths.append(folder / f"{number}.onnx")
        ckplan.model.save(model, paths[-1])
        save_arrays(paths[-1].with_suffix(".inputs"), make_inputs(read_model(paths[-1])).arrays)
        steps.append(file_step(paths[-1]))
    seconds: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds + 1):  # the first is warm-up
        for side, step in enumerate(steps):
            start = time.process_time()
            step()
            seconds[side].append(time.process_time() - start)
    least = [min(taken[1:]) for taken in seconds]
    own = heap_of_run(steps[0])
    ratios = [f"{file_heap(p) / own:.2f}, {took / least[0]:.2f}" for p, took in zip(paths, least[1:], strict=True)]
    return " | ".join([f"{own / 2**20:.1f} MiB, {1e3 * least[0]:.0f} ms", *ratios])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--pieces", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=8)
    chosen = parser.parse_args()
    print("| network | tokens | torch, fused attention | whole | attention in pieces | in pieces, by `memory` |")
    print("|---" * 6 + "|")
    for name in chosen.names:
        for tokens in chosen.tokens:
            with tempfile.TemporaryDirectory() as folder:
                cells = row(name, tokens, chosen.pieces, chosen.rounds, Path(folder))
            print(f"| {name} | {tokens} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
