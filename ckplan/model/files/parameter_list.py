"""The names of a module's parameters, read from a list or from a file that holds their values."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

from ckplan.display import one_line
from ckplan.errors import EnvironmentUnavailableError, ModelError

_SAFETENSORS_HEADER = 100 << 20
"""The longest header that the format allows, in bytes."""


def read_names(path: Path) -> tuple[str, ...]:
    """Read names of parameters; of files with values only the names are read where the format allows it.

    Args:
        path: ``.safetensors``, ``.npz``, a state dict of torch (``.pt``, ``.pth``, ``.bin``), ``.json`` (a list, or an
            object whose keys are the names), or a text of one name a line, in which ``#`` begins a comment.

    Raises:
        ModelError: the file is missing, damaged or empty.
        EnvironmentUnavailableError: it is a state dict of torch and torch is not installed.
    """
    readers = {
        ".safetensors": _safetensors,
        ".npz": _arrays,
        ".json": _json,
        **dict.fromkeys((".pt", ".pth", ".bin"), _state_dict),
    }
    try:
        names = readers.get(path.suffix.lower(), _lines)(path)
    except FileNotFoundError:
        raise ModelError(f"`--params {path}`: no such file", "check the path") from None
    except OSError as error:
        raise ModelError(f"`--params {path}` cannot be read: {error.strerror or error}", "check the path") from None
    except (ValueError, TypeError, zipfile.BadZipFile, RuntimeError, struct.error) as error:
        reason = one_line(error)
        raise ModelError(
            f"`--params {path}` is damaged or of another format ({reason})", "give a list of names"
        ) from None
    if not names:
        raise ModelError(f"`--params {path}` names nothing", "give one name a line")
    return tuple(names)


def _lines(path: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8-sig").splitlines())
    return [line for line in lines if line]


def _json(path: Path) -> list[str]:
    names = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(names, list | dict) or not all(isinstance(name, str) for name in names):
        raise TypeError("neither a list of names nor an object")
    return list(names)


def _safetensors(path: Path) -> list[str]:
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= _SAFETENSORS_HEADER:
            raise ValueError(f"its header would have {length} bytes")
        header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise TypeError("its header is no object")
    return [name for name in header if name != "__metadata__"]


def _arrays(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def _state_dict(path: Path) -> list[str]:
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        import torch
    except ModuleNotFoundError:
        raise EnvironmentUnavailableError(
            f"`--params {path}` is a state dict of torch, which is not installed", "give a list of names"
        ) from None
    import pickle

    try:
        state = torch.load(path, map_location="meta", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(state, dict):
        raise TypeError("no state dict")
    return [str(name) for name in state]
