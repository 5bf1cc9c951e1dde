"""What an open session takes that is no tensor: measured against what a budget of everything counts of it.

    python -m benchmarks.session_objects STEP ... [--fit]

STEP are files of ``ckplan rewrite`` or ``ckplan grad``. Each is opened twice in a process of its own, with arena
and memory pattern off: *heap* is what the C library has given out for the second session, *anonymous* the growth of the
resident memory that is of no file, both without the values of initializers that lie in the file; *first* is what the
first session took beyond the second, and *library* the pages of files that came in with it. Steps bring in more of
those: *with steps* is all of them (`benchmarks.in_place`). *Modelled* is `session_bytes` of
`ckplan.runtime.pools.footprint`. With ``--fit`` the last line has the constants that fit these files best, by relative
least squares.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.hard_limit import give_back, process_bytes
from benchmarks.in_place import given_out, measure
from ckplan.model.files.read import read
from ckplan.model.files.weights import lies_outside
from ckplan.runtime.pools.footprint import FIRST_SESSION, LIBRARY, session_bytes
from ckplan.runtime.sizes import bytes_of

KIB, MIB = 2**10, 2**20


def opened(path: str) -> list[dict[str, int]]:
    """In the child: what two sessions take, one after the other; the first one stays open."""
    kept, taken = [], []
    for _ in range(2):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        give_back()
        before = look()
        kept.append(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]))
        taken.append({name: count - before[name] for name, count in look().items()})
    return taken


def look() -> dict[str, int]:
    """What the process has now, in bytes."""
    anonymous = process_bytes("RssAnon")
    return {"heap": given_out(), "anonymous": anonymous, "files": process_bytes("VmRSS") - anonymous}


def row(path: Path) -> tuple[str, list[int]]:
    """A line for a file, and its nodes, initializers and heap."""
    command = [sys.executable, "-m", "benchmarks.session_objects", str(path), "--opened"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = json.loads(done.stdout.splitlines()[-1])
    model = read(path)
    graphs, outside = list(model.graphs()), lies_outside(model)
    nodes, initializers = sum(map(len, graphs)), sum(len(graph.initializers) for graph in graphs)
    held = sum(bytes_of(value) for graph in graphs for value in graph.initializers.values() if not outside(value))
    heap, anonymous, modelled = second["heap"] - held, second["anonymous"] - held, session_bytes(model)
    cells = [path.stem, f"{nodes:,}", f"{initializers:,}"]
    cells += [f"{count / MIB:.2f}" for count in (heap, anonymous, modelled)]
    cells += [f"{modelled / heap - 1:+.1%}", f"{(first['heap'] - second['heap']) / MIB:.2f}"]
    cells.append(f"{first['files'] / MIB:.2f}")
    try:
        stepped = measure(path, 3, False, "resident")
        cells.append(f"{(stepped['resident'] - stepped['anonymous']) / MIB:.2f}")
    except subprocess.CalledProcessError:  # a step that makes no update
        cells.append("")
    return f"| {' | '.join(cells)} |", [nodes, initializers, heap]


def fitted(rows: list[list[int]]) -> np.ndarray:
    """Bytes a node, an initializer and a session that fit best, errors in proportion to what was measured."""
    found = np.array(rows, float)
    terms = np.column_stack([found[:, 0], found[:, 1], np.ones(len(found))]) / found[:, 2:]
    return np.linalg.lstsq(terms, np.ones(len(found)), rcond=None)[0]


def main() -> None:
    """Print a row for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--opened", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.opened:
        print(json.dumps(opened(str(options.steps[0]))), flush=True)
        os._exit(0)
    print(f"Modelled of the first session: {FIRST_SESSION / MIB:.2f} MiB of heap, {LIBRARY / MIB:.2f} of files.\n")
    print("| file | nodes | initializers | heap | anonymous | modelled | off by | first | library | with steps |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for path in options.steps:
        line, numbers = row(path)
        rows.append(numbers)
        print(line, flush=True)
    if options.fit:
        node, initializer, session = fitted(rows)
        print(f"\n{node:,.0f} bytes a node, {initializer:,.0f} an initializer, {session / KIB:,.0f} KiB a session")


if __name__ == "__main__":
    main()
