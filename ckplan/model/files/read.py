"""A file on disk becomes an `onnx_ir.Model`, or an error of one line that says what to do."""

from __future__ import annotations

import os
import stat
import warnings
from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir

from ckplan.arguments import path_of
from ckplan.display import did_you_mean, one_line
from ckplan.errors import ModelError
from ckplan.model.files.external import settle
from ckplan.model.normal_form.maps import with_scores
from ckplan.model.normal_form.sparse import has_sparse, mark_dense, write_dense
from ckplan.model.validity import CHECK_IT, check_names, check_tensors

_FOREIGN = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the model itself", "fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "is a zip archive (a PyTorch checkpoint?), not ONNX", "export it with torch.onnx.export"),
    (b"\x80\x02", "is a Python pickle, not ONNX", "export the model with torch.onnx.export"),
    (b"\x89HDF", "is an HDF5 file (Keras?), not ONNX", "convert it with tf2onnx"),
    (b"\x1f\x8b", "is compressed with gzip", "decompress it first"),
)

_SAVE_IT = "save the model as a file first"

_MAPS = "Map types are not supported"
"""What onnx-ir says of an output that is a map."""
_IN_MEMORY = "the model"
"""What messages call a model that is no file."""


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
    model = _parse(file)
    check_whole(model, file)
    settle(model, file)
    return model


def check_whole(model: ir.Model, name: Path | str = _IN_MEMORY) -> None:
    """See that a model has what every model has, and that each value is made that something reads.

    Args:
        model: as it was read, or given in memory.
        name: what messages call it.

    Raises:
        ModelError: it does not.
    """
    _check_graph(model, name)
    if (unmade := _read_of_nothing(model.graph)) is not None:
        node, value = unmade
        raise ModelError(
            f"{name} is not valid: {node.op_type} '{node.name}' reads '{value.name}', which nothing produces",
            CHECK_IT,
        )
    check_names(model, name)
    check_tensors(model, name)


def parse(file: Path) -> ir.Model:
    """Read an ONNX file as it stands, whatever its graph says; sparse tensors become dense.

    Raises:
        UsageError: no file system has such a name.
        ModelError: the file is missing, damaged or not ONNX.
    """
    return _parse(path_of("the model", file))


def read_proto(proto: onnx.ModelProto) -> ir.Model:
    """The model of a protocol buffer, which stays as it is; sparse tensors become dense, maps tensors of scores.

    Raises:
        ModelError: it is not valid, or onnx-ir does not know what it holds.
    """
    try:
        model = _model_of(proto, Path(), ours=False)
    except Exception as error:  # onnx-ir raises its own kinds, and Python's for what it did not expect
        raise ModelError(
            f"{_IN_MEMORY} is damaged or not an ONNX model ({_reason(error)})", "export it again"
        ) from error
    check_whole(model)
    return model


_Read = tuple[ir.Node, ir.Value]
"""A node, and a value that it reads."""


def _parse(file: Path) -> ir.Model:
    """The model of a file."""
    _check_plausible(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # onnx's, that one of its forms of text is new
            proto = onnx.load(file, load_external_data=False)
        model = _model_of(proto, file.parent)
    except OSError as error:
        raise ModelError(
            f"cannot read {file}: {error.strerror or error}", "check the path and its permissions"
        ) from None
    except Exception as error:  # protobuf, text parser and onnx-ir each raise their own kinds
        reason = _reason(error)
        raise ModelError(f"{file} is damaged or not an ONNX model ({reason})", "export or download it again") from error
    ir.external_data.set_base_dir(model.graph, file.parent)
    return model


def is_text(file: Path) -> bool:
    """Whether a file would be read as a model in text, which onnxruntime does not read: that goes by its name."""
    return onnx.serialization.registry.get_format_from_file_extension(file.suffix) not in (None, "protobuf")


def _model_of(proto: onnx.ModelProto, folder: Path, ours: bool = True) -> ir.Model:
    """The model of a protocol buffer, without what onnx-ir does not know: sparse tensors, outputs that are maps.

    Args:
        proto: the protocol buffer.
        folder: where its external data lie.
        ours: whether it may be changed.
    """
    counts: dict[str, str] = {}
    if has_sparse(proto):
        proto, ours = (proto if ours else _copied(proto)), True
        counts = write_dense(proto, folder)
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # which the caller tells of where this is nothing that can be read otherwise
        dense = with_scores(proto if ours else _copied(proto)) if _MAPS in _reason(error) else None
        if dense is None:
            raise
        model = dense
    mark_dense(model, counts)
    for value, declared in zip(model.graph.inputs, proto.graph.input, strict=True):
        if value.is_graph_output():  # onnx-ir goes by what stands at the output, which is often less
            ir.serde.deserialize_value_info_proto(declared, value)
    return model


def _copied(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


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


def _check_graph(model: ir.Model, file: Path | str) -> None:
    graph = model.graph
    if not graph.opset_imports:
        raise ModelError(f"{file} is not an ONNX model: it imports no operator set", "export or download it again")
    if len(graph) == 0:
        raise ModelError(f"{file} has no nodes", "export the model again, with its computation")
    if not graph.outputs:
        raise ModelError(f"{file} has no outputs", "export the model again, with its outputs")
    called = Counter(value.name for value in graph.inputs)
    if twice := next((name for name, count in called.items() if count > 1), None):
        raise ModelError(f"{file} is not valid: {called[twice]} of its inputs are called '{twice}'", CHECK_IT)
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
