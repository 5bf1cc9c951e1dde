"""How far plans are from the best there could be: overhead of the best plan against a proven bound, in points.

    python -m benchmarks.plan_quality [cg_unet.txt cg_vgg19.txt …] [--strategies auto search] [--seconds 60]

Training graphs of up to 400 nodes, made from the sample models, and published graphs that are given by path (see
`benchmarks.planning_instances`). Budgets are fractions of the peak without recomputation. A point is one percent of
the cost of the step. The bound holds for all schedules whatsoever (`ckplan.planner.exact.stages.staged_overhead`), so
that the gap is an upper limit of what any planner could still gain.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx

import ckplan
from ckplan.errors import InfeasibleError
from ckplan.planner import Plan, Problem
from ckplan.planner.exact.stages import staged_overhead
from ckplan.planner.instances import load_problem
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.strategies import parse_strategy
from sample_models.catalogue import BUILDERS
from sample_models.resnet import BLOCKS, resnet

BUDGETS = (0.8, 0.6, 0.4)


def small_resnet() -> onnx.ModelProto:
    """A residual network of three basic blocks; the published ones have more nodes than this is for."""
    with patch.dict(BLOCKS, {8: (1, 1, 1)}):
        return resnet(depth=8, image=64, width=8, classes=10)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "tanh_chain": lambda: BUILDERS["tanh_chain"](layers=36, width=64),
    "mlp": lambda: BUILDERS["mlp"](width=128, features=64),
    "gpt": lambda: BUILDERS["gpt"](layers=2, width=64, heads=4, vocabulary=256, sequence=64),
    "unet": lambda: BUILDERS["unet"](image=32, width=4, levels=1, channels=1),
    "resnet": small_resnet,
}
MOST_OPS = 400


def model_problem(model: onnx.ModelProto, folder: Path) -> Problem:
    """The planning problem of a sample model's training graph."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return ckplan.problem_of(ckplan.build_training_graph(ckplan.load(path).model).model)


def problems(paths: Sequence[Path], folder: Path) -> Iterator[tuple[str, Problem]]:
    for name, build in MODELS.items():
        yield name, model_problem(build(), folder)
    for path in paths:
        yield path.stem, load_problem(path)


def best_plan(problem: Problem, strategies: Sequence[str], budget: int) -> Plan | None:
    """The cheapest plan of several strategies."""
    plans = []
    for strategy in strategies:
        try:
            plans.append(parse_strategy(strategy).solve(problem, budget))
        except InfeasibleError:
            continue
    return min(plans, key=lambda plan: plan.cost, default=None)


def rows(name: str, problem: Problem, strategies: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    base = peak_of(problem, best_order(problem))
    for fraction in BUDGETS:
        budget = int(fraction * base)
        start = time.process_time()
        plan = best_plan(problem, strategies, budget)
        planned = time.process_time()
        most = math.inf if plan is None else plan.cost - problem.cost
        bound = staged_overhead(problem, budget, seconds, most) / problem.cost
        yield {
            "graph": name,
            "ops": len(problem.ops),
            "budget": fraction,
            "overhead": None if plan is None else plan.overhead,
            "bound": bound,
            "gap": None if plan is None else plan.overhead - bound,
            "strategy": None if plan is None else plan.strategy,
            "planning_seconds": planned - start,
            "bound_seconds": time.process_time() - planned,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--strategies", nargs="+", default=["auto", "search", "exact"])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each bound")
    parser.add_argument("--only", nargs="+", help="names of graphs")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    arguments = parser.parse_args()
    print("| graph | ops | budget | overhead % | bound % | gap, points | plan of | plan, bound: CPU s |")
    print("|---" * 8 + "|")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, problem in problems(arguments.files, Path(folder)):
            if len(problem.ops) > MOST_OPS or (arguments.only and name not in arguments.only):
                continue
            for row in rows(name, problem, arguments.strategies, arguments.seconds):
                found.append(row)
                overhead = "-" if row["overhead"] is None else f"{100 * row['overhead']:.1f}"
                gap = "-" if row["gap"] is None else f"{100 * row['gap']:.1f}"
                print(
                    f"| {name} | {row['ops']} | {row['budget']} | {overhead} | {100 * row['bound']:.1f} | {gap} "
                    f"| {row['strategy']} | {row['planning_seconds']:.0f}, {row['bound_seconds']:.0f} |",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
