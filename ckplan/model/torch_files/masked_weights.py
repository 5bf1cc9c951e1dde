"""Weights into which torch's exporter multiplied a mask, and those that it padded, keep their zeros.

A masked autoencoder, a convolution that sees only what came before, a pruned layer: the module multiplies a weight by a
buffer of zeros and ones. The optimiser of torch's default exporter does it beforehand, and the buffer is gone. Trained
as it is, the product would fill with numbers where the mask has zeros, and see what it must not. The metadata say that
it is a product of a parameter and a buffer, or of a parameter and one that is frozen, which they do not tell from two
that are trained: zeros among other numbers do. What a module makes a triangle or a diagonal of (``w.tril()``,
``diag(w)``) its values show, where the metadata name an operation that can have; a weight that only begins so is
trained as a whole. Files of the older exporter name no operations: there a note says what is taken for a triangle or a
diagonal.

What was padded with zeros (``F.pad(table, ...)``, for a token beside the patches) has them around a box of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.constants import add_constant
from ckplan.model.structure import is_unstructured
from ckplan.model.torch_files.exporter_metadata import (
    buffers_of,
    folded_from,
    is_comparison_name,
    parameters_of,
)

_COMPUTED = re.compile(r"onnx::(Conv\w*|Gemm|MatMul)_\d+")
"""How the older exporter calls a weight that it computed, of a layer."""
_SAMPLE = 4096
"""How many numbers of a weight are looked at."""
_FEW, _MANY = 0.05, 0.95
"""The share of zeros between which a weight may have been masked."""
_MATRIX = _PAIR = 2
_FEWEST = 3
"""How many rows and columns a matrix has at least for its zeros to show a triangle."""
_PRODUCT = re.compile(r"mul(_\d+)?")
_PAD = re.compile(r"(pad|constant_pad_nd)(_\d+)?")
_BAND = re.compile(r"(diag\w*|lifted_tensor|masked_fill|tril|triu|where)(_\d+)?")
"""What torch calls that which leaves a triangle or a diagonal, and a constant that may be multiplied in."""


def keep_masks(model: ir.Model) -> tuple[str, ...]:
    """Multiply what is a product of a parameter and a mask by the mask again, in place.

    Returns:
        Notes.
    """
    graph = model.graph
    buffers, parameters = buffers_of(graph), parameters_of(graph)
    masked: list[ir.Value] = []
    of_two: list[ir.Value] = []
    padded: list[ir.Value] = []
    bands: list[ir.Value] = []
    for value in list(graph.initializers.values()):
        if value.const_value is None or value.is_graph_output():
            continue
        told = bool(value.metadata_props.get(keys.STANDS_FOR))
        names = (str(value.name), *folded_from(value))
        is_product = any(map(_PRODUCT.fullmatch, names))
        by_product = is_product and not buffers.isdisjoint(names)
        made_a_band = any(_BAND.fullmatch(name) or is_comparison_name(name) for name in names)
        if told and (by_product or (made_a_band and _is_band(value))):
            array = value.const_value.numpy()
            if array.any() and not array.all():
                masked.append(value)
        elif is_product and len(parameters.intersection(names)) == _PAIR:
            if _FEW < 1 - _filled(value).mean() < _MANY:
                of_two.append(value)
        elif told and any(map(_PAD.fullmatch, names)):
            if not _box(value).all():
                padded.append(value)
        elif _is_computed(value) and _is_band(value):
            bands.append(value)
    notes = _doubtful(graph, bands)
    for value in (*masked, *of_two, *bands):
        _mask(graph, value, _filled(value))
    for value in padded:
        _mask(graph, value, _box(value))
    if padded:
        notes.append(f"{len(padded)} weight(s) keep the zeros that torch's exporter padded with: {_listed(padded)}")
    if masked:
        notes.append(
            f"{len(masked)} weight(s) keep the zeros of a mask that torch's exporter multiplied in: {_listed(masked)}"
        )
    if of_two:
        notes.append(
            f"{len(of_two)} product(s) of two parameters keep their zeros, as where one is a mask that is frozen "
            f"({_listed(of_two)}); ckplan.export keeps both parameters"
        )
    if bands:
        notes.append(
            f"{len(bands)} weight(s) are triangles or diagonals and stay so ({_listed(bands)}); if they only "
            "begin so, ckplan.export lets them be trained as a whole"
        )
    return tuple(notes)


def _listed(values: Sequence[ir.Value]) -> str:
    return shortened([repr(value.name) for value in values], 3)


def _filled(value: ir.Value) -> np.ndarray:
    """Where an initializer is not zero."""
    return np.zeros(0, bool) if value.const_value is None else value.const_value.numpy() != 0


def _box(value: ir.Value) -> np.ndarray:
    """Where an initializer lies between zeros at its borders; everywhere if nothing of it is another number."""
    filled = _filled(value)
    box = np.ones_like(filled)
    for axis in range(filled.ndim if filled.any() else 0):
        found = np.flatnonzero(filled.any(axis=tuple(other for other in range(filled.ndim) if other != axis)))
        outside = np.delete(np.arange(filled.shape[axis]), np.arange(found[0], found[-1] + 1))
        box[(slice(None),) * axis + (outside,)] = False
    return box


def _is_band(value: ir.Value) -> bool:
    """Whether an initializer is a triangle or a diagonal, or a stack of such: zeros beside some diagonals in a row."""
    array = np.zeros(0) if value.const_value is None else value.const_value.numpy()
    if array.ndim < _MATRIX or min(array.shape[-2:]) < _FEWEST:
        return False
    if (array[..., 0, -1].any() and array[..., -1, 0].any()) or not is_unstructured(value):  # most are not read further
        return False
    offsets = np.arange(array.shape[-1]) - np.arange(array.shape[-2])[:, None]
    filled = array != 0
    used = offsets[filled.reshape(-1, *offsets.shape).any(axis=0)]
    band = (offsets >= used.min()) & (offsets <= used.max())
    return not band.all() and bool((filled == band).all())


def _is_computed(value: ir.Value) -> bool:
    return _COMPUTED.fullmatch(str(value.name)) is not None


def _doubtful(graph: ir.Graph, bands: Collection[ir.Value]) -> list[str]:
    found: list[ir.Value] = []
    for value in graph.initializers.values():
        if not _is_computed(value) or value in bands or not is_unstructured(value) or value.const_value is None:
            continue
        zeros = value.const_value.numpy().reshape(-1)[:_SAMPLE] == 0
        if _FEW < zeros.mean() < _MANY:
            found.append(value)
    if not found:
        return []
    return [
        f"{len(found)} weight(s) hold zeros among other numbers ({_listed(found)}), trained like the "
        "others: if torch's exporter multiplied a mask in, ckplan.export keeps it"
    ]


def _mask(graph: ir.Graph, value: ir.Value, kept: np.ndarray) -> None:
    """Put a product with ones, where a weight is trained, and zeros between it and its readers."""
    assert value.dtype is not None
    mask = add_constant(graph, f"{value.name}_mask", kept.astype(value.dtype.numpy()), "a mask")
    readers = list(value.uses())
    value.metadata_props.setdefault(keys.STANDS_FOR, str(value.name))
    node = ir.node("Mul", inputs=[value, mask], name=f"{value.name}_masked")
    result = node.outputs[0]
    result.name, result.type, result.shape = f"{value.name}_masked", value.type, value.shape
    graph.insert_before(graph[0], node)
    for use in readers:
        use.node.replace_input_with(use.idx, result)
