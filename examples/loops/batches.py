"""The digits of examples/digits as a file of batches: python -m examples.loops.batches OUT [BATCH]."""

from __future__ import annotations

import sys
from pathlib import Path

from examples.digits.data import BATCH, digits
from examples.loops.safetensors import write


def write_batches(path: Path, size: int = BATCH) -> None:
    """Write all batches of an epoch, one behind the other: image, float32, and labels, int64."""
    (images, labels), _ = digits()
    write({"image": images.reshape(-1, size, 1, 8, 8), "labels": labels.reshape(-1, size)}, path)


if __name__ == "__main__":
    write_batches(Path(sys.argv[1]), *map(int, sys.argv[2:]))
