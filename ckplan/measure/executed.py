"""What onnxruntime makes of a file: the graph that it executes, nodes in execution order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.measure.child import Channel
from ckplan.measure.process import run_job
from ckplan.measure.session import open_session
from ckplan.rewrite.runtime import mark_executed

_FILE = "executed.onnx"


def job(channel: Channel) -> None:
    """In the child: load the file as it is, and have onnxruntime write what it made of it into the folder asked for."""
    request = channel.request
    channel.progress("writing the optimised graph")
    open_session(
        request["path"],
        request["device"],
        threads=request["threads"],
        optimized=Path(request["folder"]) / _FILE,
    )


def executed_graph(model: ir.Model, request: Mapping[str, Any], folder: Path) -> ir.Model:
    """The graph that onnxruntime executes under default session options on the device of the request.

    Args:
        model: the file, read; it knows shapes that onnxruntime does not keep.
        request: ``path``, ``device``, ``threads``.
        folder: an empty folder for what onnxruntime writes; has to stay as long as the graph is in use.

    Raises:
        ModelError: onnxruntime does not load the file, or writes what cannot be read.
        EnvironmentUnavailableError: the device is not there, or the process ended early.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run_job("executed", {**request, "folder": str(folder)})
    try:
        executed = ir.load(folder / _FILE)
    except Exception as error:  # protobuf and onnx_ir raise anything
        raise ModelError(
            f"what onnxruntime wrote of its graph cannot be read ({type(error).__name__}: {error})"
        ) from error
    mark_executed(executed, model)
    return executed
