"""Commands that are asked to end at random moments: what is there afterwards of processes, folders and files.

``python -m benchmarks.fuzz.signals --signals 90``
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import onnx
import psutil

from benchmarks.fuzz.seeds import write_seeds

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
COMMANDS = (
    "rewrite convolution.onnx -o out.onnx --force --strategy memory --verify --device cpu",
    "measure planned.onnx --device cpu --runs 3",
    "report external.onnx -o out.html --force --strategy sqrt --pareto",
    "rewrite external.onnx -o out.onnx --force --copy-weights --strategy sqrt --cost measured --device cpu",
)
PATIENCE = 20.0
"""Seconds after a signal in which everything has to be gone."""


def ended(place: Path, line: str, number: signal.Signals, wait: float) -> tuple[int, list[str]]:
    """Run a command, ask it to end after some seconds, and tell its exit code and what it left behind."""
    temporary = place / "temporary"
    temporary.mkdir(exist_ok=True)
    before = {file.name for file in place.iterdir()}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "ckplan", *line.split()],
            cwd=place,
            env={**os.environ, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(place / "cache")},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        time.sleep(wait)
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(number)
        code = process.wait(PATIENCE)
        said.seek(0)
        left = ["traceback"] if b"Traceback" in said.read() else []
    left += [f"process {other.name()}" for other in psutil.wait_procs(family, timeout=PATIENCE)[1]]
    left += [file.name for file in temporary.iterdir()]
    expected = {*before, "cache", "out.onnx", "out.onnx.data", "out.html"}
    left += [file.name for file in place.iterdir() if file.name not in expected]
    if (place / "out.onnx").exists():
        onnx.load(place / "out.onnx")  # raises for half of a file
    return code, left


def main() -> int:
    """Print how commands ended; 1 if anything was left behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signals", type=int, default=90)
    options = parser.parse_args()
    rng = random.Random(0)
    codes: Counter[str] = Counter()
    broken = []
    for number in ENDING:  # a shell may have started this with one of them ignored
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "place"
        write_seeds(place)
        for attempt in range(options.signals):
            number, line = ENDING[attempt % len(ENDING)], rng.choice(COMMANDS)
            code, left = ended(place, line, number, rng.uniform(0, 6))
            codes[f"{number.name}: {code}"] += 1
            if left or code not in (0, 128 + number, -number):
                broken.append({"attempt": attempt, "command": line, "signal": number.name, "code": code, "left": left})
    print(json.dumps({"signals": options.signals, "codes": codes, "broken": broken}, indent=1))
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
