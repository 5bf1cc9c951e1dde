"""Whether the size that ``ckplan fit`` finds runs within the memory, and one more does not.

    python -m benchmarks.fit [--only NAME ...] [--folder DIR]

For each model ``ckplan fit`` writes the step of the largest size. The step of one size more is refused by ``ckplan
rewrite --of total``, whose line names the smallest budget that there is a file for, and that is made. Both files run in
a process that is ended when its resident memory grows by more than the memory, as a container ends it, and in one that
is not: *resident* is what that takes (`benchmarks.hard_limit`). *Granted*: whether the largest size runs where the
system grants no more than what was promised and what of the arena's regions is never written to.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx

from ckplan.units import format_bytes, parse_bytes
from sample_models.bert import bert
from sample_models.gpt import gpt
from sample_models.mobilenet_v2 import mobilenet_v2
from sample_models.resnet import resnet18
from sample_models.unet import unet
from sample_models.vit import vit

CASES: dict[str, tuple[Callable[[], onnx.ModelProto], str, str]] = {
    "gpt": (partial(gpt, layers=2, width=256, heads=4, vocabulary=2000, sequence=128), "120MiB", "adamw"),
    "bert": (partial(bert, layers=2, width=256, heads=4, vocabulary=2000, sequence=128), "100MiB", "momentum"),
    "vit": (partial(vit, image=112, layers=2, width=256, heads=4, classes=10), "80MiB", "sgd"),
    "resnet18": (partial(resnet18, image=96, width=16, classes=10), "150MiB", "adamw"),
    "mobilenet_v2": (partial(mobilenet_v2, image=96, percent=50, classes=10), "100MiB", ""),
    "unet": (partial(unet, image=96, width=8, channels=1), "100MiB", "momentum"),
}
"""Models, the memory, and the optimizer in the step, if there is one."""


SLACK = 2**20
"""Bytes that Python may ask for meanwhile, where the system limits what it grants."""


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ckplan."""
    return subprocess.run([sys.executable, "-m", "ckplan", *arguments], capture_output=True, text=True, check=False)


def limited(path: Path, memory: str | int, *how: str) -> subprocess.CompletedProcess[str]:
    """Run a file that may take no more than some memory; see `benchmarks.hard_limit`."""
    command = [sys.executable, "-m", "benchmarks.hard_limit", str(path), str(memory), *how]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def cells_of(path: Path, memory: str) -> list[str]:
    """Whether a file runs within the memory, and what it takes without a limit."""
    ended = "runs" if limited(path, memory).returncode == 0 else "is ended"
    resident = int(limited(path, memory, "--free").stdout.split()[-1])
    return [ended, format_bytes(resident) + ("" if resident <= parse_bytes(memory) else ", over")]


def row(name: str, folder: Path, strategy: str) -> str:
    """One model."""
    build, memory, optimizer = CASES[name]
    model, largest, beyond = (folder / f"{name}{ending}.onnx" for ending in ("", "_largest", "_beyond"))
    onnx.save(build(), model)
    asked = (str(model), "--strategy", strategy, *(("--optimizer", optimizer) if optimizer else ()))
    found = ran("fit", *asked, "--memory", memory, "-o", str(largest), "--json")
    if found.returncode:
        return f"| {name} | {memory} | {found.stderr.strip()} |"
    answer = json.loads(found.stdout)
    size = answer["size"]
    one = next(one for one in answer["sizes"] if one["size"] == size)
    more = ("rewrite", *asked, "--dim", f"{answer['dimension']}={size + 1}", "--of", "total", "-o", str(beyond))
    refused = ran(*more, "--budget", memory)
    named = re.search(r"raise the budget to (\d+) bytes", refused.stderr)
    if refused.returncode != 4 or named is None:
        return f"| {name} | {memory} | {size + 1} is not refused: {refused.stderr.strip()} |"
    made = ran(*more, "--budget", named[1])
    if made.returncode:
        return f"| {name} | {memory} | {size + 1} at {named[1]}: {made.stderr.strip()} |"
    cells = [f"{name}, {optimizer or 'gradients'}", memory, str(size), f"{100 * one['overhead']:.0f} %"]
    cells.append(format_bytes(one["footprint"]["total"]))
    cells += cells_of(largest, memory)
    needed = one["footprint"]["total"] + one["footprint"]["spare"]
    cells.append("runs" if limited(largest, needed + SLACK, "--granted").returncode == 0 else "fails")
    cells += [format_bytes(int(named[1])), *cells_of(beyond, memory)]
    return f"| {' | '.join(cells)} | {len(answer['sizes'])} sizes |"


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES)
    parser.add_argument("--strategy", default="memory")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    sys.stdout.write("| model | memory | largest | overhead | promised | limited | resident | granted | ")
    sys.stdout.write("one more: least | limited | resident |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for case in options.only or CASES:
            sys.stdout.write(row(case, Path(name), options.strategy) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
