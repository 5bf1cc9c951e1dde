"""Where the weights of a file that is written lie: in the data file of the model read, in a twin of it, or in a copy.

A data file in the folder of the new file (or below it) is referred to. One that lies elsewhere gets a twin beside the
new file that shares its blocks (a reflink, else a hard link), since onnxruntime reads data from the model's own folder
only. What cannot be shared, or is hardly worth it, is copied, and of a data file only the tensors that are used.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from io import FileIO
from itertools import count
from pathlib import Path

import onnx_ir as ir

from ckplan import keys
from ckplan.errors import EnvironmentUnavailableError
from ckplan.isolation.folders import temporary_folder
from ckplan.model.files.external import external_tensors, replace_external, take_in_small
from ckplan.units import format_bytes

Progress = Callable[[int, int], None]

# protobuf's limit is 2 GiB; what is not a weight needs room too.
MAX_INLINE_BYTES = 1_900_000_000
WORTH_SHARING = 64 << 20
"""Data files below this are copied: it takes no time, and onnx itself refuses to read files with several hard links."""
_SMALL = 1024
_WORTH_MAPPING = 1 << 20
"""Bytes of parameters that a loop feeds from which they lie outside: what lies in the file is held beside them, what
lies in a data file is mapped, and never read."""
_CHUNK = 16 << 20
_FICLONE = 0x40049409
"""Linux' ioctl that makes a file share the blocks of another, where the file system can (``linux/fs.h``)."""


def place(model: ir.Model, target: Path, workspace: Path, copy: bool, progress: Progress) -> tuple[str, ...]:
    """Settle where the weights of a model lie, and give its tensors these places, in place.

    Args:
        model: external tensors bear the full paths of their data files.
        target: the file that will be written; its folder may not hold the twins and the copy yet.
        workspace: a folder on the same file system for new data files, which are to be moved beside `target`.
        copy: whether weights are copied in any case.
        progress: called with bytes copied and bytes to copy.

    Returns:
        Notes.

    Raises:
        EnvironmentUnavailableError: there is no room for a copy.
        OSError: a file cannot be written.
    """
    take_in_small(model)
    folder = Path(os.path.realpath(target.parent))
    locations: dict[str, str] = {}
    notes = []
    for path in sorted({tensor.path for tensor in external_tensors(model)}):
        if copy:
            continue
        if Path(path).is_relative_to(folder):
            locations[path] = Path(path).relative_to(folder).as_posix()
            notes.append(f"the weights stay in {locations[path]}, which {target.name} reads as well")
        elif Path(path).stat().st_size >= WORTH_SHARING:
            name = _free_name(target, locations.values())
            if way := _share(Path(path), workspace / name):
                locations[path] = name
                notes.append(f"{name} shares the bytes of {path}: {way}")
    data = workspace / _free_name(target, locations.values())
    moved = _copied(model, locations, data, progress)
    if moved:
        notes.append(f"{format_bytes(moved)} of weights are in {data.name}")
    return tuple(notes)


@contextmanager
def scratch_folder(model: ir.Model) -> Iterator[Path]:
    """A temporary folder in which files with the weights of a model can be saved without copying them, if there is one.

    That is one of the file system that holds its largest data file: in the system's folder for such, or beside it.
    """
    large = max(external_tensors(model), key=lambda tensor: tensor.nbytes, default=None)
    place: Path | None = None
    if large is not None and Path(large.path).exists():
        beside = Path(large.path).parent
        apart = beside.stat().st_dev != Path(tempfile.gettempdir()).stat().st_dev
        place = beside if apart and os.access(beside, os.W_OK) else None
    with temporary_folder(place) as folder:
        yield folder


def _share(source: Path, target: Path) -> str:
    """Make a file of the same bytes that takes no room; returns how, in words, or nothing if it cannot be done."""
    if sys.platform == "linux":
        import fcntl

        try:
            with source.open("rb") as read, target.open("wb") as written:
                fcntl.ioctl(written.fileno(), _FICLONE, read.fileno())
            return "a copy that takes room only where one of the two changes"
        except OSError:
            target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        return ""
    return "a hard link, which onnx.load refuses to read and onnxruntime does not; --copy-weights makes a copy"


