"""What torch's exporter computed of parameters beforehand is computed in the graph again, where values tell how.

The optimiser of torch's default exporter computes what depends on parameters alone: the `1 - mix` of a time mix, the
`1 / alpha` of a Snake. Where the parameter is read elsewhere as well it stays in the file, and its gradient lacks the
part that went through what was computed. The result's metadata name the tensors that it was computed of.

Of a file with a fixed batch it also computes the first step of a recurrent cell that begins with zeros: what is left of
the product of the state is a bias, once for each sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.constants import add_initializer, mark_constant, unused_name
from ckplan.model.repeats import put_expand
from ckplan.model.torch_export import KIND, folded_from, is_unstructured

_ULPS = 4
"""How far the results of another library's kernel may lie from the exporter's, in units of the last place."""

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Function:
    """A function of one tensor.

    Attributes:
        values: what it makes of an array.
        nodes: the operators, the innermost first; ``1`` stands for a one of the parameter's type, ``x`` for the
            parameter or what the operator before makes.
        title: how torch calls the last of them.
    """

    values: Callable[[_Array], _Array]
    nodes: Sequence[tuple[str, str]]
    title: str


_FUNCTIONS = (
    _Function(lambda x: 1 - x, (("Sub", "1x"),), "sub"),
    _Function(lambda x: 1 + x, (("Add", "1x"),), "add"),
    _Function(lambda x: -x, (("Neg", "x"),), "neg"),
    _Function(lambda x: 1 / x, (("Reciprocal", "x"),), "reciprocal"),
    _Function(np.exp, (("Exp", "x"),), "exp"),
    _Function(lambda x: -np.exp(x), (("Exp", "x"), ("Neg", "x")), "neg"),
    _Function(np.sqrt, (("Sqrt", "x"),), "sqrt"),
    _Function(lambda x: x * x, (("Mul", "xx"),), "pow"),
)


def unfold(model: ir.Model) -> tuple[str, ...]:
    """Compute again, in place, what was computed of parameters that are in the file as well.

    Returns:
        Notes: what is computed again, and what cannot be, so that a gradient lacks a part.
    """
    graph = model.graph
    again, lacking = [], []
    for value in list(graph.initializers.values()):
        parameters = [graph.initializers[name] for name in folded_from(value) if name in graph.initializers]
        parameters = [one for one in parameters if one.metadata_props.get(KIND) == "PARAMETER"]
        if not parameters or not _is_numbers(value) or value.metadata_props.get(keys.STANDS_FOR):
            continue
        function = _function(value, parameters[0]) if len(parameters) == 1 else None
        row = _repeated(value, parameters)
        said = f"'{value.name}' of '{(row or parameters[0]).name}'"
        if row is not None and not value.is_graph_output():
            put_expand(graph, value, row)
            again.append(said)
        elif function is not None and not value.is_graph_output():
            _compute(graph, value, parameters[0], function)
            again.append(said)
        elif is_unstructured(value):
            lacking.append(f"'{value.name}' of {_listed(value, parameters)}")
    notes = []
    if again:
        notes.append(f"{shortened(again, 3)}: computed by torch's exporter, and in the step again")
    if lacking:
        notes.append(
            f"{len(lacking)} tensor(s) were computed by torch's exporter of parameters that are in the file as well: "
            f"{shortened(lacking, 3)}; their gradients lack that part, and ckplan.export keeps it"
        )
    return tuple(notes)


def _listed(value: ir.Value, parameters: Sequence[ir.Value]) -> str:
    """Name the parameters that a tensor was computed of and that are read elsewhere, turned ones by torch's names."""
    graph = parameters[0].graph
    assert graph is not None
    turned = {one.metadata_props.get(keys.STANDS_FOR) for one in graph.initializers.values() if one is not value}
    here = {one.name for one in parameters}
    return " and ".join(repr(name) for name in folded_from(value) if name in here or name in turned)


def _is_numbers(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.dtype.is_floating_point()


def _function(value: ir.Value, parameter: ir.Value) -> _Function | None:
    """How a tensor was computed of a parameter; None where nothing or more than one thing explains it."""
    if value.const_value is None or parameter.const_value is None or value.shape != parameter.shape:
        return None
    result, array = value.const_value.numpy(), parameter.const_value.numpy()
    if result.dtype != array.dtype or array.dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        near = _ULPS * float(np.finfo(array.dtype).eps)
        found = [one for one in _FUNCTIONS if np.allclose(one.values(array), result, rtol=near, atol=0.0)]
    named = [one for one in found if re.match(rf"r?{one.title}(_\d+)?$", str(value.name))]
    if len(named) == 1 and len(found) > 1:
        found = named
    told = np.ptp(array) > 0 or found == named
    return found[0] if len(found) == 1 and told else None


def _repeated(value: ir.Value, parameters: Sequence[ir.Value]) -> ir.Value | None:
    """Which of the parameters that a tensor was computed of it holds again and again; None if it is not one alone.

    The others have no part in it: none of them is zero, so that of a product what they were multiplied by is.
    """
    if value.const_value is None or not all(map(is_unstructured, parameters)):
        return None
    array = value.const_value.numpy()
    found = []
    for parameter in parameters:
        assert parameter.const_value is not None  # it has numbers
        row = parameter.const_value.numpy()
        repeated = (
            row.ndim <= array.ndim and row.size < array.size and row.shape == array.shape[array.ndim - row.ndim :]
        )
        if repeated and row.dtype == array.dtype and (array == row).all():
            found.append(parameter)
    return found[0] if len(found) == 1 else None


def _compute(graph: ir.Graph, value: ir.Value, parameter: ir.Value, function: _Function) -> None:
    """Put nodes in the place of an initializer, before all others."""
    assert value.name is not None
    assert parameter.dtype is not None
    name, first = value.name, graph[0]
    del graph.initializers[name]
    made = parameter
    for number, (operator, operands) in enumerate(function.nodes):
        inputs = [made if operand == "x" else _one(graph, parameter.dtype) for operand in operands]
        title = name if number == len(function.nodes) - 1 else unused_name(graph, f"{name}/{operator}")
        result = ir.Value(name=title, shape=value.shape, type=value.type)
        graph.insert_before(first, ir.Node("", operator, inputs, outputs=[result], name=title))
        made = result
    value.replace_all_uses_with(made)


def _one(graph: ir.Graph, dtype: ir.DataType) -> ir.Value:
    name = unused_name(graph, "one")
    value = add_initializer(graph, name, ir.tensor(np.ones((), dtype.numpy()), name=name))
    mark_constant(value, "a literal of the program")
    return value
