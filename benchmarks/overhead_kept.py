"""What a plan for an overhead costs on the clock: asked, planned, measured, by shapes, by kernels and by the clock.

    python -m benchmarks.overhead_kept [--stages plan time] [--only bert unet] [--costs calibrated clock] [--pairs 10]

Each network is planned by `auto` for 5, 10 and 20 % more compute, by what shapes tell (`--cost flops`), by kernels that
were timed on this machine (`--cost calibrated`), and by the clock (`--cost clock`). *Planned* is the overhead in the
reckoning that the plan was made by, by the clock what it told when the plan was chosen; *measured* that of the file
against the file without a plan, by processor time on one thread, steps in turns with pauses, least of each over three
processes; *spread* how far the first and the second half of the pairs lie apart. The stages can be run one by one,
since times want a machine to themselves and planning does not. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import onnx

import ckplan.model
from benchmarks.exports import FOLDER, export
from ckplan.autodiff import build_training_graph
from ckplan.isolation.arrays import save_arrays
from ckplan.meter.inputs import make_inputs
from ckplan.meter.seconds.timing import alternate
from ckplan.model import save
from ckplan.pipeline import Goal, Step, rewrite, step_of
from ckplan.planner.strategies import parse_strategy
from sample_models.catalogue import BUILDERS

PROCESSES = 3
"""Processes of each file, one after the other, each with the pairs that are asked for."""

OVERHEADS = (0.05, 0.1, 0.2)
COSTS = ("flops", "calibrated", "clock")
STAGES = ("calibrate", "plan", "time")

EXPORTED = {
    "gpt2": 1,
    "bert": 32,
    "llama": 16,
    "t5": 16,
    "vit": 16,
    "swin": 4,
    "convnext": 8,
    "segformer": 8,
    "mobilenet_v2": 4,
    "regnet": 8,
    "resnet": 16,
}
"""Exports and their batch sizes: a step takes 0.1 to 0.5 s."""

BUILT = {"unet": 1}
"""Networks of the catalogue and their batch sizes."""


def opened(name: str, cost: str, folder: Path) -> Step:
    """A network's step, its nodes priced."""
    if name in EXPORTED:
        path = export(name, EXPORTED[name], FOLDER)
        forward = ckplan.model.load(path)
    else:
        path = folder / f"{name}.onnx"
        onnx.save(BUILDERS[name](), path)
        forward = ckplan.model.load(path, dims={"batch": BUILT[name]})
    return step_of(build_training_graph(forward.model)).priced(cost)


def calibrate(name: str, costs: Sequence[str], folder: Path) -> None:
    """Time the kernels of a network."""
    step = opened(name, "calibrated", folder)
    print(f"{name}: {len(step.problem.ops)} nodes, {step.problem.cost:.3f} s by their kernels", flush=True)


def plan(name: str, costs: Sequence[str], folder: Path) -> None:
    """Write the files of a network, with and without plans."""
    step = opened(name, "flops", folder)
    save(rewrite(step, parse_strategy("none")).model, folder / f"{name}.base.onnx", force=True)
    shutil.rmtree(folder / f"{name}.inputs", ignore_errors=True)
    save_arrays(folder / f"{name}.inputs", make_inputs(step.model).arrays.items())
    for cost in costs:
        step = opened(name, cost, folder)
        for overhead in OVERHEADS:
            made = rewrite(step, parse_strategy("auto"), Goal(overhead=overhead))
            file = folder / f"{name}.{cost}.{overhead:.0%}"
            save(made.model, f"{file}.onnx", force=True)
            peaks = made.before.peak_activations, made.after.peak_activations
            planned = made.extra_time if cost == "clock" else made.plan.overhead
            Path(f"{file}.json").write_text(json.dumps({"planned": planned, "peaks": peaks}))
            print(f"{file.name}: {planned:.1%}, {peaks[1] / peaks[0]:.3f}", flush=True)


def timed(name: str, costs: Sequence[str], folder: Path, pairs: int | None) -> list[dict[str, Any]]:
    """What the plans of a network cost on the clock."""
    rows = []
    for overhead in OVERHEADS:
        for cost in costs:
            file = folder / f"{name}.{cost}.{overhead:.0%}"
            told = json.loads(Path(f"{file}.json").read_text())
            common = {"inputs": str(folder / f"{name}.inputs"), "device": "cpu", "threads": None}
            base, new = ({"path": str(path), **common} for path in (folder / f"{name}.base.onnx", f"{file}.onnx"))
            found = alternate(base, new, pairs, PROCESSES)
            row = {"network": name, "cost": cost, "asked": overhead, "planned": told["planned"]}
            row |= {"peak": told["peaks"][1] / told["peaks"][0], "measured": found.ratio - 1, "spread": found.spread}
            rows.append(row | {"seconds": min(found.base_seconds)})
            Path(f"{file}.timed.json").write_text(json.dumps(rows[-1]))
            print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    percent = " | ".join(f"{100 * row[key]:.1f}" for key in ("planned", "measured", "spread"))
    head = f"{row['network']} | {1e3 * row['seconds']:.0f} | {100 * row['asked']:.0f} | {row['cost']}"
    return f"| {head} | {row['peak']:.3f} | {percent} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--only", nargs="+", choices=[*EXPORTED, *BUILT], default=[*EXPORTED, *BUILT])
    parser.add_argument("--costs", nargs="+", choices=COSTS, default=list(COSTS))
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=FOLDER.parent / "overheads")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for stage, run in (("calibrate", calibrate), ("plan", plan)):
        for name in arguments.only if stage in arguments.stages else ():
            run(name, arguments.costs, arguments.folder)
    if "time" not in arguments.stages:
        return
    print("| network | ms | asked % | cost | peak | planned % | measured % | spread |\n" + "|---" * 8 + "|")
    rows = [row for name in arguments.only for row in timed(name, arguments.costs, arguments.folder, arguments.pairs)]
    for cost in arguments.costs:
        off = [100 * abs(row["measured"] - row["planned"]) for row in rows if row["cost"] == cost]
        spread = median(100 * row["spread"] for row in rows if row["cost"] == cost)
        told = f"median {median(off):.1f}, worst {max(off):.1f} points from planned to measured"
        print(f"{cost}: {told}; spread {spread:.1f} at the median", file=sys.stderr)


if __name__ == "__main__":
    main()
