"""What says which files belong together, and what is in them: manifest.json."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ckplan.arguments import path_of
from ckplan.errors import ModelError

NAME = "manifest.json"
SCHEMA = 1
FILES: Mapping[str, str] = {
    "training": "training.onnx",
    "evaluation": "evaluation.onnx",
    "update": "update.onnx",
    "checkpoint": "checkpoint.safetensors",
}
"""The files beside the manifest, by what they are for."""

_AGAIN = "make it again with `ckplan artifacts`"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Artifacts:
    """The files of a training loop.

    Attributes:
        folder: where they lie.
        manifest: what `manifest.json` says.
    """

    folder: Path
    manifest: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"<Artifacts in {self.folder}: {', '.join(self.manifest['files'])}>"

    def path(self, kind: str) -> Path:
        """The file that is for ``training``, ``evaluation`` or ``update``, or the ``checkpoint``."""
        return self.folder / str(self.manifest["files"][kind]["name"])

    @property
    def loss(self) -> str:
        """Name of the loss."""
        return str(self.manifest["loss"])

    @property
    def gradients(self) -> dict[str, str]:
        """Name of the gradient by name of the parameter."""
        return dict(self.manifest["gradients"])

    @cached_property
    def updates(self) -> dict[str, str]:
        """Name of the input that takes it in the next step, by name of the output with the new value."""
        return dict(self.manifest["updates"])


def hash_of(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def open_artifacts(folder: str | os.PathLike[str], model: str | os.PathLike[str] | None = None) -> Artifacts:
    """Read a manifest, and see that the files beside it are those that it describes.

    Args:
        folder: what `ckplan artifacts` wrote.
        model: the model that they are to be made from, if that is to be checked.

    Raises:
        ModelError: a file is missing, damaged or of another bundle, or the model is another one.
    """
    place = path_of("the folder", folder)
    made = Artifacts(place, _read(place / NAME))
    for kind, file in made.manifest["files"].items():
        path = made.path(kind)
        try:
            found = hash_of(path)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror or error}", _AGAIN) from None
        if found != file["sha256"]:
            raise ModelError(f"{path} is not the file that {place / NAME} describes", _AGAIN)
    if model is not None:
        _check_model(made, path_of("the model", model))
    return made


def _check_model(made: Artifacts, model: Path) -> None:
    try:
        found = hash_of(model)
    except OSError as error:
        raise ModelError(f"{model} cannot be read: {error.strerror or error}", "check the path") from None
    source = made.manifest["model"]
    if found != source.get("sha256"):
        raise ModelError(
            f"{made.folder / NAME} was made for another model, '{source['name']}', not for {model}", _AGAIN
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}", _AGAIN) from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: {error}", _AGAIN) from None
    if not isinstance(manifest, dict) or not _is_whole(manifest):
        raise ModelError(f"{path} is not a manifest of a bundle", _AGAIN)
    if manifest["schema"] != SCHEMA:
        raise ModelError(f"{path} has schema {manifest['schema']}, and this version reads {SCHEMA}", _AGAIN)
    return manifest


def _is_whole(manifest: Mapping[str, Any]) -> bool:
    """Whether what the checks and the loops read is there; file names may not lead elsewhere."""
    files, model = manifest.get("files"), manifest.get("model")
    if not isinstance(files, dict) or not isinstance(model, dict) or not isinstance(model.get("name"), str):
        return False
    described = all(
        isinstance(file, dict) and isinstance(file.get("sha256"), str) and file.get("name") == FILES.get(kind)
        for kind, file in files.items()
    )
    tables = all(isinstance(manifest.get(name), dict) for name in ("gradients", "updates"))
    return described and files.keys() == FILES.keys() and tables and {"schema", "loss"} <= manifest.keys()
