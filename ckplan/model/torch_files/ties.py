"""Weights that are in a file twice, once moved: exporters fold the Transpose of a tied weight.

A language model reads its table of tokens and multiplies by its transpose, an autoencoder multiplies by one weight and
its transpose. With what was moved computed beforehand, the file holds two weights where the model has one; trained
apart they would drift apart, each with a part of the gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan.display import shortened
from ckplan.keys import STANDS_FOR
from ckplan.model.inference.infer import static_shape
from ckplan.model.literals import is_numbered
from ckplan.model.structure import are_equal, structure_of
from ckplan.model.torch_files.exporter_metadata import is_moved_name
from ckplan.model.torch_files.functions import Function, compute, reshaped, transposed

_RANK = 2
_CORNER = 16
"""So many numbers tell most matrices apart."""
_FEW = 16
"""So few whole numbers are told from weights by none of the formulas that they might follow."""

_TURNED = re.compile(r"(?:.*[/.])?[Tt]ranspose(?:_\d+)?(?:[.:]\d+)*")
"""What Paddle's exporter and TensorFlow call a transpose, as ``Transpose.1`` or ``head/transpose_1:0``."""

_Shape = tuple[int, ...]


def join_transposed(model: ir.Model) -> tuple[str, ...]:
    """Let readers of a moved copy of a matrix read the matrix, through a Transpose or a Reshape, in place.

    A copy has a name that its exporter made up and holds the same values: it is the transpose, or has axes of one
    element more, as the kernel of a convolution. Of two such copies the first stands for the matrix. What has the same
    shape is left alone: layers begin as copies of others; so is what torch's default exporter says to be of another
    parameter, or of a buffer. Of large tensors the values are sampled.

    Returns:
        Notes.
    """
    graph = model.graph
    matrices = [value for value in graph.initializers.values() if _is_matrix(value) and value.uses()]
    kept: dict[tuple[ir.DataType | None, _Shape], list[ir.Value]] = {}
    joined = []
    for value in sorted(matrices, key=lambda value: has_made_up_name(value.name or "")):
        rows, columns = _sizes(value)
        movable = has_made_up_name(value.name or "") and not value.is_graph_output()
        alike = [*kept.get((value.dtype, (columns, rows)), ()), *kept.get((value.dtype, (rows, columns)), ())]
        for weight in dict.fromkeys(alike) if movable else ():
            function = _moved(value, weight) if _may_stand_for(value, weight) else None
            if function is not None:
                joined.append(f"'{value.name}' is '{weight.name}'")
                compute(graph, value, weight, function)
                break
        else:
            kept.setdefault((value.dtype, (rows, columns)), []).append(value)
    if not joined:
        return ()
    listed = "; ".join(joined[:3]) + ("; ..." if len(joined) > 3 else "")
    return (f"{len(joined)} weight(s) that the file holds twice, once transposed, are one again: {listed}",)


def twin_notes(parameters: Iterable[ir.Value]) -> tuple[str, ...]:
    """Say which matrices without a name of their own hold what another holds, in the same shape.

    jax2onnx writes a weight as often as the program reads it. What torch's exporter tells of is left out: it writes
    layers that begin as copies of one another.

    Args:
        parameters: initializers that are trained: what constants share needs no mention.
    """
    first: dict[tuple[ir.DataType | None, _Shape, bytes], ir.Value] = {}
    found = []
    for value in parameters:
        if not _is_matrix(value) or not is_numbered(value.name or "") or STANDS_FOR in value.metadata_props:
            continue
        matrix = _matrix(value)
        corner = matrix.numpy().reshape(-1)[:_CORNER].tobytes()
        other = first.setdefault((value.dtype, _sizes(value), corner), value)
        if other is not value and structure_of(matrix) is None and are_equal(matrix, _matrix(other)):
            found.append(f"'{value.name}' as '{other.name}'")
    if not found:
        return ()
    listed = shortened(found, 3)
    return (
        f"{len(found)} weight(s) hold the numbers of another ({listed}) and are trained apart from it; if they are one "
        "in the model, its gradient is their sum",
    )


def has_made_up_name(name: str) -> bool:
    """Whether an exporter made up a name: numbered, or what it calls the operation, as ``t`` for a transpose.

    A copy of a weight has such a name, and follows the weight when that is written into its file again.
    """
    return is_numbered(name) or is_moved_name(name) or _TURNED.fullmatch(name) is not None


def _is_matrix(value: ir.Value) -> bool:
    """Whether an initializer is a matrix of floating-point numbers, perhaps with axes of one element behind.

    A few whole numbers are places of a grid, which files hold along one axis and along the other.
    """
    floating = value.dtype is not None and value.dtype.is_floating_point()
    shape = static_shape(value) or ()
    if not floating or value.const_value is None or len(shape) < _RANK or not set(shape[_RANK:]) <= {1}:
        return False
    return value.const_value.size > _FEW or not _are_whole(value.const_value.numpy())


def _are_whole(array: np.ndarray[Any, Any]) -> bool:
    return bool((array == np.rint(array)).all())


def _may_stand_for(value: ir.Value, weight: ir.Value) -> bool:
    """Whether the file does not say that what was computed is of another parameter, or of none, as of a buffer."""
    target = value.metadata_props.get(STANDS_FOR)
    return target is None or target in (weight.name, weight.metadata_props.get(STANDS_FOR))


def _sizes(value: ir.Value) -> _Shape:
    return (static_shape(value) or ())[:_RANK]


def _moved(copy: ir.Value, weight: ir.Value) -> Function | None:
    """The function that makes a copy of a weight; None if it is another weight, or one of the same shape."""
    one, other = _matrix(copy), _matrix(weight)
    shape, source = static_shape(copy) or (), static_shape(weight) or ()
    turned = are_equal(one, other, (1, 0))
    # Whether values follow a formula takes longer to find out than whether they are others.
    if not (turned or (shape != source and are_equal(one, other))) or structure_of(one) is not None:
        return None
    plain = tuple(range(len(source)))
    if turned:
        return transposed() if len(shape) == len(source) == _RANK else reshaped(shape, (1, 0, *plain[_RANK:]))
    return reshaped(shape, plain)


def _matrix(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None  # of an initializer
    return ir.Tensor(value.const_value.numpy().reshape(_sizes(value)), dtype=value.dtype)
