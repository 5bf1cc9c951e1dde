"""Files beside a temporary folder that go with it if its process is killed: data files that no model names.

A model and its data file cannot be put in their places at once. What may be left over if the writer is killed in
between is noted in the temporary folder first, and whoever removes the folder removes it, too.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_NOTE = ".ckplan-claims"


def claim(folder: Path, model: str, files: Iterable[Path]) -> None:
    """Note in a temporary folder what goes with it unless a model beside it names it.

    Args:
        folder: the temporary folder.
        model: name of the file beside the folder that is going to name some of them.
        files: data files in the folder that are going to be moved beside it, and such that lie there.
    """
    known = [(file.name, (told := file.stat()).st_dev, told.st_ino) for file in files]
    (folder / _NOTE).write_text(json.dumps({"model": model, "files": known}), encoding="utf-8")


def remove_claimed(folder: Path) -> None:
    """Remove what an abandoned temporary folder claims.

    A note may have come with a folder of somebody else's: it has to know a file by its number in the file system.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        note = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        for name, device, inode in note["files"]:
            file = folder.parent / name
            told = file.lstat()
            known = stat.S_ISREG(told.st_mode) and (told.st_dev, told.st_ino) == (device, inode)
            if file.parent == folder.parent and known and not is_named(file, folder.parent / note["model"]):
                file.unlink()


def is_named(data: Path, *models: Path) -> bool:
    """Whether one of some models, or of those beside a data file, names it."""
    for model in {*models, *data.parent.glob("*.onnx")}:
        with (
            suppress(OSError, ValueError),
            model.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if content.find(os.fsencode(data.name)) >= 0:
                return True
    return False
