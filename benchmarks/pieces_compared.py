"""Plans that may take regions in pieces beside plans that may not: is the answer ever worse?

    python -m benchmarks.pieces_compared [--only gpt2 bert] [--batch 4] [--results build/pieces.jsonl] [--table]

Each export is planned for several goals with `--chunks off` and with `--chunks auto`. A cell is the peak of the file
in MiB and the planned overhead, both counted from the step without a plan and without pieces. An answer is worse if its
file takes more and saves no compute, or costs more and saves no memory; if a budget is refused, or kept at a higher
cost; and if an overhead, or `memory`, ends at a higher peak. Where pieces were taken, onnxruntime's counters are held
against what was promised. Every export runs in a process of its own; results are appended to a file of JSON lines as
they come.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.children import run_exports
from benchmarks.exports import export
from benchmarks.files import peaks
from ckplan.errors import InfeasibleError
from ckplan.model import save
from ckplan.pipeline import Goal, open_step, rewrite
from ckplan.pipeline.options import StepOptions
from ckplan.planner.strategies import parse_strategy

ROOT = Path(__file__).resolve().parent.parent
GOALS: Mapping[str, tuple[str, Goal]] = {
    "memory": ("memory", Goal()),
    "60%": ("auto", Goal(share=0.6)),
    "40%": ("auto", Goal(share=0.4)),
    "20%": ("auto", Goal(share=0.2)),
    "+10%": ("auto", Goal(overhead=0.1)),
}
"""Strategy and goal by the name of a column."""
TIME_LIMIT = 3600
"""Seconds for one export."""
SAME = 1e-9
"""Difference of two overheads that is none."""


def cases(name: str, batch: int, done: Collection[str]) -> Iterator[dict[str, Any]]:
    """What both answers take and cost, goal by goal, but for those that are done."""
    path = export(name, batch)
    whole, free = open_step(path, name=name), open_step(path, StepOptions.of(chunks="auto"), name=name)
    for column, (strategy, goal) in GOALS.items():
        if column in done:
            continue
        case: dict[str, Any] = {"network": name, "goal": column}
        for form, step in (("off", whole), ("auto", free)):
            try:
                planned = rewrite(step, parse_strategy(strategy), goal)
            except InfeasibleError:
                case[form] = None
                continue
            cost = planned.plan.cost / whole.problem.cost - 1
            case[form] = {"peak": planned.after.peak_activations, "overhead": cost, "chosen": planned.chosen_form[:1]}
            if planned.chosen_form:
                with tempfile.TemporaryDirectory() as folder:
                    save(planned.model, Path(folder) / "planned.onnx")
                    case[form]["counter"] = peaks(Path(folder) / "planned.onnx", cut=True)["counter"]
        yield case


def is_worse(case: Mapping[str, Any]) -> bool:
    """Whether the answer with pieces is worse than the one without."""
    old, new = case["off"], case["auto"]
    if old is None or new is None:
        return new is None and old is not None
    dearer, larger = new["overhead"] - old["overhead"] > SAME, new["peak"] > old["peak"]
    cheaper, smaller = old["overhead"] - new["overhead"] > SAME, new["peak"] < old["peak"]
    if (dearer and not smaller) or (larger and not cheaper):
        return True
    return dearer if GOALS[case["goal"]][1].share is not None else larger


def table(results: list[dict[str, Any]]) -> list[str]:
    """The results as lines of Markdown."""
    lines = ["| network | " + " | ".join(GOALS) + " |", "|---" * (len(GOALS) + 1) + "|"]
    for name in dict.fromkeys(result["network"] for result in results):
        mine = {result["goal"]: result for result in results if result["network"] == name}
        lines.append(f"| {name} | " + " | ".join(_cell(mine.get(goal)) for goal in GOALS) + " |")
    pieces = [result["auto"] for result in results if result["auto"] and result["auto"]["chosen"]]
    exact = sum(answer["counter"] == answer["peak"] for answer in pieces)
    gained = sum(result["off"] is None and result["auto"] is not None for result in results)
    worse = [f"{result['network']} {result['goal']}" for result in results if is_worse(result)]
    lines += ["", f"{len(results)} cells, {len(pieces)} with pieces, {exact} of these to the byte by the counters;"]
    lines += [f"{gained} kept only with pieces; worse: {', '.join(worse) or 'none'}."]
    return lines


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "-"
    old, new = (_told(result[form]) for form in ("off", "auto"))
    if old == new:
        return old
    chosen = result["auto"]["chosen"][0].rpartition(" ")[2] if result["auto"] and result["auto"]["chosen"] else ""
    return f"{old} -> {new}" + (f", `{chosen}`" if chosen else "")


def _told(answer: Mapping[str, Any] | None) -> str:
    return "refused" if answer is None else f"{answer['peak'] / 2**20:.1f} {100 * answer['overhead']:+.1f} %"


def main() -> None:
    """Run the command line."""
    run_exports(
        "benchmarks.pieces_compared",
        __doc__,
        "pieces.jsonl",
        tuple(GOALS),
        lambda result: str(result["goal"]),
        cases,
        table,
        TIME_LIMIT,
    )


if __name__ == "__main__":
    main()
