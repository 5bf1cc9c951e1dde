r"""Start the workers on this machine, and end them all when one fails.

    ckplan artifacts examples/digits/digits.onnx -o share --dim batch=30 --loss cross-entropy --optimizer sgd
    python -m examples.loops.batches batches.safetensors 60
    python -m examples.data_parallel.train share batches.safetensors 20 learnt.safetensors --workers 2

The files are made for a worker's share of the batch: 30 of 60 images with two workers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from examples.processes import run_together


def start(arguments: list[str], workers: int, folder: Path) -> int:
    """Run all workers to their end, or to the first failure; returns the exit code of that."""
    common = [sys.executable, "-m", "examples.data_parallel.worker", *arguments]
    meet = ["--workers", str(workers), "--meet", str(folder / "meet")]
    return run_together([[*common, "--rank", str(rank), *meet] for rank in range(workers)])


if __name__ == "__main__":
    place = sys.argv.index("--workers")
    number = int(sys.argv[place + 1])
    rest = sys.argv[1:place] + sys.argv[place + 2 :]
    with tempfile.TemporaryDirectory() as name:
        sys.exit(start(rest, number, Path(name)))
