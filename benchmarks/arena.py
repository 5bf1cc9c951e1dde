"""What onnxruntime's arena holds in the steady state under default options, against what is alive at once.

    python -m benchmarks.arena [--only gpt unet] [--bisect] [--times] [--json results.json]

Of each network the step without a plan and the plans of two strategies are written twice: as they are, and with the
arena cut into pools, as `--of arena` does where a budget asks for it. *Live* is the peak of what must be alive at once:
activations, outputs, workspaces. *Default* is what the arena holds of the file as it is, *pools* of the other one, and
*measured* what it is found to hold after some runs. With `--bisect`, the smallest limit with which the file in pools
runs in an arena that is one region and cuts its chunks to size. MiB. With `--times`, what a step of the file in pools
takes and what it takes to open it, in times of the file as it is: processor time, one thread, in turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.bisect import GPT, SHARE
from benchmarks.exports import export
from benchmarks.session_opening import opening
from benchmarks.workloads import Workload
from ckplan.errors import InfeasibleError
from ckplan.meter import measure, smallest_arena
from ckplan.meter.seconds.clock import timed_in_turns
from ckplan.model import save
from ckplan.pipeline import Goal, Step, StepOptions, open_step, rewrite, step_of
from ckplan.pipeline.arena_forms import in_pools
from ckplan.planner.arena.allocations import expected_arena
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime.pools.allocations_of import allocations_of
from sample_models.catalogue import BUILDERS, SMALL
from sample_models.light_models import light_model

STRATEGIES = ("none", "memory", "auto:steps=0")

_SAMPLES: Mapping[str, Workload] = {
    "tanh_chain": Workload(BUILDERS["tanh_chain"], dims={"batch": 2048}),
    "gpt": Workload(GPT, dims={"batch": 32}),
    "bert_tiny": Workload(SMALL["bert_tiny"], dims={"batch": 128}),
    "mobilenet_tiny": Workload(SMALL["mobilenet_tiny"], dims={"batch": 64}),
    "resnet_tiny": Workload(SMALL["resnet_tiny"], dims={"batch": 256}),
    "densenet_tiny": Workload(SMALL["densenet_tiny"], dims={"batch": 64}),
    "unet": Workload(SMALL["unet_tiny"], dims={"batch": 64}),
    **{
        name: Workload(partial(light_model, name), images=4)
        for name in ("light_squeezenet", "light_resnet50", "light_shufflenet", "light_inception_v1")
    },
}

_EXPORTS: Mapping[str, int] = {
    "gpt2": 4,
    "swin": 4,
    "bert": 16,
    "llama": 16,
    "t5": 16,
    "whisper": 16,
    "vit": 16,
    "resnet": 16,
    "convnext": 16,
    "regnet": 8,
    "mobilenet_v2": 8,
}
"""Networks of `benchmarks.exports`, each with its batch size."""

NETWORKS = (*_SAMPLES, *_EXPORTS)

COLUMNS = ("network", "strategy", "live", "default", "to live", "pools", "measured", "to live", "seconds")

_TIMES = ("step", "spread", "opening")

_OPENINGS = 5
"""How often a file is opened."""


def opened(name: str, folder: Path) -> Step:
    """The training step of a network."""
    if name in _SAMPLES:
        return step_of(_SAMPLES[name].training_graph(folder))
    return open_step(export(name, _EXPORTS[name]), StepOptions())


def rows(name: str, folder: Path, *, bisect: bool, times: bool) -> Iterator[dict[str, Any]]:
    """What is found of one network, strategy by strategy."""
    step = opened(name, folder)
    for strategy in STRATEGIES:
        goal = Goal(share=SHARE) if strategy.startswith("auto") else Goal()
        try:
            made = rewrite(step, parse_strategy(strategy), goal)
        except InfeasibleError:
            continue  # no plan has so little
        began = process_time()
        pooled = in_pools(made)
        path = folder / f"{strategy.partition(':')[0]}.onnx"
        save(pooled.model, path)
        found = {
            "network": name,
            "strategy": strategy.partition(":")[0],
            "live": expected_arena(allocations_of(made.executed, made.model)).live,
            "default": made.footprint.held,
            "pools": pooled.footprint.held,
            "seconds": process_time() - began,
        }
        counters = measure(path, runs=1, heap=False).counters
        found["measured"] = counters.steady.held if counters is not None and counters.steady is not None else None
        if bisect:
            smallest = smallest_arena(path, device="cpu").default
            found |= {"smallest": smallest.limit, "expected": smallest.expected}
        if times:
            plain = folder / "plain.onnx"
            save(made.model, plain, force=True)
            timing = timed_in_turns(made.model, pooled.model)
            opens = opening({"plain": plain, "pools": path}, _OPENINGS)
            found |= {"step": timing.ratio, "spread": timing.spread, "opening": opens["pools"] / opens["plain"]}
        yield found


def cells(found: Mapping[str, Any]) -> list[str]:
    """One row of the table."""

    def mib(key: str) -> str:
        return "-" if found.get(key) is None else f"{found[key] / 2**20:.1f}"

    ratios = [f"{found[key] / found['live']:.2f}" for key in ("default", "pools")]
    row = [found["network"], found["strategy"], mib("live"), mib("default"), ratios[0], mib("pools"), mib("measured")]
    row += [ratios[1], f"{found['seconds']:.1f}"]
    row += [mib("expected"), mib("smallest")] if "smallest" in found else []
    return [*row, *(f"{found[key]:.2f}" for key in _TIMES)] if "step" in found else row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--bisect", action="store_true", help="find the smallest limit of each file in pools, too")
    parser.add_argument("--times", action="store_true", help="time steps and openings of both files, too")
    parser.add_argument("--json", type=Path, help="write everything that was found")
    arguments = parser.parse_args()
    columns = [
        *COLUMNS,
        *(("expected limit", "smallest") if arguments.bisect else ()),
        *(_TIMES if arguments.times else ()),
    ]
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    details = []
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            for found in rows(name, Path(folder), bisect=arguments.bisect, times=arguments.times):
                print("| " + " | ".join(cells(found)) + " |")
                sys.stdout.flush()
                details.append(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(details))


if __name__ == "__main__":
    main()
