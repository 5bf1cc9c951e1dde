"""Budgets: exports planned within 80 to 20 % of their step, as files or as refusals that hold what they name.

    python -m benchmarks.budgets [--only gpt2 bert] [--batch 4] [--results build/budgets.jsonl] [--table]

For each export and each share of the peak without a plan: a file within the budget, by prediction, by the counters of
onnxruntime and by the heap meter (values and workspaces; what onnxruntime keeps for itself is summed up below the
table), or a refusal. Counters tell what kernels ask for, in an arena that cuts its chunks to
size; the default one hands out up to twice as much for what is no tensor of the file, and where that is more than the
budget, the table says "arena". The smallest budget that a refusal names is asked for, and held against
the lowest peak that any strategy reaches as a file. Outputs of each file are set beside those
of the file without a plan, bit by bit, on one thread and on two. Every export runs in a process of its own; results are
appended to a file of JSON lines as they come, and what stands there is not measured again. How many files were written
for a cell, and how many sessions of onnxruntime that took, is summed up as well.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.children import run_exports
from benchmarks.exports import export
from benchmarks.files import Reference, peaks
from ckplan.answers.analysis import quick_strategies
from ckplan.errors import CkplanError, InfeasibleError
from ckplan.model import save
from ckplan.pipeline import Goal, Step, open_step, plan_files, rewrite
from ckplan.pipeline.lowest import LIMITLESS, lowest_plan
from ckplan.pipeline.plan_files import write_plan
from ckplan.planner.strategies import parse_strategy
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.search import Search

EMIT = sys.modules["ckplan.writer.emit"]  # the package has a function of this name
ROOT = Path(__file__).resolve().parent.parent
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
TIME_LIMIT = 1800
"""Seconds for one export."""
SMALL = 4096
"""Bytes that the heap meter may lie above a budget: on the heap, a tensor of a few bytes takes 64."""


def cases(name: str, batch: int, done: Collection[str]) -> Iterator[dict[str, Any]]:
    """What became of each share for one export, but for those that are done."""
    step = open_step(export(name, batch), name=name)
    strategy, reference, lowest = parse_strategy("auto"), Reference(step.ordered), None
    measured: dict[tuple[int, ...], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planned.onnx"
        for share in SHARES:
            if str(share) in done:
                continue
            case: dict[str, Any] = {"network": name, "share": share, "commit": _commit()}
            start = time.process_time()
            try:
                with (
                    patch.object(plan_files, "write", wraps=plan_files.write) as written,
                    patch.object(EMIT, "executed_model", wraps=EMIT.executed_model) as opened,
                ):
                    planned = rewrite(step, strategy, Goal(share=share))
                case |= {"outcome": "file", "written": written.call_count, "sessions": opened.call_count}
            except InfeasibleError as error:
                named = re.search(r"to (\d+) bytes", error.hint or "")
                smallest = int(named[1]) if named else 0
                lowest = _lowest(step) if lowest is None else lowest
                case |= {"outcome": "refused", "smallest": smallest, "lowest": lowest}
                try:
                    planned = rewrite(step, strategy, Goal(budget=smallest))
                except InfeasibleError:
                    yield {**case, "outcome": "refused wrongly"}
                    continue
            case["planning"] = time.process_time() - start
            if planned.plan.schedule not in measured:  # budgets that lie above the same plan get the same file
                save(planned.model, path, force=True)
                measured[planned.plan.schedule] = {
                    "differ": reference.differing(path),
                    "handed": peaks(path)["counter"],
                    **peaks(path, cut=True),
                }
            found = measured[planned.plan.schedule]
            yield {**case, "budget": planned.budget, "overhead": planned.plan.overhead, **found}


def _lowest(step: Step) -> int:
    """The lowest peak of the files of all strategies: those that answer in seconds, `search`, `auto` at any overhead.

    No file takes less than its plan, so that plans which need more than a file that is there are not written.
    """
    kinds = [kind for kind in quick_strategies() if not isinstance(kind, Auto)]
    plans = []
    for kind in (*kinds, Search(), Auto(overhead=LIMITLESS)):
        try:
            plans.append(lowest_plan(step, kind))
        except CkplanError:
            continue
    found = math.inf
    for plan in sorted(plans, key=lambda plan: plan.predicted.peak_activations):
        if plan.predicted.peak_activations >= found:
            break
        if plan.schedule not in step.files:
            write_plan(step, plan)
        found = min(found, step.files[plan.schedule])
    return int(found)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def table(results: list[dict[str, Any]]) -> list[str]:
    """The results as lines of Markdown: overhead in percent where there is a file, the smallest budget where not."""
    lines = ["| network | " + " | ".join(f"{share:.0%}" for share in SHARES) + " | bits |"]
    lines.append("|---" * (len(SHARES) + 2) + "|")
    for name in dict.fromkeys(result["network"] for result in results):
        mine = {result.get("share"): result for result in results if result["network"] == name}
        cells = [_cell(mine.get(share)) for share in SHARES]
        equal = not any(result.get("differ") for result in mine.values())
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {'equal' if equal else 'differ'} |")
    files = [result for result in results if result["outcome"] == "file"]
    if files:
        objects = [result["objects"] for result in files]
        above = [more for result in files if (more := result["heap"] - result["budget"]) > 0]
        sessions, written = (sum(result[name] for result in files) for name in ("sessions", "written"))
        lines += ["", f"{len(files)} files of {written} that were written, in {sessions} sessions. onnxruntime's own"]
        lines += [
            f"objects take {min(objects):,} to {max(objects):,} bytes. The heap is above the budget in {len(above)}"
        ]
        lines += [f"cells, by {max(above, default=0):,} bytes at most."]
    return lines


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "-"
    if result["outcome"] == "file":
        kept = max(result["predicted"], result["counter"], result["heap"] - SMALL) <= result["budget"]
        handed = " arena" if result["handed"] > result["budget"] else ""
        return f"{100 * result['overhead']:+.1f}" + (handed if kept else " broken")
    above = "" if result["smallest"] <= 1.01 * result["lowest"] else f", {result['lowest'] / 2**20:.1f} is reached"
    return f"{result['outcome']}: {result['smallest'] / 2**20:.1f} MiB{above}"


def main() -> None:
    """Run the command line."""
    run_exports(
        "benchmarks.budgets",
        __doc__,
        "budgets.jsonl",
        tuple(map(str, SHARES)),
        lambda result: str(result["share"]),
        cases,
        table,
        TIME_LIMIT,
    )


if __name__ == "__main__":
    main()
