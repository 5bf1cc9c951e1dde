"""Random planned models: predicted against measured peaks of the activations, model by model.

    python -m benchmarks.random_plans [--models 1000] [--first 0] [--jobs 2] [--keep FOLDER]

A model is drawn from its seed (`tests.runtime.memory_graphs`), differentiated, planned with a strategy and a budget
that follow from the seed, written, and run once by onnxruntime under default session options, in a process of its own.
What is predicted is what the file promises; what is measured are onnxruntime's own counters. A figure is exact where it
agrees to what the arena rounds a buffer up to; a broken budget is a file above what was asked for.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tests.runtime.promised import Promise, in_a_fork

ROUNDING = 512
"""Bytes by which the arena may round up what a kernel works in."""
SHARE, SLACK = 0.005, 4096
"""How far a prediction may be low: a ratio, or bytes if that is more."""
WORST = 12


def summary(found: Iterable[Promise]) -> list[str]:
    """The counts as a table, and the worst cases."""
    found = list(found)
    told = [promise for promise in found if not promise.skipped]
    same = sum(promise.excess == 0 for promise in told)
    exact = sum(abs(promise.excess) <= ROUNDING for promise in told)
    over = sum(promise.excess > ROUNDING for promise in told)
    low = sum(promise.excess < -max(SLACK, SHARE * promise.measured) for promise in told)
    broken = sum(promise.budget is not None and promise.measured > promise.budget + ROUNDING for promise in told)
    budgets = sum(promise.budget is not None for promise in told)
    lines = [
        f"| models | to the byte | exact (within {ROUNDING} B) | over | under | too low | budgets | broken | skipped |",
        "|---" * 9 + "|",
        f"| {len(told)} | {same} | {exact} ({exact / max(1, len(told)):.1%}) | {over} | {len(told) - exact - over} "
        f"| {low} | {budgets} | {broken} | {len(found) - len(told)} |",
        "",
    ]
    for promise in sorted(told, key=lambda promise: -abs(promise.excess) / max(1, promise.measured))[:WORST]:
        if abs(promise.excess) > ROUNDING:
            lines.append(
                f"seed {promise.seed} ({promise.strategy}): promised {promise.predicted}, measured {promise.measured} "
                f"({promise.excess / promise.measured:+.2%}), at {promise.at}"
            )
    return lines


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="leave the planned files here")
    arguments = parser.parse_args()
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    seeds = range(arguments.first, arguments.first + arguments.models)
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        found = list(pool.imap(partial(in_a_fork, folder=arguments.keep), seeds))
    for promise in found:
        if promise.skipped.startswith("FAILED"):
            print(f"seed {promise.seed}: {promise.skipped}")
    wrong = Counter(promise.at for promise in found if not promise.skipped and abs(promise.excess) > ROUNDING)
    print("\n".join(summary(found)))
    print(
        f"operators at the peaks that are not exact: {dict(wrong.most_common())}; {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
