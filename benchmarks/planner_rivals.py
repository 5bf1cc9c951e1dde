"""Rivals' plans and ckplan's on the same graph: peak of activations against recomputation, all counted the same way.

    python -m benchmarks.planner_rivals [--only ResNet-50] [--strategy auto:steps=0] [--svg docs/planner_rivals.svg]

The graph is torch's own joint graph of forward and backward pass (`benchmarks.torch_graph`), one op for each kernel
of eager torch. torch's min-cut partitioner chooses on it what to save, at three values of
``activation_memory_budget``; what its two graphs run, in their order, is the schedule. `checkpoint_sequential` is
traced as eager torch runs it, against the same step without it. OpenAI's rule (every sqrt(N)-th bottleneck), MXNet's
mirror rule, and Chen et al.'s are ckplan's `sqrt`, `memory`, `mirror` and `chen`, which judge more candidates than the
originals. ckplan's simulator counts the peak of each, as a ratio of the step without repeats in torch's order;
gradients, parameters and inputs are no activations.

Overhead is repeated time as a ratio of the step, by the roofline of ckplan's cost model, each op a kernel of its own;
and, in brackets, of matrix products and convolutions alone, as if a compiler fused all else away. Beside each rival
stands the overhead of ckplan's plan whose peak is at most the rival's. Needs torch; no step is run, so that sizes are
those of practice.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rivals_picture import draw
from benchmarks.torch_graph import eager, trace
from benchmarks.torch_models import MODELS, Chain
from ckplan.errors import InfeasibleError
from ckplan.planner import Problem
from ckplan.planner.peak import peak_of
from ckplan.planner.strategies import parse_strategy

BUDGETS = (1.0, 0.5, 0.2)
SEGMENTS = (2, 4, 12)
RULES = {"OpenAI sqrt(N)": "sqrt", "OpenAI memory": "memory", "MXNet mirror": "mirror", "Chen": "chen"}
LADDER = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25)
"""Peaks for the line of ckplan's plans in the picture."""


@dataclass(frozen=True)
class Point:
    """A plan: its name, its peak as a ratio, and its overhead, in all and of products and convolutions alone."""

    name: str
    peak: float
    overhead: float
    heavy: float


def judged(name: str, problem: Problem, schedule: Sequence[int], base: Problem, peak: int) -> Point:
    """A schedule against the step without repeats."""

    def heavy(of: Problem, ops: Sequence[int]) -> float:
        return sum(of.ops[index].cost for index in ops if of.ops[index].heavy)

    whole = heavy(base, range(len(base.ops)))
    overhead = problem.schedule_cost(schedule) / base.cost - 1
    return Point(name, peak_of(problem, schedule) / peak, overhead, heavy(problem, schedule) / whole - 1)


def rivals(network: str) -> tuple[Problem, int, list[Point]]:
    """The problem, its peak without repeats, and every rival's plan."""
    build, feed = MODELS[network]
    traced = trace(build, feed, BUDGETS)
    problem = traced.problem
    peak = peak_of(problem, range(len(problem.ops)))
    found = [
        judged(f"torch min-cut, budget {budget}", problem, schedule, problem, peak)
        for budget, schedule in traced.partitioned.items()
    ]
    if isinstance(build(), Chain):
        plain = eager(build, feed)
        plain_peak = peak_of(plain, range(len(plain.ops)))
        for segments in SEGMENTS:

            def checkpointed(segments: int = segments) -> Chain:
                chain = build()
                assert isinstance(chain, Chain)
                chain.segments = segments
                return chain

            step = eager(checkpointed, feed)
            name = f"checkpoint_sequential, {segments} segments"
            found.append(judged(name, step, range(len(step.ops)), plain, plain_peak))
    for name, strategy in RULES.items():
        schedule = parse_strategy(strategy).solve(problem).schedule
        found.append(judged(name, problem, schedule, problem, peak))
    return problem, peak, found


def ours(problem: Problem, peak: int, ratio: float, strategy: str) -> Point | None:
    """ckplan's plan of at most a peak."""
    try:
        plan = parse_strategy(strategy).solve(problem, int(ratio * peak))
    except InfeasibleError:
        return None
    return judged("ckplan", problem, plan.schedule, problem, peak)


def percent(point: Point | None) -> str:
    return "-" if point is None else f"{100 * point.overhead + 0.0:.1f} ({100 * point.heavy + 0.0:.1f})"


def ladder(problem: Problem, peak: int, strategy: str) -> Iterator[Point]:
    for ratio in LADDER:
        point = ours(problem, peak, ratio, strategy)
        if point is None:  # nor will there be one at any lower peak
            return
        yield point


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--strategy", default="auto:steps=0", help="ckplan's")
    parser.add_argument("--svg", type=Path, help="draw a picture")
    arguments = parser.parse_args()
    print("| network | plan | peak | overhead % | ckplan at this peak: overhead % |")
    print("|---" * 5 + "|")
    panels: dict[str, tuple[list[Point], list[Point]]] = {}
    for network in arguments.only:
        problem, peak, found = rivals(network)
        line = []
        for rival in found:
            point = ours(problem, peak, rival.peak, arguments.strategy)
            line += [point] if point else []
            print(f"| {network} | {rival.name} | {rival.peak:.3f} | {percent(rival)} | {percent(point)} |", flush=True)
        if arguments.svg:
            panels[network] = found, line + list(ladder(problem, peak, arguments.strategy))
    if arguments.svg:
        figures = {
            network: ([(p.name, p.peak, p.overhead) for p in theirs], [(p.peak, p.overhead) for p in line])
            for network, (theirs, line) in panels.items()
        }
        arguments.svg.write_text(draw(figures))


if __name__ == "__main__":
    main()
