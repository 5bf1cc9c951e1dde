"""Named arrays on disk, for passing between processes and for comparing without reading them whole.

One ``.npy`` per array instead of one ``.npz``, because only the former can be mapped; and raw bytes for the
types that numpy does not write (bfloat16, float8), which would come back as void.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ckplan.isolation.folders import no_room
from ckplan.isolation.open_files import make_room

Array = np.ndarray[Any, np.dtype[Any]]

DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError)
"""What reading a damaged ``.npz`` raises besides OSError, ValueError and EOFError."""

_RAW = {1: np.uint8, 2: np.uint16}


def is_exotic(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype comes from ml_dtypes (bfloat16, float8) and is unknown to numpy's own files."""
    return dtype.kind == "V" or dtype.type.__module__.startswith("ml_dtypes")


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype of a name such as ``float32`` or ``bfloat16``."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        exotic: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return exotic


def save_arrays(folder: Path, arrays: Mapping[str, Array] | Iterable[tuple[str, Array]]) -> None:
    """Write arrays into a new folder, one at a time, so that a generator of arrays needs room for only one.

    Args:
        folder: is made; its index lists the arrays in the order given.
        arrays: by name; names may hold any character.

    Raises:
        EnvironmentUnavailableError: the disk is full or not writable.
    """
    try:
        _write(folder, arrays.items() if isinstance(arrays, Mapping) else arrays)
    except OSError as error:
        raise no_room(error) from error


def _write(folder: Path, arrays: Iterable[tuple[str, Array]]) -> None:
    folder.mkdir(parents=True)
    index = []
    for number, (name, array) in enumerate(arrays):
        text = array.dtype.kind in "OUS"
        index.append({"name": name, "dtype": "text" if text else array.dtype.name})
        raw = array.view(_RAW[array.dtype.itemsize]) if is_exotic(array.dtype) else array
        np.save(folder / f"{number}.npy", raw.astype("U") if text else raw)
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")


def load_arrays(folder: Path, *, mapped: bool = False) -> dict[str, Array]:
    """Read what `save_arrays` wrote.

    Args:
        folder: the folder.
        mapped: map the files read-only instead of reading them.
    """
    arrays: dict[str, Array] = {}
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    if mapped:
        make_room(len(index))
    for number, entry in enumerate(index):
        raw = np.load(folder / f"{number}.npy", mmap_mode="r" if mapped else None)
        same = entry["dtype"] in ("text", raw.dtype.name)
        arrays[entry["name"]] = raw if same else raw.view(dtype_named(entry["dtype"]))
    return arrays
