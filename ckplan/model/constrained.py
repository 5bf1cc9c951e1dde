"""What torch's exporters computed of a parameter keeps the form that this gave it, where the values show the form.

A module multiplies by ``w + w.T``, by ``w - w.T`` or by ``softmax(w)``, and the file holds the result alone. Trained as
it is, it would become any matrix. Its values are exactly symmetric or antisymmetric, or positive with sums of one, as
those of no weight that was trained freely are: so it is computed of a parameter again. Which one of those that give
these values does not matter, since the gradient is the same at all of them.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.constants import add_initializer, unused_name
from ckplan.model.functions import Array, Function, Operation, compute
from ckplan.model.literals import is_numbered
from ckplan.model.torch_export import folded_from, is_unstructured

_SQUARE = 2
_FEWEST = 4
"""How many numbers there are at least along the axis of probabilities, where no name tells of a softmax."""
_ULPS = 64
"""How far from one sums of probabilities may lie, in units of the last place."""
_SOFTMAX = re.compile(r"_?softmax(_\d+)?")


def keep_forms(model: ir.Model) -> tuple[str, ...]:
    """Compute symmetric and antisymmetric matrices and probabilities of a parameter of the same shape, in place.

    Returns:
        Notes.
    """
    if model.producer_name != "pytorch":
        return ()
    graph = model.graph
    found = []
    for value in list(graph.initializers.values()):
        told = bool(value.metadata_props.get(keys.STANDS_FOR))
        computed = told or (is_numbered(value.name or "") and keys.STANDS_FOR not in value.metadata_props)
        if not computed or not value.uses() or value.is_graph_output() or not is_unstructured(value):
            continue
        form = _form(value)
        if form is None:
            continue
        said, source, function = form
        name = unused_name(graph, f"{value.name}_free")
        free = add_initializer(graph, name, ir.Tensor(source, dtype=value.dtype, name=name))
        free.metadata_props.update({keys.STANDS_FOR: name, **value.metadata_props})
        found.append(f"'{value.name}' ({said})")
        compute(graph, value, free, function)
    if not found:
        return ()
    return (
        f"{len(found)} weight(s) that torch's exporter seems to have computed of a parameter stay what they are: "
        f"{shortened(found, 3)}; ckplan.export keeps the parameters",
    )


def _form(value: ir.Value) -> tuple[str, Array, Function] | None:
    """The form of a tensor in words, a parameter that gives it, and the function that does."""
    assert value.const_value is not None  # of an initializer
    array = np.asarray(value.const_value.numpy())
    if array.dtype.kind != "f":
        return None
    if array.ndim == _SQUARE and array.shape[0] == array.shape[1]:
        for said, operator, sign in (("symmetric", "Add", 1), ("antisymmetric", "Sub", -1)):
            if np.array_equal(array, sign * array.T):
                return said, array / 2, _with_transpose(operator)
    least = 2 if any(map(_SOFTMAX.fullmatch, (str(value.name), *folded_from(value)))) else _FEWEST
    axes = [axis for axis in range(array.ndim) if array.shape[axis] >= least and _are_probabilities(array, axis)]
    if len(axes) != 1:
        return None
    softmax = Operation("Softmax", "x", {"axis": axes[0]})
    return "probabilities", np.log(array), Function("softmax", lambda x: x, (softmax,))


def _with_transpose(operator: str) -> Function:
    """The sum of a matrix and its transpose, or their difference."""
    turned = Operation("Transpose", "x", {"perm": (1, 0)})
    return Function("add", lambda x: x, (turned, Operation(operator, "px")))


def _are_probabilities(array: Array, axis: int) -> bool:
    if not (array > 0).all():
        return False
    sums = array.sum(axis=axis, dtype=np.float64)
    return bool((np.abs(sums - 1) <= _ULPS * float(np.finfo(array.dtype).eps)).all())
