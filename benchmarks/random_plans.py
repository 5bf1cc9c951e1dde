"""Random planned models: predicted against measured peaks of the activations, model by model.

    python -m benchmarks.random_plans [--models 1000] [--first 0] [--jobs 2] [--results build/random_plans.jsonl]

A model is drawn from its seed (`tests.runtime.memory_graphs`), differentiated, planned with a strategy and a budget
that follow from the seed, written, and run once by onnxruntime under default session options, in a process of its own.
What is predicted is what the file promises; what is measured are onnxruntime's own counters. A figure is exact where it
agrees to what the arena rounds a buffer up to; a broken budget is a file above what was asked for. Outputs are compared
bit by bit with those of the file without a plan. Results are appended to a file as they come, and what stands there is
not measured again. Of some files the heap meter is asked as well.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.runtime.promised import Promise, in_a_fork

ROUNDING = 512
"""Bytes by which the arena may round up what a kernel works in."""
SHARE, SLACK = 0.005, 4096
"""How far a prediction may be low: a ratio, or bytes if that is more."""
WORST = 12
RESULTS = Path(__file__).resolve().parent.parent / "build" / "random_plans.jsonl"


def read(path: Path) -> list[Promise]:
    """The results in a file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Promise(**json.loads(line)) for line in lines]


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
    differ = sum(bool(promise.differ) for promise in told)
    lines = [
        f"| models | to the byte | exact (within {ROUNDING} B) | over | under | too low | budgets | broken "
        "| bits differ | skipped |",
        "|---" * 10 + "|",
        f"| {len(told)} | {same} | {exact} ({exact / max(1, len(told)):.1%}) | {over} | {len(told) - exact - over} "
        f"| {low} | {budgets} | {broken} | {differ} | {len(found) - len(told)} |",
        "",
    ]
    apart = [(promise.heap - promise.measured) / promise.measured for promise in told if promise.heap]
    if apart:
        lines += [
            f"the heap meter, asked of {len(apart)}, is {min(apart):+.2%} to {max(apart):+.2%} of the counters",
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
    parser.add_argument("--heap", type=int, default=25, help="ask the heap meter of each so many seeds one; 0: never")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--keep", type=Path, help="leave the planned files here")
    arguments = parser.parse_args()
    for folder in filter(None, (arguments.keep, arguments.results.parent)):
        folder.mkdir(parents=True, exist_ok=True)
    known = {promise.seed: promise for promise in read(arguments.results)}
    wanted = range(arguments.first, arguments.first + arguments.models)
    waiting = [seed for seed in wanted if seed not in known]
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for promise in pool.imap_unordered(partial(in_a_fork, folder=arguments.keep, every=arguments.heap), waiting):
            known[promise.seed] = promise
            with arguments.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(promise)) + "\n")
    found = [known[seed] for seed in wanted]
    for promise in found:
        if promise.skipped.startswith("FAILED"):
            print(f"seed {promise.seed}: {promise.skipped}")
        elif promise.differ:
            print(f"seed {promise.seed} ({promise.strategy}): not equal to the bit: {', '.join(promise.differ)}")
    wrong = Counter(promise.at for promise in found if not promise.skipped and abs(promise.excess) > ROUNDING)
    print("\n".join(summary(found)))
    print(f"operators at the peaks that are not exact: {dict(wrong.most_common())}")


if __name__ == "__main__":
    main()
