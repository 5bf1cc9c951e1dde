"""Runs cases and counts: ``python -m benchmarks.fuzz --cases 10000``; ``--damaged`` runs the list of `damaged` instead.

Every case is a number: ``--first N --cases 1`` runs one again, and with ``--keep`` its folder stays.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.fuzz.cases import broken, run_case
from benchmarks.fuzz.damaged import CASES, written
from benchmarks.fuzz.forked import fork_children, import_all, run_forked
from benchmarks.fuzz.seeds import write_seeds

DAMAGED_COMMANDS = (("rewrite", "m.onnx", "-o", "out.onnx", "--strategy", "sqrt", "--json"),)


def main() -> int:
    """Run the cases that are asked for; 1 if any broke an invariant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--damaged", action="store_true")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    import_all()
    fork_children()
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        found = _damaged(place) if options.damaged else _fuzz(options, place)
    finally:
        if options.keep:
            print(place)
        else:
            shutil.rmtree(place)
    print(json.dumps(found, indent=1))
    return int(bool(found["broken"]))


def _damaged(place: Path) -> dict[str, object]:
    codes: Counter[int] = Counter()
    failures = []
    for name, made in CASES.items():
        for command in DAMAGED_COMMANDS:
            folder = place / name
            folder.mkdir()
            (folder / "m.onnx").write_bytes(written(made))
            (folder / "weights.bin").write_bytes(bytes(256))
            before = {file.name: file.read_bytes() for file in folder.iterdir()}
            outcome = run_forked(command, folder)
            codes[outcome.code] += 1
            reasons = broken(command, outcome, folder, before)
            if reasons:
                failures.append({"case": name, "broken": reasons, "said": outcome.stderr[-400:]})
    return {"cases": sum(codes.values()), "codes": codes, "broken": failures}


def _fuzz(options: argparse.Namespace, place: Path) -> dict[str, object]:
    seeds, folder = place / "seeds", place / "case"
    write_seeds(seeds)
    codes: Counter[int] = Counter()
    failures = []
    started, slowest, largest = time.monotonic(), 0.0, 0
    for number in range(options.first, options.first + options.cases):
        if time.monotonic() - started > options.seconds:
            break
        shutil.rmtree(folder, ignore_errors=True)
        command, outcome, reasons = run_case(number, seeds, folder)
        codes[outcome.code] += 1
        slowest, largest = max(slowest, outcome.seconds), max(largest, outcome.memory)
        if reasons:
            failure = {"case": number, "command": command, "broken": reasons, "said": outcome.stderr[-300:]}
            failures.append(failure)
            print(json.dumps(failure), file=sys.stderr, flush=True)
    return {
        "cases": sum(codes.values()),
        "codes": codes,
        "slowest_seconds": round(slowest, 1),
        "largest_bytes": largest,
        "seconds": round(time.monotonic() - started),
        "broken": failures,
    }


if __name__ == "__main__":
    sys.exit(main())
