"""How planning time and memory grow with a graph: layered random DAGs and deep transformers of up to 100 000 ops.

    python -m benchmarks.planner_scale [--sizes 1000 10000 100000] [--strategies evict auto:steps=0] [--json out.json]

Every graph is planned for half the peak that it has without recomputation, in a process of its own. Time is the
processor time of that process from the graph to the plan; memory is the largest resident set of the process, and what
of it was there before planning began (interpreter, libraries, graph). The exponent is the slope of a straight
line through the logarithms of ops and seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ckplan.errors import InfeasibleError
from ckplan.planner import Problem
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Kind, Op, Tensor
from ckplan.planner.strategies import parse_strategy

SIZES = (1_000, 10_000, 100_000)
STRATEGIES = ("evict", "auto:steps=0")
_WIDTH = 16
"""Ops in a layer of a random DAG."""
_MIB = 2**20


class Builder:
    """Collects ops and tensors; the backward pass is added at the end, one or more ops for each forward op."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []
        self.twins: list[tuple[tuple[int, ...], int, tuple[tuple[int, ...], ...], float]] = []

    def tensor(self, size: int, kind: Kind = Kind.ACTIVATION) -> int:
        self.tensors.append(Tensor(f"t{len(self.tensors)}", size, kind))
        return len(self.tensors) - 1

    def op(self, inputs: Sequence[int], output: int, cost: float, *, backward: bool = False) -> int:
        self.ops.append(Op(f"op{len(self.ops)}", tuple(inputs), (output,), cost, backward=backward))
        return output

    def forward(self, inputs: Sequence[int], size: int, cost: float, saved: str = "inputs") -> int:
        """An op whose gradient reads what it ``saved``: its inputs, its output, or nothing."""
        output = self.op(inputs, self.tensor(size), cost)
        read = {"inputs": tuple(inputs), "output": (output,), "nothing": ()}[saved]
        self.twins.append((tuple(inputs), output, (read,) * len(inputs), cost))
        return output

    def problem(self, loss: int) -> Problem:
        """Add the backward pass: a gradient for each input of each op, summed where a tensor has several readers."""
        gradient = {loss: self.op([loss], self.tensor(self.tensors[loss].bytes), 1.0, backward=True)}
        for inputs, output, reads, cost in reversed(self.twins):
            if output not in gradient:
                continue
            for tensor, read in zip(inputs, reads, strict=True):
                kind = self.tensors[tensor].kind
                if kind is Kind.INPUT:
                    continue
                others = [value for value in read if value != tensor or len(read) == 1]
                made = self.tensor(
                    self.tensors[tensor].bytes, Kind.OUTPUT if kind is Kind.PARAMETER else Kind.ACTIVATION
                )
                self.op([gradient[output], *others], made, cost, backward=True)
                if kind is Kind.ACTIVATION and tensor in gradient:
                    total = self.tensor(self.tensors[tensor].bytes)
                    made = self.op([gradient[tensor], made], total, 0.1, backward=True)
                gradient[tensor] = made
        return Problem(tuple(self.ops), tuple(self.tensors))


def layered_dag(ops: int, seed: int = 0) -> Problem:
    """Layers of 16 ops that read one to three tensors of the two layers before, of random sizes and costs."""
    rng = random.Random(seed)
    build = Builder()
    before = [build.tensor(_MIB, Kind.INPUT)]
    layer: list[int] = []
    while 2.83 * len(build.ops) < ops:  # forward ops have two gradients on average, and most of those are summed
        made = []
        for _ in range(_WIDTH):
            pool = [*before, *layer]
            inputs = rng.sample(pool, min(len(pool), rng.choice((1, 1, 2, 3))))
            saved = rng.choice(("inputs", "output", "nothing"))
            made.append(build.forward(inputs, rng.randrange(1, 65) * _MIB // 16, rng.uniform(0.5, 4.0), saved))
        before, layer = layer, made
    return build.problem(build.forward([*before, *layer], 4, 1.0, "nothing"))


def transformer(ops: int, seed: int = 0) -> Problem:
    """Blocks of attention and a feed-forward network with their gradients, 42 ops each; the seed has no effect."""
    build = Builder()
    width = _MIB
    x = build.tensor(width, Kind.INPUT)

    def weighted(value: int, size: int, cost: float) -> int:
        return build.forward([value, build.tensor(4 * _MIB, Kind.PARAMETER)], size, cost)

    for _ in range(max(1, round(ops / 42))):
        normal = build.forward([x], width, 0.2)
        query, key, value = (weighted(normal, width, 2.0) for _ in range(3))
        scores = build.forward([query, key], 2 * width, 1.5)
        weights = build.forward([scores], 2 * width, 0.3, "output")
        context = build.forward([weights, value], width, 1.5)
        x = build.forward([x, weighted(context, width, 2.0)], width, 0.1, "nothing")
        normal = build.forward([x], width, 0.2)
        hidden = build.forward([weighted(normal, 4 * width, 8.0)], 4 * width, 0.4)
        x = build.forward([x, weighted(hidden, width, 8.0)], width, 0.1, "nothing")
    return build.problem(build.forward([x], 4, 1.0))


GRAPHS: dict[str, Callable[[int], Problem]] = {"layered DAG": layered_dag, "transformer": transformer}


def resident() -> float:
    """The largest resident set so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def row(graph: str, size: int, strategy: str) -> dict[str, Any]:
    """Plan one graph in this process."""
    problem = GRAPHS[graph](size)
    peak = peak_of(problem, best_order(problem))
    problem = GRAPHS[graph](size)  # anew, so that nothing is known of it yet
    before = resident()
    start = time.process_time()
    try:
        plan = parse_strategy(strategy).solve(problem, peak // 2)
    except InfeasibleError:
        plan = None
    return {
        "graph": graph,
        "ops": len(problem.ops),
        "strategy": strategy,
        "seconds": time.process_time() - start,
        "memory": resident(),
        "before": before,
        "overhead": None if plan is None else plan.overhead,
        "bound": None if plan is None else plan.overhead_bound,
    }


def in_child(graph: str, size: int, strategy: str) -> dict[str, Any]:
    """Plan one graph in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.planner_scale", "--one", graph, str(size), strategy]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def exponent(rows: Sequence[dict[str, Any]]) -> float:
    """The power of the number of ops that planning time grows with."""
    slope, _ = np.polyfit(np.log([row["ops"] for row in rows]), np.log([row["seconds"] for row in rows]), 1)
    return float(slope)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    parser.add_argument("--one", nargs=3, metavar=("GRAPH", "OPS", "STRATEGY"), help="plan one graph, print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        graph, size, strategy = arguments.one
        print(json.dumps(row(graph, int(size), strategy)))
        return
    print("| graph | strategy | ops | CPU s | peak memory MiB (before) | overhead % | exponent |")
    print("|---" * 7 + "|")
    found: list[dict[str, Any]] = []
    for graph in arguments.graphs:
        for strategy in arguments.strategies:
            series: list[dict[str, Any]] = []
            for size in arguments.sizes:
                entry = in_child(graph, size, strategy)
                series.append(entry)
                overhead = "-" if entry["overhead"] is None else f"{100 * entry['overhead']:.1f}"
                slope = f"{exponent(series):.2f}" if len(series) > 1 else ""
                print(
                    f"| {graph} | `{strategy}` | {entry['ops']} | {entry['seconds']:.2f} "
                    f"| {entry['memory']:.0f} ({entry['before']:.0f}) | {overhead} | {slope} |",
                    flush=True,
                )
            found += series
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
