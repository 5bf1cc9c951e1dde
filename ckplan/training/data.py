"""Training data: arrays of as many samples each, by the name of the input that takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ckplan.display import one_line, shortened
from ckplan.errors import EnvironmentUnavailableError, ModelError, UsageError
from ckplan.isolation.arrays import DAMAGED, Array
from ckplan.training.stepfile import Spec

Data = Mapping[str, Array]


def read_data(path: Path) -> dict[str, Array]:
    """Read a file of arrays.

    Args:
        path: ``.npz``: an array for each input, its first axis the samples; ``.parquet``: a column for each input, of
            numbers or of lists of numbers.

    Raises:
        ModelError: the file is missing, damaged, or of another format.
        UsageError: a column is no array: it has empty cells, or lists of different lengths.
        EnvironmentUnavailableError: it is a parquet file, and pyarrow is not installed.
    """
    readers = {".npz": _arrays, ".parquet": _columns}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ModelError(f"{path} is neither .npz nor .parquet", "save arrays with numpy.savez(FILE, input=array, ...)")
    if not path.is_file():
        raise ModelError(f"there is no file {path}", "check the path")
    try:
        return reader(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}", "check the path") from None
    except (ValueError, EOFError, *DAMAGED) as error:
        reason = one_line(error)
        raise ModelError(f"{path} is damaged or of another format ({reason})", "write it again") from None


def _arrays(path: Path) -> dict[str, Array]:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        if not hasattr(archive, "files"):
            raise ValueError("one array without a name")
        return {name: archive[name] for name in archive.files}


def _columns(path: Path) -> dict[str, Array]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise EnvironmentUnavailableError(
            f"reading {path} needs pyarrow, which is not installed", "pip install pyarrow, or save the data as .npz"
        ) from None
    table = pyarrow.parquet.read_table(path)
    return {
        name: _column(f"column `{name}` in {path}", table.column(name).combine_chunks()) for name in table.column_names
    }


def _column(what: str, column: Any) -> Array:
    """A column as an array; of lists of equal length as one axis more.

    Raises:
        UsageError: it is none; ``what`` is what it is called then.
    """
    import pyarrow
    import pyarrow.compute

    def is_list(kind: Any) -> bool:
        types = pyarrow.types
        return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))

    axes: list[int] = []
    samples = len(column)
    while is_list(column.type):
        lengths = pyarrow.compute.min_max(pyarrow.compute.list_value_length(column)).as_py()
        if lengths["min"] != lengths["max"] or column.null_count:
            raise UsageError(f"{what} has lists of different lengths", "give each sample as many numbers")
        axes.append(lengths["max"] or 0)
        column = column.flatten()
    if column.null_count:
        raise UsageError(f"{what} has empty cells", "fill them, or leave such samples out")
    numbers: Array = column.to_numpy(zero_copy_only=False)
    return numbers.reshape(samples, *axes)


def array_given(what: str, given: Any) -> Array:
    """An array that a user gives, as one of numpy's: lists and tensors of torch's are fine.

    Args:
        what: what it is, for the message.
        given: the array.

    Raises:
        UsageError: it cannot be one, such as lists of different lengths, or a tensor on a GPU.
    """
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = one_line(error)
        raise UsageError(f"{what} is no array: {reason}", "give an array of numpy's") from None


def fitted(data: Data, inputs: Mapping[str, Spec], where: str) -> dict[str, Array]:
    """Hold data against what a step takes.

    Args:
        data: arrays by name; those that no input has the name of are passed over, see `idle_arrays`.
        inputs: of the step; the first size of each is the samples of a batch.
        where: what the data are called in errors.

    Returns:
        An array for each input, in its type. A table's lists of numbers get the input's shape.

    Raises:
        UsageError: an array is missing, or has another shape, type or number of samples than the others, or holds NaN;
            or an input takes no samples.
    """
    _check_samples(inputs)
    if lacking := [name for name in inputs if name not in data]:
        there = ", ".join(f"`{name}`" for name in data) or "nothing"
        raise UsageError(f"{where} has no array `{lacking[0]}`, which the step takes", f"it has {there}")
    samples = {name: len(data[name]) if data[name].ndim else 0 for name in inputs}
    if len(set(samples.values())) > 1:
        listed = ", ".join(f"{count} in `{name}`" for name, count in samples.items())
        raise UsageError(f"{where} has different numbers of samples: {listed}", "give the same number of each")
    return {name: _fit(name, data[name], spec, where) for name, spec in inputs.items()}


def idle_arrays(data: Data, inputs: Mapping[str, Spec], where: str) -> tuple[str, ...]:
    """What to say of arrays that a step does not take, a sentence; none if it takes all.

    Args:
        data: arrays by name.
        inputs: of the step.
        where: what the data are called.
    """
    idle = [f"`{name}`" for name in data if name not in inputs]
    return (f"the step does not take {shortened(idle)} of {where}",) if idle else ()


def _check_samples(inputs: Mapping[str, Spec]) -> None:
    """Refuse inputs that take something else than samples of a batch along their first axis."""
    sizes = {name: spec.shape[0] if spec.shape else 1 for name, spec in inputs.items()}
    leading = next((name for name, spec in inputs.items() if spec.shape), "")
    for name, size in sizes.items():
        if leading and size != sizes[leading]:
            shapes = f"`{name}` of shape {list(inputs[name].shape)}, and `{leading}` of {list(inputs[leading].shape)}"
            raise UsageError(
                f"the step takes {shapes}: their first axes are not the samples of one batch",
                "set what is the same in all steps when the step is written (--set NAME=NUMBERS), or write a loop",
            )


def _fit(name: str, array: Array, spec: Spec, where: str) -> Array:
    wanted = spec.shape[1:]
    if array.shape[1:] != wanted:
        flat = array.ndim == 2 and array.shape[1] == int(np.prod(wanted))
        if not flat and not (array.ndim == 1 and int(np.prod(wanted)) == 1):
            raise UsageError(
                f"samples of `{name}` in {where} have shape {list(array.shape[1:])}, and the step takes {list(wanted)}",
                "reshape the data, or write a step for this shape with --shape",
            )
        array = array.reshape(len(array), *wanted)
    if array.dtype != spec.dtype:
        if not (
            np.can_cast(array.dtype, spec.dtype, "same_kind") or (array.dtype.kind in "iu" and spec.dtype.kind in "iu")
        ):
            raise UsageError(f"`{name}` in {where} is {array.dtype}, and the step takes {spec.dtype}", "convert it")
        with np.errstate(over="ignore"):  # told below
            given, array = array, array.astype(spec.dtype)
        if array.dtype.kind in "iu" and not np.array_equal(array, given):
            raise UsageError(f"`{name}` in {where} holds numbers that do not fit into {spec.dtype}", "clean the data")
    if array.dtype.kind not in "iub" and not (finite := np.isfinite(array)).all():
        first = int(np.argmin(finite.reshape(len(array), -1).all(axis=1)))
        raise UsageError(f"`{name}` in {where} holds NaN or infinity, first in sample {first}", "clean the data")
    if spec.is_label and spec.below is not None:
        _check_labels(name, array, spec.below[0], spec.ignored, where)
    return array


def _check_labels(name: str, labels: Array, classes: int, ignored: int | None, where: str) -> None:
    """Refuse labels that stand for no class: onnxruntime would count negative ones from the last class back."""
    wrong = (labels < 0) | (labels >= classes)
    if ignored is not None:
        wrong &= labels != ignored
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        others = (
            "; to leave samples out, the model has to hold a loss with an ignore_index"
            if ignored is None
            else f", or {ignored} for what is not to count"
        )
        raise UsageError(
            f"`{name}` in {where} holds {labels[first]}, first in sample {first[0]}, "
            f"and the loss has {classes} classes",
            f"give numbers from 0 to {classes - 1}{others}",
        )


def beyond(data: Data, inputs: Mapping[str, Spec]) -> str:
    """What a kernel may have refused: an integer that is too large for what its input chooses from; empty if none is.

    Labels of which a loss reads a part only are not checked before: negative ones are named, too.

    Args:
        data: arrays by name.
        inputs: what they are fed to.
    """
    bounded = [(name, array, inputs[name].below) for name, array in data.items() if array.size]
    for name, array, below in bounded:
        if below is not None and (largest := array.max()) >= below[0]:
            return f"`{name}` holds {largest}, where only numbers below {below[0]} fit ({below[1]})"
    for name, array, below in bounded:
        if below is not None and array.min() < 0:
            listed = ", ".join(str(number) for number in np.unique(array[array < 0])[-3:])
            return f"`{name}` holds {listed}: give numbers from 0 to {below[0] - 1}, or what the loss ignores"
    return ""


def batches(data: Data, chosen: Array, size: int) -> Iterator[dict[str, Array]]:
    """Cut samples into batches.

    Args:
        data: arrays by name.
        chosen: numbers of samples, a multiple of ``size``.
        size: of a batch.
    """
    for start in range(0, len(chosen), size):
        part = chosen[start : start + size]
        yield {name: array[part] for name, array in data.items()}
