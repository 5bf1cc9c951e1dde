"""Strategies on published planning instances: overhead at fractions of naive memory, lowest peak, and time taken.

    python -m benchmarks.planning_instances cg_vgg19.txt cg_unet.txt … [--strategies chen lower_sets] [--json out.json]

Files are in any of the formats of `ckplan.planner.instances`. The graphs of Kusumoto et al. (NeurIPS 2019) are found at
github.com/pfnet-research/recompute under ``computational_graphs``. Memory is a fraction of naive (twice the
sum of forward activations), overhead one of the forward pass; see `ckplan.planner.instances.reference`. A row holds
the overhead at each budget (``-``: no plan found), the lowest peak with its overhead, and the seconds of all of it
and of the slowest plan.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ckplan.errors import CkplanError, InfeasibleError, UsageError
from ckplan.planner import Plan, Problem
from ckplan.planner.instances import forward_overhead, load_problem, naive_bytes
from ckplan.planner.strategies import STRATEGIES, parse_strategy

BUDGETS = (0.5, 0.4, 0.3, 0.2)


def timed(strategy: str, problem: Problem, budget: int | None) -> tuple[Plan | None, float]:
    """A plan, or None where there is none, and the seconds it took."""
    start = time.perf_counter()
    try:
        plan = parse_strategy(strategy).solve(problem, budget)
    except InfeasibleError:
        plan = None
    return plan, time.perf_counter() - start


def row(path: Path, problem: Problem, strategy: str, budgets: list[float]) -> dict[str, Any]:
    """All figures of one strategy on one graph."""
    naive = naive_bytes(problem)
    lowest, seconds = timed(strategy, problem, None)
    assert lowest is not None  # without a budget there is always a plan
    found: dict[str, Any] = {
        "graph": path.stem,
        "ops": len(problem.ops),
        "strategy": strategy,
        "min_peak": lowest.predicted.peak_activations / naive,
        "min_peak_overhead": forward_overhead(problem, lowest.schedule),
        "overhead": {},
    }
    times = [seconds]
    for fraction in budgets:
        plan, seconds = timed(strategy, problem, int(fraction * naive))
        times.append(seconds)
        found["overhead"][str(fraction)] = None if plan is None else forward_overhead(problem, plan.schedule)
    return {**found, "seconds": sum(times), "slowest": max(times)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    names = [strategy.name for strategy in STRATEGIES if strategy.name != "list"]
    parser.add_argument("--strategies", nargs="+", default=names, help="as on ckplan's command line, options included")
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS), help="fractions of naive")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    arguments = parser.parse_args()
    columns = [f"{budget:g}" for budget in arguments.budgets]
    print("| graph | strategy | " + " | ".join(columns) + " | min peak / overhead | s (slowest) |")
    print("|---" * (len(columns) + 4) + "|")
    rows = []
    for path in arguments.files:
        try:
            problem = load_problem(path)
            for strategy in arguments.strategies:
                found = row(path, problem, strategy, arguments.budgets)
                rows.append(found)
                cells = ["-" if value is None else f"{value:.3f}" for value in found["overhead"].values()]
                peak = f"{found['min_peak']:.3f} / {found['min_peak_overhead']:.3f}"
                took = f"{found['seconds']:.1f} ({found['slowest']:.1f})"
                print("| " + " | ".join([path.stem, strategy, *cells, peak, took]) + " |", flush=True)
        except UsageError as error:
            parser.error(str(error))
        except CkplanError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
