"""Models as a user gives them: files, protobufs, or in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir

from ckplan.errors import ModelError, UsageError
from ckplan.model import ForwardModel, load
from ckplan.model.files.external import data_files
from ckplan.model.files.read import check_whole, read, read_proto
from ckplan.model.loading import normalise
from ckplan.pipeline.options import StepOptions

if TYPE_CHECKING:
    import onnx

Source: TypeAlias = "str | os.PathLike[str] | ir.Model | onnx.ModelProto"
"""A model, or where it is: a path, a protobuf, or the IR's form of it."""


def model_of(source: Source) -> ir.Model:
    """A model as it came, read if it is a file.

    Raises:
        ModelError: the file cannot be read, the model in memory is not valid, or a data file of it is not there.
        UsageError: it is no model at all.
    """
    if isinstance(source, str | os.PathLike):
        return read(source)
    if isinstance(source, ir.Model):
        check_whole(source)
        model = source.clone()
    else:
        _check_kind(source)
        model = read_proto(source)
    lacking = sorted(file for file in data_files(model) if not file.is_file())
    if lacking:  # a protobuf does not tell where it was read from
        raise ModelError(
            f"the model in memory keeps its weights in {lacking[0]}, which does not exist",
            "give the path of the model, or load its data as well",
        )
    return model


def _check_kind(source: Any) -> None:
    if not hasattr(source, "graph"):
        raise UsageError(
            f"a value of type {type(source).__name__} is no model",
            "give its attribute `model`"
            if hasattr(source, "model")
            else "give a path, an onnx.ModelProto or an onnx_ir.Model",
        )


def name_of(source: Source) -> str:
    """What to call a model: by its file, else by its graph.

    Raises:
        UsageError: it is no model at all.
    """
    if isinstance(source, str | os.PathLike):
        return Path(source).name
    _check_kind(source)
    return source.graph.name or "model"


def forward_of(source: Source, options: StepOptions) -> ForwardModel:
    """A model in normal form, read if it is a file.

    Raises:
        ModelError: it cannot be read or shaped.
        UsageError: sizes do not fit the model.
    """
    sizes: dict[str, Any] = {"dims": options.dims, "shapes": options.shapes, "training": options.option("training")}
    sizes["fixed"] = options.fixed
    if isinstance(source, str | os.PathLike):
        return load(source, **sizes)
    return normalise(model_of(source), Path(f"{name_of(source)}.onnx"), **sizes)
