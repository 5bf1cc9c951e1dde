"""The loop in Python, over nothing but numpy and onnxruntime: python -m examples.loops.train DIR BATCHES STEPS."""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime

from examples.loops.safetensors import tensors


def train(folder: Path, batches: dict[str, np.ndarray], steps: int) -> Iterator[float]:
    """Train on batch after batch, from the first again after the last; yields each loss."""
    manifest = json.loads((folder / "manifest.json").read_text())
    data = {kind: (folder / file["name"]).read_bytes() for kind, file in manifest["files"].items()}
    for kind, file in manifest["files"].items():
        if hashlib.sha256(data[kind]).hexdigest() != file["sha256"]:
            raise ValueError(f"{file['name']} is not the file that manifest.json describes")
    sessions = [onnxruntime.InferenceSession(data[kind]) for kind in ("training", "update")]
    values = {state["name"]: np.zeros(state["shape"], state["dtype"]) for state in manifest["states"]}
    values |= tensors(data["checkpoint"])
    for step in range(steps):
        values |= {name: array[step % len(array)] for name, array in batches.items()}
        for session in sessions:
            made = session.run(None, {value.name: values[value.name] for value in session.get_inputs()})
            names = [manifest["updates"].get(value.name, value.name) for value in session.get_outputs()]
            values |= zip(names, made, strict=True)
        yield float(values[manifest["loss"]])


if __name__ == "__main__":
    try:
        for loss in train(Path(sys.argv[1]), tensors(Path(sys.argv[2]).read_bytes()), int(sys.argv[3])):
            print(loss)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
