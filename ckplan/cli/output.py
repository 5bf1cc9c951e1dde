"""The file to write: checked before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from ckplan.errors import EnvironmentUnavailableError, UsageError


def check_output(output: Path, force: bool, *sources: Path) -> None:
    """Make sure that a file can be written once its contents are there.

    Args:
        output: the file to write.
        force: whether it may be overwritten.
        sources: files that are read, and must not be the output.

    Raises:
        UsageError: the file exists and may not be overwritten, its directory does not exist, or it is a source.
        EnvironmentUnavailableError: the directory does not allow it.
    """
    folder = output.parent
    if output.is_dir():
        raise UsageError(f"output {output} is a directory", "name a file in it")
    if not folder.is_dir():
        raise UsageError(f"directory {folder} does not exist", "create it first")
    if output.exists():
        if any(source.exists() and output.samefile(source) for source in sources):
            raise UsageError(f"output {output} is the model that is read", "write to another file")
        if not force:
            raise UsageError(f"{output} exists", "pass --force to overwrite it")
    if not os.access(folder, os.W_OK) or (output.exists() and not os.access(output, os.W_OK)):
        raise EnvironmentUnavailableError(f"no permission to write {output}", "write to another directory")
