"""Random models of 5 to 40 nodes: gradients against slopes, in onnxruntime, and recomputed against not recomputed.

    python -m benchmarks.random_graphs [--models 3000] [--first 0] [--runtime] [--recompute] [--jobs 2]

A model is drawn from its seed, so one that fails is found again with ``--first SEED --models 1``. Slopes are central
differences in float64 along two random directions of all parameters at once. ``--runtime`` adds the same training
graph in float32 in onnxruntime; ``--recompute`` compares files that recompute with the file without a plan, bit for
bit, as they are written and as onnxruntime fuses them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter

from tests.autodiff.growing import Seeded
from tests.autodiff.random_check import Found, check_model
from tests.autodiff.random_graphs import grow


def _check(job: tuple[int, bool, bool]) -> tuple[int, Found, list[str]]:
    seed, runtime, recompute = job
    model = grow(Seeded(seed))
    try:
        found = check_model(model, runtime, recompute)
    except Exception as error:  # reported like any other problem
        found = Found(f"{type(error).__name__}: {error}", nodes=len(model.graph.node))
    return seed, found, sorted({node.op_type for node in model.graph.node})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--runtime", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    start = time.perf_counter()
    seeds = range(arguments.first, arguments.first + arguments.models)
    kinds: Counter[str] = Counter()
    nodes: list[int] = []
    wrong = skipped = repeats = 0
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        jobs = [(seed, arguments.runtime, arguments.recompute) for seed in seeds]
        for seed, found, operators in pool.imap_unordered(_check, jobs, chunksize=8):
            kinds.update(operators)
            nodes.append(found.nodes)
            repeats += found.repeats
            wrong += bool(found.problem)
            skipped += bool(found.skipped)
            if found.problem:
                print(f"seed {seed}: {found.problem}", flush=True)
    print("| models | agree | at a kink | wrong | nodes | operators | recomputed nodes | seconds |")
    print("|---" * 8 + "|")
    print(
        f"| {len(nodes)} | {len(nodes) - wrong - skipped} | {skipped} | {wrong} | {sum(nodes)} | {len(kinds)} "
        f"| {repeats} | {time.perf_counter() - start:.0f} |"
    )


if __name__ == "__main__":
    main()
