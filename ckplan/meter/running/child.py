"""Entry point of the processes that run models: ``python -m ckplan.meter.running.child PARENT FOLDER``.

A model is run away from the caller's process for three reasons: a crash or an out-of-memory kill costs one
figure and not the program; memory is counted from a clean start; and onnxruntime's log lines go to a file
instead of the user's terminal. The folder holds ``request.json`` on the way in, and ``result.json`` or
``error.json`` on the way out, with ``progress.jsonl`` to tell how far a process came that could write neither.

A job is a module with a function ``job``, requested by the module's name: a process imports its own only, since some
need much that the others do not.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ckplan.errors import CkplanError
from ckplan.isolation.folders import take_place_of_parent
from ckplan.isolation.lifetime import end_with
from ckplan.operators.sessions import use_custom_ops


class Channel:
    """What a job has to talk to its parent: its request, its folder, progress, and for dialogues a pair of pipes."""

    def __init__(self, folder: Path, replies: IO[str]) -> None:
        self.folder = folder
        self.request: dict[str, Any] = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        self._replies = replies

    def progress(self, stage: str, **learnt: Any) -> None:
        """Note that a stage begins, and what is known by now; survives a crash of the stage."""
        learnt["resident"] = resident_bytes()
        with (self.folder / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": stage, "learnt": learnt}) + "\n")

    def reply(self, message: Any) -> None:
        """Answer a line of the parent's."""
        self._replies.write(json.dumps(message) + "\n")
        self._replies.flush()


def resident_bytes() -> int:
    """Resident memory of this process, in bytes."""
    import psutil  # type: ignore[import-untyped,unused-ignore]

    return int(psutil.Process().memory_info().rss)


def _describe(error: BaseException) -> dict[str, Any]:
    """An exception as the parent wants it: a kind, one line, and a hint."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, CkplanError):
        return {"kind": "ckplan", "type": type(error).__name__, "message": error.message, "hint": error.hint}
    out_of_memory = isinstance(error, MemoryError) or "Failed to allocate memory" in text or "bad_alloc" in text
    kind = "memory" if out_of_memory else "model" if "onnxruntime" in type(error).__module__ else "other"
    return {"kind": kind, "type": type(error).__name__, "message": text, "hint": ""}


def main(parent: int, folder: Path) -> int:
    """Run the job that the folder requests; 0 if it succeeded, 1 if it told why not."""
    end_with(parent)
    take_place_of_parent()
    # Libraries print to stdout (onnxruntime's CUDA loader does): keep the pipe to the parent away from them.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    channel = Channel(folder, replies)
    try:
        for library in channel.request["custom_ops"]:
            use_custom_ops(library)
        job: Callable[[Channel], Any] = importlib.import_module(channel.request["job"]).job
        result = job(channel)
    except Exception as error:  # the parent turns every failure into a typed error
        (folder / "error.json").write_text(json.dumps(_describe(error)), encoding="utf-8")
        if not isinstance(error, CkplanError):
            import traceback

            traceback.print_exc()
        return 1
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
