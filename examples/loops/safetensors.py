"""Reads what `ckplan artifacts` writes as its checkpoint; writes batches in the same format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

TYPES = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}


def tensors(data: bytes) -> dict[str, np.ndarray]:
    """The tensors of a file by name."""
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, about in json.loads(data[8:start]).items():
        begin, end = (start + place for place in about["data_offsets"])
        found[name] = np.frombuffer(data[begin:end], TYPES[about["dtype"]]).reshape(about["shape"])
    return found


def write(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Write a file of arrays, float32 or int64; those of eight bytes an element first, so that all lie aligned."""
    kinds = {dtype: name for name, dtype in TYPES.items()}
    order = sorted(arrays.items(), key=lambda entry: -entry[1].dtype.itemsize)
    header, place = {}, 0
    for name, array in order:
        place, begin = place + array.nbytes, place
        header[name] = {"dtype": kinds[array.dtype], "shape": array.shape, "data_offsets": [begin, place]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for _, array in order))
