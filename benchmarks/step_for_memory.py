"""What activation memory costs in measured step time: plans of several overheads against the baseline, in one run.

    python -m benchmarks.step_for_memory [--only gpt unet] [--overheads 0.05 0.1 0.2] [--cost measured] [--runs 7]

The baseline is ckplan's own training graph by strategy `none`. Each plan is that of `auto` for an overhead that it may
cost in the planner's own reckoning; what it costs is measured, steps alternating. The last line of a model is the
lowest peak whose measured step takes no more than a tenth longer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.workloads import WORKLOADS, Workload
from ckplan.meter import Verification, verify
from ckplan.meter.seconds.costs import measured_costs
from ckplan.model import save
from ckplan.pipeline import Goal, rewrite, step_of
from ckplan.planner.strategies import parse_strategy

MODELS = ("light_resnet50", "unet", "gpt")
ALLOWED = 1.1
COLUMNS = (
    "model",
    "asked",
    "planned overhead",
    "bound",
    "peak MiB",
    "predicted",
    "ratio",
    "heap ratio",
    "step",
    "bitwise",
)


def measured(workload: Workload, overheads: list[float], cost: str, runs: int) -> list[tuple[list[str], Verification]]:
    """One row, and what it comes from, for each overhead."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = workload.training_graph(folder).model
        costs = measured_costs(model) if cost == "measured" else {}
        base = folder / "base.onnx"
        save(rewrite(step_of(model, costs=costs), parse_strategy("none")).model, base)
        for number, overhead in enumerate(overheads):
            made = rewrite(step_of(model, costs=costs), parse_strategy("auto"), Goal(overhead=overhead))
            new = folder / f"{number}.onnx"
            save(made.model, new)
            found = verify(base, new, runs=runs)
            heap = found.new.heap, found.base.heap
            rows.append(
                (
                    [
                        f"{overhead:.0%}",
                        f"{made.plan.overhead:.1%}",
                        f"{made.plan.overhead_bound:.1%}",
                        f"{(found.new.peak_activations or 0) / 2**20:.1f}",
                        f"{made.after.peak_activations / 2**20:.1f}",
                        f"{found.activation_ratio or 0:.3f}",
                        f"{heap[0].activations / heap[1].activations:.3f}"
                        if heap[0] and heap[1] and heap[0].activations and heap[1].activations
                        else "-",
                        f"{found.time_ratio or 0:.3f}",
                        "yes" if found.numerics.bitwise_equal else "no",
                    ],
                    found,
                )
            )
            new.unlink()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(MODELS))
    parser.add_argument("--overheads", nargs="+", type=float, default=[0.05, 0.1, 0.15, 0.2, 0.3])
    parser.add_argument("--cost", choices=("flops", "measured"), default="measured")
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for name in arguments.only:
        rows = measured(WORKLOADS[name], arguments.overheads, arguments.cost, arguments.runs)
        for cells, _ in rows:
            print(f"| {name} | " + " | ".join(cells) + " |")
        fast = [found.activation_ratio or 1.0 for _, found in rows if (found.time_ratio or 9.0) <= ALLOWED]
        print(f"\n{name}: {min(fast, default=1.0):.3f} of the baseline's peak within {ALLOWED - 1:.0%} of its step\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
