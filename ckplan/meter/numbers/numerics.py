"""Outputs of two files, compared bit by bit, and by how much where they differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ckplan.isolation.arrays import Array
from ckplan.meter.compared import Numerics, OutputDifference
from ckplan.meter.memory.plain import same_bits
from ckplan.meter.types import NonFinite

_CHUNK = 1 << 20
"""Elements compared at a time: outputs are mapped files and may be larger than memory is free."""


def compare_outputs(
    base: Mapping[str, Array], new: Mapping[str, Array], groups: Iterable[Collection[str]] = ()
) -> Numerics:
    """Compare the outputs of two files by name.

    Args:
        base: outputs of the base file, in its order; mapped files do.
        new: outputs of the new one.
        groups: names of outputs that belong together, such as all gradients: each of these is held against the largest
            element of its group, too.
    """
    common = [name for name in base if name in new]
    differences = [found for name in common if (found := difference(name, base[name], new[name])) is not None]
    for group in groups:
        if not {found.output for found in differences}.isdisjoint(group):
            scale = max(_scale(base[name]) for name in group if name in base)
            differences = [_against(found, scale) if found.output in group else found for found in differences]
    return Numerics(
        compared=tuple(common),
        only_base=tuple(name for name in base if name not in new),
        only_new=tuple(name for name in new if name not in base),
        differences=tuple(differences),
        base_nonfinite=count_nonfinite(base),
        new_nonfinite=count_nonfinite(new),
    )


def count_nonfinite(outputs: Mapping[str, Array]) -> tuple[NonFinite, ...]:
    """The outputs that hold NaN or infinity, with counts."""
    found = []
    for name, array in outputs.items():
        if not is_floating(array.dtype):
            continue
        nan = inf = 0
        for part in _parts(array):
            nan += int(np.isnan(part).sum())
            inf += int(np.isinf(part).sum())
        if nan or inf:
            found.append(NonFinite(name, nan, inf))
    return tuple(found)


def _against(found: OutputDifference, scale: float) -> OutputDifference:
    """A difference of a gradient, with the largest element of all gradients to hold it against."""
    return replace(found, relative_to_gradients=found.max_absolute / scale) if scale and not found.problem else found


def _scale(array: Array) -> float:
    """The largest finite element of an array without its sign."""
    if not is_floating(array.dtype):
        return 0.0
    parts = (np.abs(part[np.isfinite(part)].astype(np.float64)) for part in _parts(array))
    return max((float(_largest(part)) for part in parts), default=0.0)


def difference(name: str, base: Array, new: Array) -> OutputDifference | None:
    """How one output differs; None if it is the same to the bit."""
    if base.shape != new.shape:
        return OutputDifference(name, problem=f"has shape {base.shape} in the base and {new.shape} in the new file")
    if base.dtype != new.dtype:
        return OutputDifference(name, problem=f"is {base.dtype} in the base and {new.dtype} in the new file")
    elements, nonfinite, ulp, first = 0, 0, 0, -1
    absolute = relative = scale = 0.0
    offset = 0
    for left, right in zip(_parts(base), _parts(new), strict=True):
        if is_floating(base.dtype):
            finite = np.isfinite(left)
            scale = max(scale, _largest(np.abs(left[finite].astype(np.float64))))
        if not same_bits(left, right):
            differs = _differs(left, right)
            elements += int(differs.sum())
            first = offset + int(np.argmax(differs)) if first < 0 else first
            if base.dtype.kind not in "OUSbc":
                both = _finite(left) & _finite(right)
                nonfinite += int((differs & ~both & ~_same_kind(left, right)).sum())
                a, b = left[differs & both], right[differs & both]
                ulp = max(ulp, int(_largest(ulp_distance(a, b))))
                wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
                gap = np.abs(wide_a - wide_b)
                absolute = max(absolute, _largest(gap))
                larger = np.maximum(np.abs(wide_a), np.abs(wide_b))
                relative = max(relative, _largest(gap[larger > 0] / larger[larger > 0]))
        offset += left.size
    if not elements:
        return None
    position = tuple(int(index) for index in np.unravel_index(first, base.shape))
    return OutputDifference(
        output=name,
        elements=elements,
        first=position,
        base=str(base[position]),
        new=str(new[position]),
        max_ulp=ulp,
        max_absolute=absolute,
        max_relative=relative,
        relative_to_scale=absolute / scale if scale else 0.0,
        nonfinite=nonfinite,
        is_floating=is_floating(base.dtype),
    )


def ulp_distance(left: Array, right: Array) -> Array:
    """Distance in units in the last place: how many representable numbers lie between two, plus one.

    Args:
        left: finite floats of any width, or integers (whose distance is their difference).
        right: of the same dtype and shape.

    Returns:
        Unsigned 64-bit integers of the same shape. -0 and +0 are one apart.
    """
    if not is_floating(left.dtype):
        low, high = np.minimum(left, right), np.maximum(left, right)
        return np.asarray(high.astype(np.uint64) - low.astype(np.uint64))
    a, b = _ordered(left), _ordered(right)
    return np.asarray(np.maximum(a, b) - np.minimum(a, b))


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is a real floating type, ml_dtypes' among them."""
    is_added = dtype.type.__module__.startswith("ml_dtypes")  # which has int4 and its like as well
    return dtype.kind == "f" or (is_added and not dtype.name.startswith(("int", "uint")))


def _ordered(values: Array) -> Array:
    """Bit patterns mapped to unsigned integers that are ordered as the floats are."""
    width = values.dtype.itemsize * 8
    bits = np.ascontiguousarray(values).view(np.dtype(f"u{values.dtype.itemsize}")).astype(np.uint64)
    sign, mask = np.uint64(1 << (width - 1)), np.uint64((1 << width) - 1)
    return np.asarray(np.where(bits & sign, ~bits & mask, bits | sign))


def _differs(left: Array, right: Array) -> Array:
    """Elementwise: whether the bits differ."""
    if left.dtype.kind in "OUS":
        return np.asarray(left != right)
    size = left.dtype.itemsize
    bytes_differ = left.view(np.uint8).reshape(-1, size) != right.view(np.uint8).reshape(-1, size)
    return np.asarray(bytes_differ.any(axis=1))


def _finite(values: Array) -> Array:
    return np.asarray(np.isfinite(values)) if is_floating(values.dtype) else np.ones(values.shape, np.bool_)


def _same_kind(left: Array, right: Array) -> Array:
    """Elementwise: both NaN (whatever their payload), or the same infinity."""
    if not is_floating(left.dtype):
        return np.zeros(left.shape, np.bool_)
    return np.asarray((np.isnan(left) & np.isnan(right)) | (left == right))


def _parts(array: Array) -> Iterator[Array]:
    """The elements in order, flat, a chunk at a time."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield np.ascontiguousarray(flat[start : start + _CHUNK])


def _largest(values: Array | Sequence[float]) -> Any:
    return np.max(values) if len(values) else 0
