"""The smallest arena in which rewritten files still run, found by trying, against what was predicted.

    python -m benchmarks.bisect [--only gpt unet] [--json results.json]

Of each model a training file is made by each strategy, and run under limits (`ckplan measure --bisect`). *Live* is the
predicted peak of what the arena hands out in the first run: activations and outputs; parameters and inputs are outside.
*Steady* is the same for later runs under default options: the block of the memory pattern, outputs and workspaces.
*Arena* is the smallest limit by the model of the arena, and *smallest* the one found. MiB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.workloads import Workload
from ckplan.meter import Bisection, smallest_arena
from ckplan.model import save
from ckplan.pipeline import Goal, rewrite, step_of
from ckplan.planner.strategies import parse_strategy
from sample_models.catalogue import BUILDERS, SMALL
from sample_models.light_models import light_model

STRATEGIES = ("none", "sqrt", "memory", "auto:steps=0")
SHARE = 0.6
"""The budget of `auto`, as a ratio of the baseline's peak."""

GPT = partial(BUILDERS["gpt"], layers=4, width=128, heads=4, vocabulary=512, sequence=64)

MODELS: Mapping[str, Workload] = {
    "tanh_chain": Workload(BUILDERS["tanh_chain"], dims={"batch": 1024}),
    "gpt": Workload(GPT, dims={"batch": 8}),
    "bert_tiny": Workload(SMALL["bert_tiny"], dims={"batch": 16}),
    "mobilenet_tiny": Workload(SMALL["mobilenet_tiny"], dims={"batch": 16}),
    "resnet_tiny": Workload(SMALL["resnet_tiny"], dims={"batch": 32}),
    "unet": Workload(SMALL["unet_tiny"], dims={"batch": 8}),
    "light_squeezenet": Workload(partial(light_model, "light_squeezenet"), images=4),
    "light_resnet50": Workload(partial(light_model, "light_resnet50"), images=4),
}

COLUMNS = (
    "model",
    "strategy",
    "activations",
    "live",
    "arena",
    "smallest",
    "to live",
    "to arena",
    "steady",
    "arena",
    "smallest",
    "to steady",
    "to arena",
)


def bisections(workload: Workload) -> Iterator[tuple[str, Bisection]]:
    """The smallest arenas of one model's files, strategy by strategy."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        training = workload.training_graph(folder)
        for strategy in STRATEGIES:
            goal = Goal(share=SHARE) if strategy.startswith("auto") else Goal()
            path = folder / f"{strategy.partition(':')[0]}.onnx"
            save(rewrite(step_of(training), parse_strategy(strategy), goal).model, path)
            yield strategy.partition(":")[0], smallest_arena(path, device="cpu")


def row(name: str, strategy: str, found: Bisection) -> list[str]:
    """One row of the table."""
    cells = [name, strategy, _mib(found.prediction.peak_activations)]
    for smallest in (found.plain, found.default):
        predicted = (smallest.expected_in_use, smallest.expected)
        ratios = [smallest.limit / size if size else 0.0 for size in predicted]
        cells += [
            _mib(smallest.expected_in_use),
            _mib(smallest.expected),
            _mib(smallest.limit),
            *(f"{r:.3f}" for r in ratios),
        ]
    return cells


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--json", type=Path, help="write everything that was found")
    arguments = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    details: dict[str, dict[str, Any]] = {}
    for name in arguments.only:
        for strategy, found in bisections(MODELS[name]):
            print("| " + " | ".join(row(name, strategy, found)) + " |")
            sys.stdout.flush()
            details.setdefault(name, {})[strategy] = found.to_json()
    if arguments.json:
        arguments.json.write_text(json.dumps(details))


if __name__ == "__main__":
    main()
