"""Budgets: exports planned within 80 to 20 % of their step, as files or as refusals that hold what they name.

    python -m benchmarks.budgets [--only gpt2 bert] [--batch 4] [--results build/budgets.jsonl] [--table]

For each export and each share of the peak without a plan: a file within the budget, by prediction and by the
counters of onnxruntime, or a refusal whose smallest budget writes a file when it is asked for. Outputs of each file are
set beside those of the file without a plan, bit by bit, on one thread and on two. Every export runs in a process of its
own; results are appended to a file of JSON lines, and what stands there is not recomputed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ckplan
from benchmarks.exports import EXPORTS, export
from ckplan.errors import CkplanError, InfeasibleError
from ckplan.meter import measure
from ckplan.meter.inputs import make_inputs
from ckplan.operators.sessions import open_session
from ckplan.pipeline import Goal, Planned, rewrite, step_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "budgets.jsonl"
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
TIME_LIMIT = 1800
"""Seconds for one export."""


def outputs(path: Path, arrays: Mapping[str, Any], threads: int) -> dict[str, bytes]:
    """What a file outputs under default session options on a number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = open_session(str(path), options)
    fed = {value.name: arrays[value.name] for value in session.get_inputs() if value.name in arrays}
    names = [value.name for value in session.get_outputs()]
    return {name: array.tobytes() for name, array in zip(names, session.run(None, fed), strict=True)}


def cases(name: str, batch: int) -> Iterator[dict[str, Any]]:
    """What became of each share for one export."""
    step = step_of(ckplan.build_training_graph(ckplan.load(export(name, batch)).model), name)
    strategy = ckplan.parse_strategy("auto")
    arrays = make_inputs(step.model).arrays
    with tempfile.TemporaryDirectory() as folder:
        plain, path = Path(folder) / "plain.onnx", Path(folder) / "planned.onnx"
        ckplan.save(step.model, plain)
        expected = {threads: outputs(plain, arrays, threads) for threads in (1, 2)}
        for share in SHARES:
            case: dict[str, Any] = {"network": name, "share": share}
            start = time.process_time()
            try:
                planned: Planned = rewrite(step, strategy, Goal(share=share))
                case["outcome"] = "file"
            except InfeasibleError as error:
                found = re.search(r"is (\d+) bytes", error.hint or "")
                case |= {"outcome": "refused", "smallest": int(found[1]) if found else None}
                try:
                    planned = rewrite(step, strategy, Goal(budget=case["smallest"] or 0))
                except InfeasibleError:
                    yield {**case, "outcome": "refused wrongly"}
                    continue
            case["seconds"] = time.process_time() - start
            ckplan.save(planned.model, path, force=True)
            yield {
                **case,
                "budget": planned.budget,
                "predicted": planned.after.peak_activations,
                "measured": measure(path, runs=1, heap=False).peak_activations,
                "overhead": planned.plan.overhead,
                "bits": all(outputs(path, arrays, threads) == made for threads, made in expected.items()),
            }


def table(results: list[dict[str, Any]]) -> list[str]:
    """The results as lines of Markdown: overhead in percent where there is a file, the smallest budget where not."""
    lines = ["| network | " + " | ".join(f"{share:.0%}" for share in SHARES) + " | bits |"]
    lines.append("|---" * (len(SHARES) + 2) + "|")
    for name in dict.fromkeys(result["network"] for result in results):
        mine = {result.get("share"): result for result in results if result["network"] == name}
        cells = [_cell(mine.get(share)) for share in SHARES]
        equal = all(result.get("bits", True) for result in mine.values())
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {'equal' if equal else 'differ'} |")
    return lines


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "-"
    if result["outcome"] == "file":
        kept = max(result["predicted"], result["measured"] or 0) <= result["budget"]
        return f"{100 * result['overhead']:+.1f}" + ("" if kept else " broken")
    smallest = result.get("smallest")
    return result["outcome"] if not smallest else f"{result['outcome']}: {smallest / 2**20:.1f} MiB"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(EXPORTS), default=list(EXPORTS), metavar="EXPORT")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the table of the results only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        try:
            for case in cases(arguments.only[0], arguments.batch):
                print(json.dumps(case), flush=True)
        except CkplanError as error:
            raise SystemExit(str(error)) from error
        return
    lines = arguments.results.read_text(encoding="utf-8").splitlines() if arguments.results.exists() else []
    results = [json.loads(line) for line in lines]
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    for name in [] if arguments.table else arguments.only:
        if any(result["network"] == name for result in results):
            continue
        command = [
            sys.executable,
            "-m",
            "benchmarks.budgets",
            "--child",
            "--only",
            name,
            "--batch",
            str(arguments.batch),
        ]
        try:
            child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired:
            print(f"{name}: not done within {TIME_LIMIT} s", file=sys.stderr)
            continue
        made = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
        if child.returncode:
            print(f"{name}: {' '.join(child.stderr.splitlines()[-1:])}", file=sys.stderr)
        with arguments.results.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(case) + "\n" for case in made)
        results += made
    print("\n".join(table([result for result in results if result["network"] in arguments.only])))


if __name__ == "__main__":
    main()
