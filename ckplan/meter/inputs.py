"""Inputs to run a model on: the user's own, or seeded random ones that suit the graph."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan.arguments import check_number, path_of
from ckplan.display import shortened
from ckplan.errors import EnvironmentUnavailableError, ModelError, UsageError
from ckplan.isolation.arrays import DAMAGED, Array, is_exotic
from ckplan.keys import LOSS_SCALE
from ckplan.meter.facts import fed_inputs, initial_states
from ckplan.meter.ranges import upper_bound
from ckplan.model.fixing import Fixed, array_of, shapes_of
from ckplan.model.inference.infer import NodeInference
from ckplan.model.sizes.dims import bind
from ckplan.units import format_bytes

_SMALL = 2048
"""Elements of constants that shape inference may read: those that hold shapes and axes are small."""
_LOSS_SCALE = 1024
"""A loss scale to run with, if it is an input."""


@dataclass(frozen=True)
class Inputs:
    """Arrays to feed.

    Attributes:
        arrays: by input name.
        notes: what was chosen for the user, a sentence each.
    """

    arrays: Mapping[str, Array]
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def make_inputs(
    model: ir.Model,
    *,
    file: str | os.PathLike[str] | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fixed: Fixed | None = None,
) -> Inputs:
    """The inputs that a model is run on.

    Args:
        model: the model. Inputs that have an initializer (parameters) are not fed, unless ``file`` holds them.
        file: an ``.npz`` with one array per input; nothing is made up then, but for the states of an optimizer that it
            does not hold: these begin with zero.
        seed: of the random inputs; an input's values depend on the seed, its name, dtype and shape only.
        dims: sizes of named dimensions; others get the defaults of `ckplan.model.sizes.dims`.
        shapes: shapes of whole inputs.
        fixed: numbers to feed, by name of the input, in place of random ones.

    Raises:
        UsageError: the file, a dimension, a shape or a number does not fit the model, or the seed is negative.
        ModelError: the file is missing or damaged, or an input is of a kind that cannot be made up (strings,
            sequences).
        EnvironmentUnavailableError: an input is larger than the memory there is.
    """
    check_number("the seed", seed, whole=True)
    fixed = fixed or {}
    if file is not None:
        for option, given in (("--set", fixed), ("--dim", dims), ("--shape", shapes)):
            if given:
                raise UsageError(f"`--inputs` and `{option}` both say what is fed", "leave out one of them")
        return Inputs(_read(path_of("the file of inputs", file), model))
    fed = fed_inputs(model)
    shell = ir.Graph(fed_shells(fed), (), nodes=())
    _check_open(shell, dims or {}, shapes or {})
    notes = bind(shell, dims or {}, shapes_of(shell, fixed, shapes), originals=fed).notes
    arrays, more = {}, []
    states = initial_states(model)
    if any(_unbounded(model, value) for value in fed):
        # The bound may be a dimension of a value whose shape the file does not tell (class scores, mostly).
        _infer_shapes(model)
    for value, shaped in zip(fed, shell.inputs, strict=True):
        name = value.name or ""
        if not isinstance(shaped.type, ir.TensorType) or shaped.shape is None:
            raise ModelError(f"input `{name}` is not a tensor", "ckplan measures models with tensor inputs only")
        shape = tuple(int(size) for size in shaped.shape if isinstance(size, int))
        _check_memory(f"input `{name}`", math.prod(shape) * _DRAWN, "give smaller sizes with --dim or --shape")
        if name in fixed:
            arrays[name] = array_of(shaped, fixed[name])
            continue
        if name in states and value.dtype is not None:
            arrays[name] = np.zeros(shape, value.dtype.numpy())
            continue
        arrays[name], note = _draw(model, value, shape, seed)
        more.extend([note] if note else [])
    return Inputs(arrays, (*notes, *more))


def _check_open(graph: ir.Graph, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> None:
    """See that no size is given in the place of one that a file fixes: it is run as it is.

    Raises:
        UsageError: one is.
    """
    remedy = "export it with that size, or with one that is open; or write a step of that size, with --shape"
    declared = {
        str(value.name): [size if isinstance(size, int) else None for size in value.shape or ()]
        for value in graph.inputs
    }
    if dims and all(size is not None for sizes in declared.values() for size in sizes):
        name, given = next(iter(dims.items()))
        what = f"`--dim {name}={given}` has no dimension to set"
        raise UsageError(f"{what}: the file fixes all sizes of its inputs", remedy)
    for name, sizes in shapes.items():
        for axis, (fixed, wanted) in enumerate(zip(declared.get(name, ()), sizes, strict=False)):
            if fixed not in (None, wanted):
                what = f"`--shape` sets dimension {axis} of input `{name}` to {wanted}"
                raise UsageError(f"{what}, and the file fixes it at {fixed}", remedy)


def _unbounded(model: ir.Model, value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer() and upper_bound(model, value) is None


def _infer_shapes(model: ir.Model) -> None:
    """Fill in shapes as far as inference goes, node by node: one that fails only leaves its own output open."""

    def constant(value: ir.Value) -> Array | None:
        tensor = ir.convenience.get_const_tensor(value)
        return tensor.numpy() if tensor is not None and tensor.size <= _SMALL else None

    inference = NodeInference(model.graph, model.ir_version)
    for node in model.graph:
        inference.run(node, constant)


def fed_shells(values: Sequence[ir.Value]) -> list[ir.Value]:
    """Free copies of graph inputs, so that binding their dimensions leaves the model as it is.

    A tensor that may be left out is fed like any other.
    """
    return [ir.Value(name=value.name, shape=value.shape, type=_without_optional(value.type)) for value in values]


def _without_optional(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    return kind.elem_type if isinstance(kind, ir.OptionalType) else kind


def _draw(model: ir.Model, value: ir.Value, shape: tuple[int, ...], seed: int) -> tuple[Array, str]:
    """Random values for one input, and what should be said about them."""
    name = value.name or ""
    assert value.dtype is not None
    if value.dtype == ir.DataType.STRING:
        raise ModelError(f"input `{name}` holds strings", "pass real inputs with --inputs")
    dtype = value.dtype.numpy()
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    masks = "mask" in name.lower()
    if value.dtype.is_floating_point():
        if name == model.metadata_props.get(LOSS_SCALE):
            return np.full(shape, _LOSS_SCALE, dtype), f"input '{name}' is the loss scale: {_LOSS_SCALE}"
        if masks:
            return np.ones(shape, dtype), f"input '{name}' is a mask: all ones"
        return np.asarray(rng.standard_normal(shape)).astype(dtype), ""
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype), ""
    if dtype.kind == "b":
        return (np.ones(shape, dtype) if masks else rng.integers(0, 2, shape).astype(dtype)), ""
    bound = upper_bound(model, value)
    if masks:
        return np.full(shape, min(1, bound[0] - 1) if bound else 1).astype(dtype), f"input '{name}' is a mask: all ones"
    high, why = bound if bound is not None else (2, "nothing in the graph bounds it")
    note = f"input '{name}': integers from 0 to {high - 1} ({why})"
    return rng.integers(0, max(high, 1), shape).astype(dtype), note


def _read(file: Path, model: ir.Model) -> dict[str, Array]:
    """Arrays of an ``.npz``, held against the model's inputs; every misfit is named at once."""
    try:
        with np.load(file) as archive:
            _check_room(file, archive.zip)
            arrays: dict[str, Array] = {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise ModelError(f"there is no file `{file}`", "check the path") from error
    except (PermissionError, IsADirectoryError) as error:
        raise ModelError(f"cannot read `{file}`: {error.strerror}", "check the path") from error
    # An .npy is a TypeError or has no `zip`; zipfile tells of what it does not know or cannot inflate in its own ways.
    except (OSError, ValueError, TypeError, AttributeError, EOFError, *DAMAGED) as error:
        raise ModelError(f"`{file}` is not a readable .npz file", "write it with numpy.savez") from error
    known = {value.name or "": value for value in model.graph.inputs}
    for name in initial_states(model) & known.keys() - arrays.keys():
        state = known[name]
        if state.dtype is not None and state.shape is not None and state.shape.is_static():
            arrays[name] = np.zeros(state.shape.numpy(), state.dtype.numpy())
    missing = [value.name for value in fed_inputs(model) if value.name not in arrays]
    misfits = [f"has no array for input {shortened([f'`{name}`' for name in missing])}"] if missing else []
    misfits += [f"holds `{name}`, which is not an input" for name in arrays if name not in known]
    for name in arrays.keys() & known.keys():
        arrays[name] = _as_declared(arrays[name], known[name])
    misfits += [
        f"holds `{name}` {text}"
        for name, value in known.items()
        if name in arrays and (text := _misfit(arrays[name], value))
    ]
    if misfits:
        raise UsageError(f"`{file}` {'; '.join(misfits)}", f"the model's inputs are {_listed(fed_inputs(model))}")
    return {name: arrays[name] for name in known if name in arrays}


_DRAWN = 8
"""Bytes of a number as it is drawn, before it gets its type."""


def _check_room(file: Path, archive: zipfile.ZipFile) -> None:
    """See that what a file unfolds to fits into memory: a few bytes can be gigabytes of zeros."""
    _check_memory(f"`{file}`", sum(entry.file_size for entry in archive.infolist()), "give smaller arrays")


def _check_memory(what: str, needed: int, hint: str) -> None:
    import psutil  # type: ignore[import-untyped,unused-ignore]

    there = psutil.virtual_memory().available
    if needed > there:
        raise EnvironmentUnavailableError(
            f"{what} takes {format_bytes(needed)} of memory, and there are {format_bytes(there)}", hint
        )


def _as_declared(array: Array, value: ir.Value) -> Array:
    """Give back their type to arrays of bfloat16 and the like, which numpy's files hold as nameless bytes."""
    if value.dtype is None or value.dtype == ir.DataType.STRING or array.dtype.kind != "V":
        return array
    dtype = value.dtype.numpy()
    return array.view(dtype) if is_exotic(dtype) and dtype.itemsize == array.dtype.itemsize else array


def _misfit(array: Array, value: ir.Value) -> str:
    """How an array fails to be what an input declares, or an empty string."""
    if value.dtype is not None and value.dtype != ir.DataType.STRING:
        expected: np.dtype[Any] = value.dtype.numpy()
        if array.dtype != expected:
            return f"as {array.dtype}, the model wants {expected}"
    if value.shape is not None:
        same_rank = len(value.shape) == array.ndim
        fixed = zip(value.shape, array.shape, strict=False)
        if not same_rank or any(isinstance(size, int) and size != given for size, given in fixed):
            return f"of shape {array.shape}, the model wants {_shape_text(value)}"
    return ""


def _shape_text(value: ir.Value) -> str:
    sizes = [str(size) if isinstance(size, int) else (size.value or "?") for size in value.shape or ()]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _listed(values: Sequence[ir.Value]) -> str:
    return shortened([f"`{value.name}` {value.dtype} {_shape_text(value)}" for value in values], 10) or "none"
