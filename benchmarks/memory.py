"""Measured memory and step time of rewritten training files against their baseline, side by side in one run.

    python -m benchmarks.memory [--only gpt unet] [--runs 5] [--json results.json]

The baseline is ckplan's own training graph by strategy `none`. Both files run in stock onnxruntime under default
session options, in processes of their own; step times alternate. Sizes in MiB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.workloads import WORKLOADS, Workload
from ckplan.meter import Verification, verify
from ckplan.model import save
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime import problem_of
from ckplan.writer import emit

COLUMNS = (
    "model",
    "strategy",
    "base predicted",
    "base measured",
    "new predicted",
    "new measured",
    "ratio",
    "heap base",
    "heap new",
    "heap ratio",
    "total base",
    "total new",
    "priority new",
    "time ratio",
    "bitwise",
)


def row(name: str, workload: Workload, strategy: str, runs: int) -> tuple[dict[str, Any], Verification]:
    """Measure one workload; the row's figures by column, and all that was measured."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        training = workload.training_graph(folder)
        problem = problem_of(training.model)
        paths = []
        for label in ("none", strategy):
            paths.append(folder / f"{len(paths)}.onnx")
            save(emit(training.model, parse_strategy(label).solve(problem)), paths[-1])
        found = verify(*paths, runs=runs)
    base, new = found.base, found.new
    mib = [
        None if size is None else round(size / 2**20, 2)
        for size in (
            base.prediction.peak_activations,
            base.peak_activations,
            new.prediction.peak_activations,
            new.peak_activations,
            base.heap.activations if base.heap else None,
            new.heap.activations if new.heap else None,
            base.peak_total,
            new.peak_total,
            new.priority.peak_activations if new.priority else None,
        )
    ]
    timing = found.timing.ratio if found.timing else None
    figures = (
        name,
        strategy,
        *mib[:4],
        ratio(mib[3], mib[1]),
        mib[4],
        mib[5],
        ratio(mib[5], mib[4]),
        *mib[6:],
        None if timing is None else round(timing, 3),
        not found.numerics.differences,
    )
    return dict(zip(COLUMNS, figures, strict=True)), found


def ratio(new: float | None, base: float | None) -> float | None:
    return round(new / base, 3) if new is not None and base else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--strategy", help="in place of each workload's own")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    arguments = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    details = {}
    for name in arguments.only:
        workload = WORKLOADS[name]
        figures, found = row(name, workload, arguments.strategy or workload.strategy, arguments.runs)
        print("| " + " | ".join(str(value) for value in figures.values()) + " |")
        sys.stdout.flush()
        details[name] = {"row": figures, "verification": found.to_json()}
    if arguments.json:
        arguments.json.write_text(json.dumps(details))


if __name__ == "__main__":
    main()
