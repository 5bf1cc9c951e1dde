"""Runs cases and counts: ``python -m benchmarks.fuzz --cases 10000``; ``--damaged`` runs the list of `damaged` instead.

Every case is a number: ``--first N --cases 1`` runs one again, and with ``--keep`` its folder stays. Those from
10,000,000 on are of what a training loop reads.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fuzz.cases import LOOP, broken, run_case
from benchmarks.fuzz.damaged import CASES, written
from benchmarks.fuzz.forked import GIB, fork_children, import_all, run_forked
from benchmarks.fuzz.seeds import write_loop_seeds, write_seeds

DAMAGED_COMMANDS = (
    ("rewrite", "m.onnx", "-o", "out.onnx", "--strategy", "sqrt", "--json"),
    ("measure", "m.onnx", "--device", "cpu", "--runs", "1", "--run-limit", "3", "--json"),
)
ROOM = 3 * GIB // 2
"""What these may allocate: a model that grows without end takes all there is when it is measured, and has to be told of
on a small machine, too."""


def main() -> int:
    """Run the cases that are asked for; 1 if any broke an invariant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--damaged", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--log", type=Path, help="a line for each case; those that are in it are not run again")
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
            folder = place / f"{name}-{command[0]}"
            folder.mkdir()
            (folder / "m.onnx").write_bytes(written(made))
            (folder / "weights.bin").write_bytes(bytes(256))
            before = {file.name: file.read_bytes() for file in folder.iterdir()}
            outcome = run_forked(command, folder, memory=ROOM)
            codes[outcome.code] += 1
            reasons = broken(command, outcome, folder, before)
            if reasons:
                failures.append({"case": name, "command": command[0], "broken": reasons, "said": outcome.stderr[-400:]})
    return {"cases": sum(codes.values()), "codes": codes, "broken": failures}


def _fuzz(options: argparse.Namespace, place: Path) -> dict[str, object]:
    seeds, folder = place / "seeds", place / "case"
    (write_loop_seeds if options.first >= LOOP else write_seeds)(seeds)
    log = options.log or place / "log"
    known = {entry["case"] for entry in _entries(log)}
    started = time.monotonic()
    with log.open("a", encoding="utf-8") as stream:
        for number in range(options.first, options.first + options.cases):
            if number in known:
                continue
            if time.monotonic() - started > options.seconds:
                break
            shutil.rmtree(folder, ignore_errors=True)
            told = run_case(number, seeds, folder)
            outcome = told.outcome
            entry = {
                "case": number,
                "file": told.file,
                "command": told.command,
                "afresh": told.afresh,
                "code": outcome.code,
                "seconds": round(outcome.seconds, 2),
                "bytes": outcome.memory,
                "broken": told.broken,
            }
            if told.broken:
                entry["said"] = outcome.stderr[-300:]
                print(json.dumps(entry), file=sys.stderr, flush=True)
            stream.write(json.dumps(entry) + "\n")
            stream.flush()
    return _summary(_entries(log)) | {"seconds": round(time.monotonic() - started)}


def _entries(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


def _summary(entries: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    return {
        "cases": len(entries),
        "codes": Counter(entry["code"] for entry in entries),
        "files": Counter(Path(entry["file"]).suffix for entry in entries),
        "commands": Counter(entry["command"][0] for entry in entries),
        "afresh": sum(entry["afresh"] for entry in entries),
        "slowest_seconds": max((entry["seconds"] for entry in entries), default=0.0),
        "largest_bytes": max((entry["bytes"] for entry in entries), default=0),
        "broken": [entry for entry in entries if entry["broken"]],
    }


if __name__ == "__main__":
    sys.exit(main())
