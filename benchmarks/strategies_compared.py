"""Strategies side by side on random training graphs: does `auto` lose to any, does a larger budget cost more?

    python -m benchmarks.strategies_compared [--graphs 160] [--first 0] [--most 250] [--jobs 2] [--auto auto] [--uneven]

Each graph is planned for three budgets by every strategy that answers in seconds, `auto` without its local search
unless `--auto` says otherwise. Told are the cases in which `auto` refuses what another strategy plans or is dearer than
it (in points, percent of the step), and counted, strategy by strategy, those in which a larger budget is refused or
dearer than a smaller one. A graph is drawn from its seed: layered, of 2 to 16 ops a layer and ops that read from the
one to four layers before. Those of ``--uneven`` are narrower, with bytes and costs that differ by three to four orders
of magnitude.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.planner_scale import Builder
from ckplan.answers.analysis import quick_strategies
from ckplan.errors import CkplanError
from ckplan.planner import Problem
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Kind
from ckplan.planner.strategies import parse_strategy

SHARES = (0.45, 0.65, 0.85)
"""Budgets, as ratios of the peak without a plan."""
POINT = 1e-6
"""Extra compute, as a ratio of the step, from which one plan is dearer than another."""

Costs = Mapping[str, list[float | None]]
"""Overhead of each strategy's plans, budget by budget; None where it refuses."""


def random_graph(seed: int, most: int) -> Problem:
    """A training graph of 20 ops to ``most``."""
    rng = random.Random(seed)
    ops, width, reach = rng.randrange(20, most + 1), rng.choice((2, 4, 8, 16)), rng.choice((1, 1, 2, 4))
    return _layered(
        rng,
        ops,
        width,
        reach,
        read=lambda: rng.choice((1, 1, 2, 3)),
        size=lambda: rng.randrange(1, 65) * 2**12,
        cost=lambda: rng.uniform(0.2, 8.0),
    )


def uneven_graph(seed: int, most: int) -> Problem:
    """A training graph of 20 ops to ``most``, of one to three ops a layer, from 256 bytes to 1 MiB each."""
    rng = random.Random(seed)
    ops, width, reach = rng.randrange(20, most + 1), rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 6))
    pairs = rng.random() / 2
    return _layered(
        rng,
        ops,
        width,
        reach,
        read=lambda: 1 + (rng.random() < pairs),
        size=lambda: int(2 ** rng.uniform(8, 20)),
        cost=lambda: 10 ** rng.uniform(-3, 1),
    )


def _layered(
    rng: random.Random,
    ops: int,
    width: int,
    reach: int,
    *,
    read: Callable[[], int],
    size: Callable[[], int],
    cost: Callable[[], float],
) -> Problem:
    """A training graph of about so many ops, of one to ``width`` a layer that read from the ``reach`` layers before.

    Args:
        rng: that all is drawn from.
        ops: those of the backward pass included.
        width: most ops of a layer.
        reach: layers.
        read: draws how many tensors an op reads.
        size: draws bytes of an output.
        cost: draws the cost of an op.
    """
    build = Builder()
    layers = [[build.tensor(2**16, Kind.INPUT)]]
    while 2.83 * len(build.ops) < ops:
        pool = [value for layer in layers[-reach:] for value in layer]
        made = []
        for _ in range(rng.randrange(1, width + 1)):
            inputs = rng.sample(pool, min(len(pool), read()))
            saved = rng.choice(("inputs", "output", "nothing"))
            made.append(build.forward(inputs, size(), cost(), saved))
        layers.append(made)
    last = [value for layer in layers[-reach:] for value in layer]
    return build.problem(build.forward(last, 4, 1.0, "nothing"))


def plan_all(seed: int, most: int, auto: str, uneven: bool = False) -> Costs:
    """What each strategy makes of one graph, `auto` with the given options."""
    problem = (uneven_graph if uneven else random_graph)(seed, most)
    peak = peak_of(problem, best_order(problem))
    found: dict[str, list[float | None]] = {}
    for strategy in (*(other for other in quick_strategies() if other.name != "auto"), parse_strategy(auto)):
        costs: list[float | None] = []
        for share in SHARES:
            try:
                costs.append(strategy.solve(problem, int(share * peak)).overhead)
            except CkplanError:  # `list` has no list
                costs.append(None)
        found[strategy.name] = costs
    return found


def losses(found: Costs) -> list[tuple[str, float | None]]:
    """The cases that `auto` loses: by whom, and by how much, None where it refuses."""
    lost: list[tuple[str, float | None]] = []
    for place, mine in enumerate(found["auto"]):
        others = [(costs[place], name) for name, costs in found.items() if name != "auto"]
        best = min(((cost, name) for cost, name in others if cost is not None), default=None)
        if best is not None and (mine is None or mine > best[0] + POINT):
            lost.append((best[1], None if mine is None else mine - best[0]))
    return lost


def reversals(costs: list[float | None]) -> int:
    """In how many cases a larger budget is refused, or dearer than a smaller one."""
    count = 0
    for place, cost in enumerate(costs[1:], start=1):
        less = [other for other in costs[:place] if other is not None]
        count += bool(less) and (cost is None or cost > min(less) + POINT)
    return count


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=160)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--most", type=int, default=250, help="ops of the largest graph")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--auto", default="auto:steps=0", help="the strategy that is to lose to none")
    parser.add_argument("--uneven", action="store_true", help="graphs of very different bytes and costs")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.graphs)
    planned, reversed_, lost = Counter[str](), Counter[str](), 0
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        given = {"most": arguments.most, "auto": arguments.auto, "uneven": arguments.uneven}
        work = pool.imap(partial(plan_all, **given), seeds)
        for seed, found in zip(seeds, work, strict=True):
            for name, by in losses(found):
                lost += 1
                told = "refuses what" if by is None else f"is {100 * by:.2f} points dearer than"
                print(f"seed {seed}: auto {told} {name}{' plans' if by is None else ''}", flush=True)
            for name, costs in found.items():
                planned[name] += sum(cost is not None for cost in costs)
                reversed_[name] += reversals(costs)
    print(f"\n{len(SHARES) * len(seeds)} cases, {lost} of them lost by auto\n")
    print("| strategy | planned | a larger budget refused or dearer |\n|---|---|---|")
    for name in planned:
        print(f"| `{name}` | {planned[name]} | {reversed_[name]} |")


if __name__ == "__main__":
    main()