def _copied(model: ir.Model, locations: dict[str, str], data: Path, progress: Progress) -> int:
    """Refer to the data files that have a location; write the other tensors that must lie outside into one file.

    Returns:
        Bytes written; the file is not made if there are none.
    """
    outside: dict[tuple[object, ...], ir.TensorProtocol] = {}
    outside.update((_key(tensor), tensor) for tensor in external_tensors(model) if tensor.path not in locations)
    outside.update((_key(tensor), tensor) for tensor in _too_large(model))
    total = sum(tensor.nbytes for tensor in outside.values())
    if total and total > (free := shutil.disk_usage(data.parent).free):
        raise EnvironmentUnavailableError(
            f"no space left in {data.parent.parent}: weights take {format_bytes(total)}, {format_bytes(free)} are free",
            "free some, or write into the folder of the model: then its own data file is read",
        )
    offsets: dict[tuple[object, ...], int] = {}
    if outside:
        written = 0
        with data.open("wb", buffering=0) as file:
            for key, tensor in outside.items():
                offsets[key] = written
                for block in _blocks(tensor):
                    _write(file, block)
                    written += len(block)
                    progress(written, total)

    def moved(tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        location, start = data.name, offsets.get(_key(tensor))
        if start is None:
            assert isinstance(tensor, ir.ExternalTensor)
            location, start = locations[tensor.path], tensor.offset or 0
        shape = ir.Shape(tensor.shape.numpy())
        return ir.ExternalTensor(location, start, tensor.nbytes, tensor.dtype, shape=shape, name=tensor.name or "")

    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and _key(value.const_value) in offsets:
                value.const_value = moved(value.const_value)
    replace_external(model, lambda tensor: tensor if tensor.location == data.name else moved(tensor))
    return total


def _key(tensor: ir.TensorProtocol) -> tuple[object, ...]:
    """What is the same for tensors that share their bytes."""
    if isinstance(tensor, ir.ExternalTensor):
        return tensor.path, tensor.offset or 0, tensor.nbytes
    return (id(tensor),)


def _too_large(model: ir.Model) -> list[ir.TensorProtocol]:
    """The tensors in memory that a file should not hold, all but small ones: too many, or such as a loop feeds."""
    inside = [
        (value, value.const_value)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and not isinstance(value.const_value, ir.ExternalTensor)
    ]
    large = [(v, tensor) for v, tensor in inside if tensor.nbytes > _SMALL and tensor.dtype != ir.DataType.STRING]
    if sum(tensor.nbytes for _, tensor in inside) > MAX_INLINE_BYTES:
        return [tensor for _, tensor in large]
    fed = [tensor for value, tensor in large if keys.OPTIMIZER in model.metadata_props and value.is_graph_input()]
    return fed if sum(tensor.nbytes for tensor in fed) >= _WORTH_MAPPING else []


def lies_outside(model: ir.Model) -> Callable[[ir.Value], bool]:
    """Tells of initializers of a model whether they lie in a data file, or will when it is saved."""
    moved = set(map(id, _too_large(model)))

    def outside(value: ir.Value) -> bool:
        tensor = value.const_value
        return isinstance(tensor, ir.ExternalTensor) or id(tensor) in moved

    return outside


def _blocks(tensor: ir.TensorProtocol) -> Iterator[memoryview]:
    """A tensor's bytes in pieces, so that an interruption does not wait for gigabytes."""
    if not isinstance(tensor, ir.ExternalTensor):
        view = memoryview(tensor.tobytes())
        yield from (view[start : start + _CHUNK] for start in range(0, len(view), _CHUNK))
        return
    with Path(tensor.path).open("rb") as source:
        source.seek(tensor.offset or 0)
        left = tensor.nbytes
        while left:
            block = source.read(min(_CHUNK, left))
            if not block:
                raise EnvironmentUnavailableError(f"{tensor.path} was cut short while it was read", "run it again")
            yield memoryview(block)
            left -= len(block)


def _write(file: FileIO, block: memoryview) -> None:
    while block:
        block = block[file.write(block) :]


def _free_name(target: Path, taken: Collection[str]) -> str:
    """A name for a new data file that nothing beside the target bears."""
    for number in count():
        name = f"{target.name}.{number}.data" if number else f"{target.name}.data"
        if name not in taken and not os.path.lexists(target.parent / name):
            break
    return name
