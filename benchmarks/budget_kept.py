"""Whether a budget is kept: the measured peak of rewritten files at ten budgets, or the refusal and its bound.

    python -m benchmarks.budget_kept [FILES] [--batch 32] [--strategy auto:steps=0] [--json out]

Budgets run evenly from the peak without a plan down to the lowest peak that is found. A file keeps its budget if
the activation peak that onnxruntime's counters show (default session options) is at most two percent above it; a plan
is refused with the smallest budget that was found and a bound that none can go below.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ckplan
from ckplan.errors import InfeasibleError
from ckplan.meter import measure
from ckplan.model import save
from ckplan.pipeline import Goal, rewrite, step_of
from ckplan.planner.frontier import Effort, lowest
from ckplan.planner.peak import peak_of
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime.executing.executed import expected_timeline

TOLERANCE = 0.02
COUNT = 10
NAMES = ("mlp", "tanh_chain", "gpt_tiny", "resnet_tiny", "densenet_tiny", "mobilenet_tiny", "unet_tiny")
FOLDER = Path(__file__).resolve().parent.parent / "sample_models"


def cases(path: Path, batch: int, strategy: str) -> Iterator[dict[str, Any]]:
    """What became of each budget for one forward model."""
    model = ckplan.build_training_graph(ckplan.load(path, dims={"batch": batch}).model).model
    problem = ckplan.problem_of(model)
    base = expected_timeline(model).peak_activations
    low = min(peak_of(problem, lowest(problem, 3 * problem.cost, Effort(0))), base)
    peaks: dict[tuple[int, ...], int | None] = {}  # measured, by schedule
    for budget in np.linspace(base, low, COUNT).astype(int).tolist():
        case: dict[str, Any] = {"model": path.stem, "budget": budget}
        try:
            planned = rewrite(step_of(model), parse_strategy(strategy), Goal(budget=budget))
        except InfeasibleError as error:
            yield {**case, "outcome": "refused", "reason": str(error)}
            continue
        if planned.plan.schedule not in peaks:
            with tempfile.TemporaryDirectory() as folder:
                save(planned.model, Path(folder) / "planned.onnx")
                peaks[planned.plan.schedule] = measure(
                    Path(folder) / "planned.onnx", runs=1, heap=False
                ).peak_activations
        peak = peaks[planned.plan.schedule]
        if peak is None:
            raise SystemExit(f"onnxruntime's counters show no peak for {path}")
        excess = peak / budget - 1
        yield {
            **case,
            "outcome": "kept" if excess <= TOLERANCE else "violated",
            "planned": planned.plan.predicted.peak_activations,
            "expected": planned.after.peak_activations,
            "measured": peak,
            "excess": excess,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=[FOLDER / f"{name}.onnx" for name in NAMES])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--strategy", default="auto:steps=0")
    parser.add_argument("--json", type=Path, help="write every case to this file")
    arguments = parser.parse_args()
    print("| model | budgets | kept | refused | violated | largest excess % |")
    print("|---" * 6 + "|")
    found: list[dict[str, Any]] = []
    for path in arguments.files:
        series = list(cases(path, arguments.batch, arguments.strategy))
        found += series
        count = Counter(case["outcome"] for case in series)
        worst = max((case["excess"] for case in series if "excess" in case), default=0.0)
        print(
            f"| {path.stem} | {len(series)} | {count['kept']} | {count['refused']} | {count['violated']} "
            f"| {100 * worst + 0.0:.2f} |",
            flush=True,
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
