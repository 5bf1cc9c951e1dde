"""What torch's exporters computed of a parameter keeps the form that this gave it, where the values show the form.

A module multiplies by ``w + w.T``, by ``w - w.T`` or by ``softmax(w)``, and the file holds the result alone. Trained as
it is, it would become any matrix. Its values are exactly symmetric or antisymmetric, or positive with sums of one, as
those of no weight that was trained freely are: so it is computed of a parameter again. Which one of those that give
these values does not matter, since the gradient is the same at all of them.

Of the default exporter's results the names tell more: which parameter it was, of ``-exp(a)``, ``sigmoid(g)``,
``softplus(b)`` and ``tanh(g)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.literals import is_numbered
from ckplan.model.structure import is_one_number, is_unstructured
from ckplan.model.torch_files.exporter_metadata import folded_from, is_moved_name
from ckplan.model.torch_files.functions import Array, Function, Operation, add_parameter, compute

_SQUARE = 2
_FEWEST = 4
"""How many numbers there are at least along the axis of probabilities, where no name tells of a softmax."""
_ULPS = 64
"""How far from one sums of probabilities may lie, in units of the last place."""
_SOFTMAX = re.compile(r"_?softmax(_\d+)?")
_INVERTED_ULPS = 16
"""How far what is computed of a parameter that was found by the inverse may lie from what it was."""
_ON_THE_WAY = re.compile(r"val_\d+|(beta|self_scaled|threshold|tmp)(_\d+)?(_cast)?")
"""What has no name of the program: sizes and axes, and what a softplus is made of."""


@dataclass(frozen=True)
class _Named:
    """A function whose parameter is found by its inverse.

    Attributes:
        called: how torch calls its operations, in the order of the alphabet.
        holds: whether it may have a result.
        inverse: finds the parameter.
        function: what computes the result of it.
    """

    called: tuple[str, ...]
    holds: Callable[[Array], bool]
    inverse: Callable[[Array], Array]
    function: Function


_EXP, _NEG = Operation("Exp"), Operation("Neg")
_NAMED = tuple(
    _Named(tuple(called.split()), holds, inverse, Function(called, values, operations))
    for called, holds, inverse, values, operations in (
        ("exp", lambda r: r > 0, np.log, np.exp, (_EXP,)),
        ("exp neg", lambda r: r < 0, lambda r: np.log(-r), lambda x: -np.exp(x), (_EXP, _NEG)),
        ("exp neg", lambda r: r > 0, lambda r: -np.log(r), lambda x: np.exp(-x), (_NEG, _EXP)),
        ("sigmoid", lambda r: (r > 0) & (r < 1), lambda r: np.log(r / (1 - r)), lambda x: 1 / (1 + np.exp(-x)),
         (Operation("Sigmoid"),)),
        ("softplus", lambda r: r > 0, lambda r: r + np.log(-np.expm1(-r)), lambda x: np.logaddexp(0, x),
         (Operation("Softplus"),)),
        ("tanh", lambda r: np.abs(r) < 1, np.arctanh, np.tanh, (Operation("Tanh"),)),
    )
)  # fmt: skip


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
        holds_numbers = is_unstructured(value) or (told and is_one_number(value))
        if not computed or not value.uses() or value.is_graph_output() or not holds_numbers:
            continue
        form = (_named_form(value) if told else None) or _form(value)
        if form is None:
            continue
        said, source, function = form
        found.append(f"'{value.name}' ({said})")
        compute(graph, value, add_parameter(graph, value, "free", source), function)
    if not found:
        return ()
    return (
        f"{len(found)} weight(s) are computed of a parameter in the step, as torch's exporter seems to have done: "
        f"{shortened(found, 3)}; ckplan.export keeps the parameters",
    )


def _named_form(value: ir.Value) -> tuple[str, Array, Function] | None:
    """The same, where the names of what a tensor was computed by are those of one function, apart from moves."""
    assert value.const_value is not None  # of an initializer
    array = np.asarray(value.const_value.numpy())
    parameters = {value.metadata_props[keys.STANDS_FOR]}
    names = {str(value.name), *folded_from(value)} - parameters
    roots = [re.sub(r"_\d+$", "", one) for one in names if not (is_moved_name(one) or _ON_THE_WAY.fullmatch(one))]
    called = tuple(sorted(set(roots) if "softplus" in roots else roots))  # which is written as several operations
    if array.dtype.kind != "f":
        return None
    wide = array.astype(np.float64)
    tolerance = _INVERTED_ULPS * float(np.finfo(array.dtype).eps)
    for one in _NAMED:
        if called != one.called or not np.all(one.holds(wide)):
            continue
        source = one.inverse(wide).astype(array.dtype)
        if np.isfinite(source).all() and np.allclose(one.function.values(source), wide, rtol=tolerance, atol=0.0):
            return f"of '{value.metadata_props[keys.STANDS_FOR]}'", source, one.function
    return None


def _form(value: ir.Value) -> tuple[str, Array, Function] | None:
    """The form of a tensor in words, a parameter that gives it, and the function that does."""
    assert value.const_value is not None  # of an initializer
    array = np.asarray(value.const_value.numpy())
    if array.dtype.kind != "f":
        return None
    is_square = array.ndim == _SQUARE and array.shape[0] == array.shape[1] > 1
    if is_square and np.triu(array, 1).any():  # diagonals are in `masked_weights`
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
