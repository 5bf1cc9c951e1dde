"""Write a model whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

import onnx_ir as ir

from ckplan.errors import EnvironmentUnavailableError, ModelError, UsageError
from ckplan.model.read import external_tensors

# protobuf's limit is 2 GiB; what is not a weight needs room too.
MAX_INLINE_BYTES = 1_900_000_000


def save(model: ir.Model, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write `model` to `path`, with its weights in `<path>.data` when they are large or came from such a file.

    Everything is written beside the target under a temporary name and then renamed, so that an interrupted or failed
    write leaves what was there untouched. A data file that exists is never written to or replaced, since tensors in
    memory may be mapped from it: the new one gets the next free name (`<path>.1.data`), and the data file of the
    model that was overwritten is removed only if this function named it and `model` does not read from it.

    Args:
        model: left unchanged.
        path: a file name; its directory must exist.
        force: overwrite an existing file.

    Raises:
        UsageError: the file exists and `force` is not given, or the path cannot be a file.
        EnvironmentUnavailableError: no permission, or no space left.
        ModelError: the model cannot be serialised.
    """
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{target} is a directory", "name a file in it")
    if target.exists() and not force:
        raise UsageError(f"{target} exists", "give another name, or --force to overwrite it")
    target = target.resolve()
    if target.exists() and not target.is_file():
        raise UsageError(f"{target} is not a regular file", "name a file")
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {target.parent}", "create it first")

    external = _wants_external(model)
    stale = _own_data_files(target) if target.exists() else set()
    data_name = _free_data_name(target) if external else None
    try:
        workspace = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise _environment(error, target) from error
    moved: Path | None = None
    try:
        ir.save(model, workspace / target.name, format="protobuf", external_data=data_name)
        for file in workspace.iterdir():
            _sync(file)
        if data_name is not None and (workspace / data_name).exists():
            (workspace / data_name).rename(target.parent / data_name)
            moved = target.parent / data_name
        (workspace / target.name).replace(target)
        moved = None
    except OSError as error:
        raise _environment(error, target) from error
    except Exception as error:  # protobuf: ValueError or EncodeError
        raise ModelError(
            f"the model cannot be written to {target} ({error})", "see whether it passes onnx.checker"
        ) from error
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
        if moved is not None:
            moved.unlink(missing_ok=True)
    in_use = {os.path.realpath(tensor.path) for tensor in external_tensors(model)}
    for file in stale:
        if str(file) not in in_use and file.name != data_name:
            with contextlib.suppress(OSError):
                file.unlink()


def write_text(text: str, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a text file whole or not at all.

    Args:
        text: what to write, in UTF-8.
        path: a file name; its directory must exist.
        force: overwrite an existing file.

    Raises:
        UsageError: the file exists and `force` is not given, or it is no regular file.
        EnvironmentUnavailableError: no permission, or no space left.
    """
    target = Path(path)
    if target.exists() and not force:
        raise UsageError(f"{target} exists", "give another name, or --force to overwrite it")
    target = target.resolve()
    if target.exists() and not target.is_file():
        raise UsageError(f"{target} is not a regular file", "name a file")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise _environment(error, target) from error
    finally:
        temporary.unlink(missing_ok=True)


def _wants_external(model: ir.Model) -> bool:
    if any(True for _ in external_tensors(model)):
        return True
    tensors = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None) > MAX_INLINE_BYTES


def _free_data_name(target: Path) -> str:
    number = 0
    while True:
        name = f"{target.name}.{number}.data" if number else f"{target.name}.data"
        if not os.path.lexists(target.parent / name):
            return name
        number += 1


def _own_data_files(target: Path) -> set[Path]:
    """Data files that the model at `target` reads and that bear a name of the form this module gives."""
    try:
        old = ir.load(target)
    except Exception:  # whatever it is, it is about to be overwritten
        return set()
    files = {Path(os.path.realpath(tensor.path)) for tensor in external_tensors(old)}
    return {
        file
        for file in files
        if file.parent == target.parent and file.name.startswith(f"{target.name}.") and file.suffix == ".data"
    }


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _environment(error: OSError, target: Path) -> EnvironmentUnavailableError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentUnavailableError(f"no space left to write {target}", "free some, or write elsewhere with -o")
    return EnvironmentUnavailableError(
        f"cannot write {target}: {error.strerror or error}", "check the permissions of its directory"
    )
