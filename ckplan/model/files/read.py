"""A file on disk becomes an `onnx_ir.Model`, or an error of one line that says what to do."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

import onnx
import onnx_ir as ir

from ckplan.arguments import path_of
from ckplan.display import did_you_mean, one_line
from ckplan.errors import ModelError
from ckplan.model.files.external import settle
from ckplan.model.normal_form.maps import read_scores, with_scores
from ckplan.model.normal_form.sparse import read_dense
from ckplan.model.validity import CHECK_IT, check_names, check_tensors

_FOREIGN = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the model itself", "fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "is a zip archive (a PyTorch checkpoint?), not ONNX", "export it with torch.onnx.export"),
    (b"\x80\x02", "is a Python pickle, not ONNX", "export the model with torch.onnx.export"),
    (b"\x89HDF", "is an HDF5 file (Keras?), not ONNX", "convert it with tf2onnx"),
    (b"\x1f\x8b", "is compressed with gzip", "decompress it first"),
)

_SAVE_IT = "save the model as a file first"

_SPARSE = "Sparse tensors are not supported"
"""What onnx-ir says of a Constant with one."""
_MAPS = "Map types are not supported"
"""What it says of an output that is a map."""


def read(path: str | os.PathLike[str]) -> ir.Model:
    """Read an ONNX file; tensors in external data files stay on disk until they are used.

    Args:
        path: a binary ONNX file, or one in a text form that `onnx.load` knows by its suffix.

    Raises:
        ModelError: the file is missing, damaged, not ONNX, has no nodes, reads a value that nothing produces, or
            its external data are not where they must be (see `ckplan.model.files.external`). The message names the file
            and the remedy.
    """
    file = path_of("the model", path)
    model, unmade = _parse(file)
    _check_graph(model, file)
    if unmade is not None:
        node, value = unmade
        raise ModelError(
            f"{file} is not valid: {node.op_type} '{node.name}' reads '{value.name}', which nothing produces",
            CHECK_IT,
        )
    check_names(model, file)
    check_tensors(model, file)
    settle(model, file)
    return model


def parse(file: Path) -> ir.Model:
    """Read an ONNX file as it stands, whatever its graph says; sparse tensors become dense.

    Raises:
        UsageError: no file system has such a name.
        ModelError: the file is missing, damaged or not ONNX.
    """
    return _parse(path_of("the model", file))[0]


def read_proto(proto: onnx.ModelProto) -> ir.Model:
    """The model of a protocol buffer; outputs that are maps become tensors of scores.

    Raises:
        ModelError: onnx-ir does not know what it holds.
    """
    try:
        return ir.from_proto(proto)
    except Exception as error:  # onnx-ir raises its own kinds, and Python's for what it did not expect
        reason = _reason(error)
        if _MAPS in reason:
            copy = type(proto)()
            copy.CopyFrom(proto)
            if (model := with_scores(copy)) is not None:
                return model
        raise ModelError(f"the model is damaged or not an ONNX model ({reason})", "export it again") from error


_Read = tuple[ir.Node, ir.Value]
"""A node, and a value that it reads."""


def _parse(file: Path) -> tuple[ir.Model, _Read | None]:
    """The model of a file, and where it reads a value that nothing produces."""
    _check_plausible(file)
    try:
        return _load(file)
    except OSError as error:
        raise ModelError(
            f"cannot read {file}: {error.strerror or error}", "check the path and its permissions"
        ) from None
    except Exception as error:  # protobuf, text parser and onnx-ir each raise their own kinds
        reason = _reason(error)
        raise ModelError(f"{file} is damaged or not an ONNX model ({reason})", "export or download it again") from error


def is_text(file: Path) -> bool:
    """Whether a file would be read as a model in text, which onnxruntime does not read: that goes by its name."""
    return onnx.serialization.registry.get_format_from_file_extension(file.suffix) not in (None, "protobuf")


def _load(file: Path) -> tuple[ir.Model, _Read | None]:
    """Read a file; once more where onnx-ir refused an output that is a map, or refused or left out a sparse tensor."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # onnx's, that one of its forms of text is new
            model = ir.load(file)
    except Exception as error:  # as in `_parse`, which tells of it where the file cannot be read otherwise either
        reason = _reason(error)
        dense = read_dense(file) if _SPARSE in reason else read_scores(file) if _MAPS in reason else None
        if dense is None:
            raise
    else:
        unmade = _read_of_nothing(model.graph)
        dense = None if unmade is None else read_dense(file)
        if dense is None:
            return model, unmade
    return dense, _read_of_nothing(dense.graph)


def _reason(error: BaseException) -> str:
    while earlier := error.__cause__ or error.__context__:
        error = earlier
    return one_line(error)


def _read_of_nothing(graph: ir.Graph) -> _Read | None:
    """The first node that reads a value that nothing produces, with that value."""
    for node in ir.traversal.RecursiveGraphIterator(graph):
        for value in node.inputs:
            if value is not None and not _is_made(value):
                return node, value
    return None


def _is_made(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _check_plausible(file: Path) -> None:
    if file.is_dir():
        raise ModelError(f"{file} is a directory", "name the .onnx file inside it")
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for, and can be read only once
            raise ModelError(f"{file} is not a regular file", _SAVE_IT)
        with file.open("rb") as stream:
            head = stream.read(64)
    except FileNotFoundError:
        if str(file) == "-":
            raise ModelError("a model is not read from stdin", _SAVE_IT) from None
        raise ModelError(f"no such file: {file}", _near(file) or "check the path") from None
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}", "check the path and its permissions") from None
    if status.st_size == 0:
        raise ModelError(f"{file} is empty", "export or download it again")
    for magic, what, hint in _FOREIGN:
        if head.startswith(magic):
            raise ModelError(f"{file} {what}", hint)
    if head[4:8] == b"ORTM":
        raise ModelError(f"{file} is in onnxruntime's ORT format, which cannot be edited", "give the .onnx file")


def _near(file: Path) -> str:
    """A question for the ONNX files that lie where a file should be and are called nearly like it."""
    return did_you_mean(file.stem, (path.stem for path in file.parent.glob("*.onnx")), ending=".onnx")


def _check_graph(model: ir.Model, file: Path) -> None:
    graph = model.graph
    if not graph.opset_imports:
        raise ModelError(f"{file} is not an ONNX model: it imports no operator set", "export or download it again")
    if len(graph) == 0:
        raise ModelError(f"{file} has no nodes", "export the model again, with its computation")
    if not graph.outputs:
        raise ModelError(f"{file} has no outputs", "export the model again, with its outputs")
    for node in ir.traversal.RecursiveGraphIterator(graph):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.UNDEFINED:
                raise ModelError(
                    f"{file} is not valid: attribute '{attribute.name}' of {node.op_type} '{node.name}' has no type",
                    CHECK_IT,
                )
    for output in graph.outputs:
        if not _is_made(output):
            raise ModelError(
                f"{file} is not valid: nothing produces its output '{output.name}'", "export or download it again"
            )
