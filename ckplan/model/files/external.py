"""Tensors whose data lie in other files: where they may lie, and whether they are there.

Exporters write every large tensor beside the file, and a model hub keeps model and data as links into a store of its
own. A tensor is held to that when the model is read, once; what is kept is the path of the file that holds its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.isolation.open_files import make_room

_SMALL = 1024
_SMALL_INTEGERS = 1 << 16
_AGAIN = "download or export it again"


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Yield every tensor of the model, of its bodies and of its functions whose data lie in another file."""
    found: list[ir.ExternalTensor] = []

    def note(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
        found.append(tensor)
        return tensor

    replace_external(model, note)
    yield from found


def data_files(model: ir.Model) -> set[Path]:
    """The data files that a model in memory reads, links resolved."""
    return {Path(os.path.realpath(tensor.path)) for tensor in external_tensors(model)}


def data_files_of(file: Path) -> set[Path]:
    """The data files that the model at a path reads, links resolved; none if it is no model."""
    try:
        return data_files(ir.load(file))
    except Exception:  # protobuf, onnx-ir and the system each have their own for a damaged file
        return set()


def settle(model: ir.Model, file: Path) -> None:
    """Hold the external tensors of a model against their data files, and give them the paths of these, in place.

    Data may lie in the model's folder, in the folder of what the model is a link to, and in the store of a hub's cache
    (``snapshots/x/model.onnx_data`` is a link to ``../../blobs/...``); hard links are files like any other. No data are
    read.

    Args:
        model: as read from `file`.
        file: where the model lies.

    Raises:
        ModelError: a data file is missing, unreadable or too short, lies elsewhere, or two tensors of it overlap.
    """
    allowed = _folders(file)
    sizes: dict[str, int] = {}
    ranges: dict[str, dict[tuple[int, int], str]] = {}

    def settled(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
        path = _path(tensor, file, allowed)
        if path not in sizes:
            sizes[path] = _size(path, tensor, file)
        start, end = _range(tensor, sizes[path], file)
        if start == end:  # there is nothing to be mapped, and onnx-ir tries to each time that it is asked for bytes
            return ir.tensor(np.empty(tensor.shape.numpy(), tensor.dtype.numpy()), tensor.dtype, name=tensor.name)
        ranges.setdefault(path, {})[start, end] = str(tensor.name)
        return ir.ExternalTensor(
            path,
            start,
            end - start,
            tensor.dtype,
            shape=ir.Shape(tensor.shape),
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )

    replace_external(model, settled)
    make_room(sum(map(len, ranges.values())))
    for path, found in ranges.items():
        last: tuple[int, int, str] = (0, 0, "")
        for (start, end), name in sorted(found.items()):
            if start < last[1]:
                raise ModelError(
                    f"tensors '{last[2]}' ({last[0]} to {last[1]}) and '{name}' ({start} to {end}) of {file} "
                    f"overlap in the bytes of {path}",
                    _AGAIN,
                )
            last = start, end, name


def take_in_small(model: ir.Model) -> None:
    """Read the small external tensors of a model into it, in place: onnxruntime takes no shape from another file."""

    def read(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
        if tensor.nbytes > (_SMALL if tensor.dtype.is_floating_point() else _SMALL_INTEGERS):
            return tensor
        return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, shape=ir.Shape(tensor.shape), name=tensor.name)

    replace_external(model, read)


def in_one_folder(model: ir.Model) -> str:
    """Name the data files of a model by their way from one folder, in place, which onnxruntime can be told.

    Args:
        model: as `settle` left it; is for being serialised only, afterwards.

    Returns:
        The folder; empty if no data lie outside.
    """
    take_in_small(model)
    folders = {Path(tensor.path).parent for tensor in external_tensors(model)}
    if not folders:
        return ""
    root = os.path.commonpath(folders)

    def named(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
        location, shape = os.path.relpath(tensor.path, root), ir.Shape(tensor.shape)
        return ir.ExternalTensor(location, tensor.offset, tensor.length, tensor.dtype, shape=shape, name=tensor.name)

    replace_external(model, named)
    return root


def replace_external(model: ir.Model, by: Callable[[ir.ExternalTensor], ir.TensorProtocol]) -> None:
    """Put another tensor in the place of each external one, in place; one with several holders is asked for once."""
    known: dict[int, ir.TensorProtocol] = {}

    def replaced(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor):
            return tensor
        if id(tensor) not in known:
            known[id(tensor)] = by(tensor)
        return known[id(tensor)]

    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = replaced(value.const_value)
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        for node in ir.traversal.RecursiveGraphIterator(scope):
            for name, attribute in list(node.attributes.items()):
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, replaced(attribute.value))
                elif attribute.type == ir.AttributeType.TENSORS:
                    node.attributes[name] = ir.AttrTensors(name, [replaced(tensor) for tensor in attribute.value])


def _folders(file: Path) -> list[str]:
    """The folders that data of a model may lie in, links resolved."""
    folder = os.path.realpath(file.parent)
    allowed = [folder, os.fspath(file.resolve().parent)]
    parts = Path(folder).parts
    if "snapshots" in parts:
        # The cache of the Hugging Face hub: models--owner--name/snapshots/<revision>/..., and blobs beside snapshots.
        place = len(parts) - 1 - parts[::-1].index("snapshots")
        allowed.append(os.fspath(Path(*parts[:place], "blobs")))
    return allowed


def _path(tensor: ir.ExternalTensor, file: Path, allowed: list[str]) -> str:
    """The path of the file that holds a tensor's bytes, links resolved."""
    location = os.fspath(tensor.location)
    what = f"tensor '{tensor.name}' of {file} has its data in '{location}'"
    if not location:
        raise ModelError(f"tensor '{tensor.name}' of {file} has its data in a file without a name", _AGAIN)
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor:
        raise ModelError(
            f"{what}, an absolute path", "keep data files beside the model, and name them without a folder"
        )
    if Path(os.path.normpath(location)).parts[0] == os.pardir:
        raise ModelError(f"{what}, outside the model's folder", "keep data files beside the model")
    path = os.path.realpath(file.parent / location)
    if not any(path.startswith(folder.rstrip(os.sep) + os.sep) for folder in allowed):
        raise ModelError(
            f"{what}, a link to {path}, outside the model's folder",
            "put the file itself beside the model, or a hard link to it",
        )
    return path


def _size(path: str, tensor: ir.ExternalTensor, file: Path) -> int:
    """Bytes of a data file, which must be one that can be read."""
    named = file.parent / tensor.location
    try:
        if not Path(path).is_file():
            if not os.path.lexists(path):
                raise FileNotFoundError
            raise ModelError(f"{file} keeps its weights in {named}, which is not a regular file", _AGAIN)
        with Path(path).open("rb") as stream:
            return os.fstat(stream.fileno()).st_size
    except FileNotFoundError:
        raise ModelError(
            f"{file} keeps its weights in {named}, which does not exist", "put the data file beside the model"
        ) from None
    except OSError as error:
        raise ModelError(
            f"{file} keeps its weights in {named}, which cannot be read: {error.strerror or error}",
            "check its permissions",
        ) from None


def _range(tensor: ir.ExternalTensor, size: int, file: Path) -> tuple[int, int]:
    """First byte of a tensor in its data file, and the one behind its last."""
    start, needed = tensor.offset or 0, tensor.nbytes
    where = f"tensor '{tensor.name}' of {file}"
    if tensor.length is not None and tensor.length != needed:
        raise ModelError(
            f"{where} is damaged: its shape {list(tensor.shape.numpy())} takes {needed} bytes, and it has "
            f"{tensor.length} in {tensor.location}",
            _AGAIN,
        )
    if start + needed > size:
        raise ModelError(f"{tensor.location} is too short: {where} ends at byte {start + needed} of {size}", _AGAIN)
    return start, start + needed
