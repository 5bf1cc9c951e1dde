"""Runs a function in a process forked off this one: the counters of an allocator begin anew there."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any


class ForkError(Exception):
    """The function failed, or the process died."""


def forked(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, which has to be JSON-ready, from a process of its own.

    Raises:
        ForkError: the function raised, or the process died.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            told = {"result": function(*arguments)}
        except BaseException as error:  # raised again in the parent
            told = {"error": traceback.format_exception_only(error.__cause__ or error)[-1].strip()}
        with os.fdopen(writer, "w") as stream:
            stream.write(json.dumps(told))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    told = json.loads(text) if text else {"error": "the process died"}
    if "error" in told:
        raise ForkError(told["error"])
    return told["result"]


def workspace_seen(content: bytes, feeds: dict[str, Any], probed: str) -> int:
    """Bytes by which the arena's high-water stands above what is in use when a node has run; none is wasted.

    Args:
        content: the model; another node has to run before, as the first high-water covers the making of the session.
        feeds: its inputs.
        probed: name of the node.
    """
    return int(forked(_workspace_seen, content, feeds, probed))


def _workspace_seen(content: bytes, feeds: dict[str, Any], probed: str) -> int:
    import tempfile
    from pathlib import Path

    from ckplan.meter.running.session import open_session

    with tempfile.TemporaryDirectory() as folder:
        session, _ = open_session(
            content, "cpu", order="priority", threads=2, profile=Path(folder) / "profile", cut=True
        )
        session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    (counted,) = (event["args"] for event in events if event["name"] == f"{probed}_kernel_time")
    return int(counted["mem_in_use_peak"]) - int(counted["mem_bytes_in_use"])
