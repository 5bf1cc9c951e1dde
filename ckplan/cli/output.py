"""The file to write: checked before the work, not after it, and written with its weights where they belong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ckplan.arguments import file_to_write, path_of
from ckplan.cli.terminal.streams import details, notes, settings, stage
from ckplan.errors import EnvironmentUnavailableError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir


def check_apart(*outputs: Path | None) -> None:
    """Make sure that no two of the files that a command writes, where they are given, are one.

    Raises:
        UsageError: two are, by names that lead to one place.
    """
    seen = set()
    for path in filter(None, outputs):
        place = os.path.realpath(path)
        if place in seen:
            raise UsageError(f"two outputs are {path}", "give each a file of its own")
        seen.add(place)


def refuse_idle(*targets: Path | None, add: str = "-o", **given: bool) -> None:
    """See that no option about what is written is given where nothing is.

    Args:
        targets: what is to be written, None for what was not asked for.
        add: options that name such a file.
        given: options, by their names, and whether they are given.

    Raises:
        UsageError: one is given, and there is no target.
    """
    idle = [f"`--{name.replace('_', '-')}`" for name, is_given in given.items() if is_given]
    if idle and not any(targets):
        raise UsageError(f"{idle[0]} is about what is written, and nothing is", f"add {add}, or leave it out")


def check_output(output: Path, force: bool, *sources: Path | None) -> None:
    """Make sure that a file can be written once its contents are there.

    Args:
        output: the file to write.
        force: whether it may be overwritten.
        sources: files that are read, if they are given. Neither they nor data files of theirs may be the output.

    Raises:
        UsageError: the file exists and may not be overwritten, it is no regular file, its directory does not exist, or
            it is a source or holds weights of one.
        EnvironmentUnavailableError: the directory does not allow it.
    """
    path_of("the file to write", output)
    folder, read = output.parent, [source for source in sources if source is not None and source.exists()]
    if output.exists() and any(output.samefile(source) for source in read):
        raise UsageError(f"output {output} is a file that this command reads", "write to another file")
    target = file_to_write(output, force)
    if target.exists():
        from ckplan.model.files.external import data_files_of

        if any(target in data_files_of(source) for source in read):
            raise UsageError(f"output {output} holds weights that this command reads", "write to another file")
    if not os.access(folder, os.W_OK) or (output.exists() and not os.access(output, os.W_OK)):
        raise EnvironmentUnavailableError(f"no permission to write {output}", "write to another directory")
    from ckplan.isolation.folders import temporary_folder

    try:
        # What the permissions say is not all: there are file systems in which nobody can make a file.
        with temporary_folder(folder) as place:
            (place / output.name).touch()
    except (OSError, ValueError) as error:
        raise EnvironmentUnavailableError(
            f"cannot write {output}: {getattr(error, 'strerror', None) or error}", "write to another directory"
        ) from error


def check_model_output(output: Path, force: bool, *sources: Path | None) -> None:
    """The same of a file that is to be a model. See `check_output`.

    Raises:
        UsageError: as there, or it has a name by which it would be read as text.
        EnvironmentUnavailableError: as there.
    """
    from ckplan.model.files.saving import check_binary

    check_binary(output)
    check_output(output, force, *sources)


def written(model: ir.Model, output: Path, *, force: bool, copy_weights: bool) -> list[str]:
    """Write a model; returns what was said on stderr about where its weights are. See `ckplan.model.save`."""
    from ckplan.model import save
    from ckplan.units import format_bytes

    with stage(f"writing {output.name}") as tell:

        def progress(done: int, of: int) -> None:
            if not settings().verbose:
                bar = "━" * (20 * done // of)
                tell(f"copying weights {bar:─<20} {format_bytes(done)} of {format_bytes(of)}")
            elif done == of:
                details([f"copied {format_bytes(of)} of weights"])

        said = list(save(model, output, force=force, copy_weights=copy_weights, progress=progress))
    notes(said)
    return said
