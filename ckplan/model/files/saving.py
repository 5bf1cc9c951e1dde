"""Write a model whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from ckplan.arguments import check_flag, file_to_write, path_of
from ckplan.errors import EnvironmentUnavailableError, ModelError, UsageError
from ckplan.isolation.claims import claim, is_named
from ckplan.isolation.folders import is_temporary, temporary_folder
from ckplan.model.files.external import data_files, data_files_of
from ckplan.model.files.read import is_text
from ckplan.model.files.weights import Progress, place


def _silent(done: int, of: int) -> None:
    pass


def check_binary(path: Path) -> None:
    """See that a model may have a name: by its ending, readers would take some for text, which this one is not.

    Raises:
        UsageError: it ends as models in text do.
    """
    if is_text(path):
        raise UsageError(
            f"{path} would be read as text, and onnxruntime runs only models that are written in binary",
            "let its name end with .onnx",
        )


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    copy_weights: bool = False,
    progress: Progress = _silent,
) -> tuple[str, ...]:
    """Write `model` to `path`; weights that lie in data files are read or copied only where there is no other way.

    A data file in the folder of `path` is referred to; of another, `<path>.data` shares the bytes if the file system
    can, else it is a copy of what is used (see `ckplan.model.files.weights`).

    Everything is written beside the target under a temporary name and then renamed, so that an interrupted or failed
    write leaves what was there untouched. A data file that exists is never written to or replaced, since tensors in
    memory may be mapped from it: the new one gets the next free name (`<path>.1.data`), and the data file of the
    model that was overwritten is removed only if this function named it and neither `model` nor another model in
    that folder reads from it. If the process is killed, the next one that writes in that folder removes what it left.

    Args:
        model: left unchanged; as `ckplan.model.files.read` gives it, or made from such a one.
        path: a file name; its directory must exist.
        force: overwrite an existing file.
        copy_weights: copy the weights in any case, so that the new file depends on no other's.
        progress: called with bytes of weights copied and bytes to copy.

    Returns:
        Notes: where the weights lie, if not in the file.

    Raises:
        UsageError: the file exists and `force` is not given, the path cannot be a file, weights of the model lie
            there, another process has made a file of that name, or of its data file's, in the meantime, or the name
            ends as those of models in text do, or an argument is of another kind.
        EnvironmentUnavailableError: no permission, or no space left.
        ModelError: the model cannot be serialised.
    """
    if not isinstance(model, ir.Model):
        raise UsageError(
            f"a value of type {type(model).__name__} is no onnx_ir.Model",
            "give the `model` of a step or plan; onnx.save writes an onnx.ModelProto",
        )
    check_flag("`force`", force)
    check_flag("`copy_weights`", copy_weights)
    asked = path_of("the file to write", path)
    check_binary(asked)
    target = file_to_write(asked, force)
    if target in data_files(model):
        raise UsageError(f"{path} holds weights that the model reads", "write to another file")
    stale = _own_data_files(target) if target.exists() else set()
    cleaning = contextlib.ExitStack()
    try:
        workspace = cleaning.enter_context(temporary_folder(target.parent))
    except OSError as error:
        raise _environment(error, target) from error
    moved: list[Path] = []
    try:
        placed = model.clone()
        notes = place(placed, target, workspace, copy_weights, progress)
        ir.save(placed, workspace / target.name, format="protobuf")
        files = sorted(workspace.iterdir())
        for file in files:
            _sync(file)
        data = [file for file in files if file.name != target.name]
        if data or stale:
            claim(workspace, target.name, [*data, *stale])
        for file in data:
            _move(file, target.parent / file.name, over=False)
            moved.append(target.parent / file.name)
        _move(workspace / target.name, target, over=force)
        moved.clear()
        _remove_unread(stale, model)
    except OSError as error:
        raise _environment(error, target) from error
    except (EnvironmentUnavailableError, UsageError):
        raise
    except Exception as error:  # protobuf: ValueError or EncodeError
        raise ModelError(
            f"the model cannot be written to {target} ({error})", "see whether it passes onnx.checker"
        ) from error
    finally:
        for file in moved:
            file.unlink(missing_ok=True)
        cleaning.close()
    return notes


def _remove_unread(files: Iterable[Path], model: ir.Model) -> None:
    """Remove data files that neither a model in memory reads nor one beside them names."""
    in_use = data_files(model)
    for file in files:
        if file not in in_use and not is_named(file):
            with contextlib.suppress(OSError):
                file.unlink()


def write_text(text: str, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a text file whole or not at all.

    Args:
        text: what to write, in UTF-8.
        path: a file name; its directory must exist.
        force: overwrite an existing file.

    Raises:
        UsageError: the file exists and `force` is not given, also where another process has made it in the meantime,
            or the path cannot be a file.
        EnvironmentUnavailableError: no permission, or no space left.
    """
    target = file_to_write(path_of("the file to write", path), force)
    try:
        with temporary_folder(target.parent) as workspace:
            (workspace / target.name).write_text(text, encoding="utf-8")
            _move(workspace / target.name, target, over=force)
    except OSError as error:
        raise _environment(error, target) from error


def _move(file: Path, target: Path, *, over: bool) -> None:
    """Give a file its place.

    Args:
        file: of the same file system.
        target: where it is to be.
        over: whether it may take the place of what is there.

    Raises:
        UsageError: it may not, and another process has made something there since the name was looked at.
    """
    if over:
        file.replace(target)
        return
    try:
        os.link(file, target)  # a rename would take the place of what is there
    except FileExistsError as error:
        raise UsageError(f"another process has made {target} in the meantime", "name another file") from error
    except OSError:  # a file system without hard links
        file.rename(target)
    else:
        file.unlink()


def _own_data_files(target: Path) -> set[Path]:
    """Data files that the model at `target` reads and that bear a name of the form this module gives."""
    named = {
        file for file in target.parent.iterdir() if file.name.startswith(f"{target.name}.") and file.suffix == ".data"
    }
    return named & data_files_of(target) if named else set()


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _environment(error: OSError, target: Path) -> EnvironmentUnavailableError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        elsewhere = "set TMPDIR to another folder" if is_temporary(target) else "write elsewhere"
        return EnvironmentUnavailableError(f"no space left to write {target}", f"free some, or {elsewhere}")
    too_large = error.errno == errno.EFBIG
    return EnvironmentUnavailableError(
        f"cannot write {target}: {error.strerror or error}",
        "let files be larger with `ulimit -f unlimited`" if too_large else "check the permissions of its directory",
    )
