"""Of what function of one tensor another one holds the values, and the nodes that compute it in the graph.

Exporters compute beforehand what depends on parameters alone. Only functions of one tensor are known here: they are
told by the values, to a few units in the last place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.model.constants import add_constant, add_initializer, unused_name

_ULPS = 4
"""How far the results of another library's kernel may lie from the exact ones, in units of the last place."""
_SUMMED_ULPS = 64
"""The same of a kernel that sums up."""
_FEW = 4
"""How many values along each axis are compared before all are."""
_AXES_AS_INPUT = 18
"""The opset since which most reductions take their axes as an input."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Operation:
    """A node of a function.

    Attributes:
        operator: of the standard.
        operands: ``x`` is the tensor or what the node before makes, ``p`` the tensor in any case, ``1`` a one; others
            are constants of the function.
        attributes: of the node.
    """

    operator: str
    operands: str = "x"
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Function:
    """A function of one tensor.

    Attributes:
        title: how torch calls the last of its operations.
        values: what it makes of an array.
        operations: the innermost first.
        ulps: how far results may lie apart.
        constants: what operands other than ``x`` and ``1`` stand for.
        axes: those along which it needs all values at once.
    """

    title: str
    values: Callable[[Array], Array]
    operations: tuple[Operation, ...]
    ulps: int = _ULPS
    constants: Mapping[str, Array] = field(default_factory=dict)
    axes: tuple[int, ...] = ()


#: Functions of each element.
ELEMENTWISE = (
    Function("sub", lambda x: 1 - x, (Operation("Sub", "1x"),)),
    Function("add", lambda x: 1 + x, (Operation("Add", "1x"),)),
    Function("neg", lambda x: -x, (Operation("Neg"),)),
    Function("reciprocal", lambda x: 1 / x, (Operation("Reciprocal"),)),
    Function("exp", np.exp, (Operation("Exp"),)),
    Function("exp", lambda x: np.exp(-x), (Operation("Neg"), Operation("Exp"))),
    Function("neg", lambda x: -np.exp(x), (Operation("Exp"), Operation("Neg"))),
    Function("log", np.log, (Operation("Log"),)),
    Function("sqrt", np.sqrt, (Operation("Sqrt"),)),
    Function("pow", lambda x: x * x, (Operation("Mul", "xx"),)),
    Function("sigmoid", lambda x: 1 / (1 + np.exp(-x)), (Operation("Sigmoid"),)),
    Function("tanh", np.tanh, (Operation("Tanh"),)),
    Function("softplus", lambda x: np.logaddexp(0, x), (Operation("Softplus"),)),
    Function("relu", lambda x: np.maximum(x, 0), (Operation("Relu"),)),
    Function("abs", np.abs, (Operation("Abs"),)),
)


def reductions(
    shape: tuple[int, ...], result: tuple[int, ...], opset: int, *, absolute: bool = False
) -> list[Function]:
    """Euclidean norms and sums of squares that give a result of a certain shape.

    Args:
        shape: of the tensor.
        result: shape of the result, with one element along the axes that are gone, or without one such axis.
        opset: of the graph, for the form of the nodes.
        absolute: whether sums of absolute values are among them.
    """
    keeps = len(shape) == len(result)
    found: list[Function] = []
    for axes in _gone(shape, result):
        if opset < _AXES_AS_INPUT:
            operands, attributes = "x", {"axes": axes, "keepdims": int(keeps)}
        else:
            operands, attributes = "xa", {"keepdims": int(keeps)}
        constants = {"a": np.array(axes, np.int64)}
        kinds = [("norm", "ReduceL2", _norm), ("sum", "ReduceSumSquare", _sum_of_squares)]
        kinds += [("norm", "ReduceL1", _sum_of_absolutes)] if absolute else []
        for title, operator, reduce in kinds:
            values = partial(reduce, axes=axes, keeps=keeps)
            operation = Operation(operator, operands, attributes)
            found.append(Function(title, values, (operation,), _SUMMED_ULPS, constants, axes))
    return found


def _norm(array: Array, axes: tuple[int, ...], keeps: bool) -> Array:
    return np.sqrt(_sum_of_squares(array, axes, keeps))


def _sum_of_absolutes(array: Array, axes: tuple[int, ...], keeps: bool) -> Array:
    return np.asarray(abs(array).sum(axis=axes, keepdims=keeps))


def _sum_of_squares(array: Array, axes: tuple[int, ...], keeps: bool) -> Array:
    return np.asarray((array * array).sum(axis=axes, keepdims=keeps))


def _gone(shape: tuple[int, ...], result: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The axes along which a tensor of one shape may be summed up for one of another."""
    if len(shape) == len(result):
        axes = tuple(axis for axis, (size, left) in enumerate(zip(shape, result, strict=True)) if size != left)
        return [axes] if axes and all(result[axis] == 1 for axis in axes) else []
    return [(axis,) for axis in range(len(shape)) if len(shape) > 1 and (*shape[:axis], *shape[axis + 1 :]) == result]


def normalised(axis: int) -> Function:
    """Division by the Euclidean norm along an axis."""
    return Function(
        "div",
        lambda x: x / np.sqrt((x * x).sum(axis=axis, keepdims=True)),
        (Operation("LpNormalization", "x", {"axis": axis, "p": 2}),),
        _SUMMED_ULPS,
        axes=(axis,),
    )


def divided(rank: int) -> list[Function]:
    """Division by one number of a tensor of some rank: its sum, its largest magnitude, the Euclidean norm of all of it.

    The norm of a vector is left to `normalised`.
    """
    every, by = tuple(range(rank)), Operation("Div", "px")
    found = [
        Function("div", values, (*reduced, by), _SUMMED_ULPS, axes=every)
        for values, reduced in (
            (lambda x: x / x.sum(), (Operation("ReduceSum"),)),
            (lambda x: x / np.abs(x).max(), (Operation("Abs"), Operation("ReduceMax"))),
            (lambda x: x / np.sqrt((x * x).sum()), (Operation("ReduceL2"),)),
        )
    ]
    return found[:-1] if rank == 1 else found


def scaled(array: Array, result: Array) -> Function | None:
    """Multiplication by the one number that fits at the largest element; None if there is none."""
    largest = int(np.abs(array).argmax()) if array.size else 0
    if not array.size or not array.reshape(-1)[largest]:
        return None
    factor = float(result.reshape(-1)[largest]) / float(array.reshape(-1)[largest])
    constants = {"c": np.array(factor, array.dtype)}
    return Function("mul", lambda x: x * factor, (Operation("Mul", "xc"),), _ULPS, constants)


def shifted(array: Array, result: Array) -> Function:
    """Addition of the one number that fits at the first element."""
    term = float(result.reshape(-1)[0]) - float(array.reshape(-1)[0])
    return Function("add", lambda x: x + term, (Operation("Add", "xc"),), _ULPS, {"c": np.array(term, array.dtype)})


def reshaped(result: tuple[int, ...], order: tuple[int, ...]) -> Function:
    """The very numbers in another shape, once the axes are in another order."""
    operations: tuple[Operation, ...] = (Operation("Reshape", "xs"),)
    if order != tuple(range(len(order))):
        operations = (Operation("Transpose", "x", {"perm": order}), *operations)
    constants = {"s": np.array(result, np.int64)}
    every = tuple(range(len(order)))
    return Function("view", lambda x: x.transpose(order).reshape(result), operations, 0, constants, every)


def transposed(function: Function | None = None) -> Function:
    """A function of the transpose of a matrix; that itself without one."""
    operation = Operation("Transpose", "x", {"perm": (1, 0)})
    if function is None:
        return Function("permute", np.transpose, (operation,), 0)
    of = function.values
    return Function(
        function.title,
        lambda x: of(np.transpose(x)),
        (operation, *function.operations),
        function.ulps,
        function.constants,
    )


def matching(array: Array, result: Array, functions: Iterable[Function]) -> list[Function]:
    """Which functions make a result of an array, both of one floating type."""
    if array.dtype != result.dtype or array.dtype.kind != "f":
        return []
    return [one for one in functions if _makes(one, array, result)]


def is_named_in(function: Function, names: Iterable[str]) -> bool:
    """Whether one of the names is torch's of the last operation of a function: ``sub_3``, ``rsub`` of ``sub``."""
    return any(re.match(rf"r?{function.title}(_\d+)?$", name) for name in names)


def add_parameter(graph: ir.Graph, value: ir.Value, suffix: str, array: Array) -> ir.Value:
    """Give a graph the parameter that an initializer is to be computed of: it stands for what that stood for."""
    name = unused_name(graph, f"{value.name}_{suffix}")
    parameter = add_initializer(graph, name, ir.Tensor(array, dtype=value.dtype, name=name))
    parameter.metadata_props.update({keys.STANDS_FOR: name, **value.metadata_props})
    return parameter


def array_of(value: ir.Value) -> Array:
    """The numbers of an initializer."""
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy())


def make_instead(graph: ir.Graph, value: ir.Value, node: ir.Node, before: ir.Node | None = None) -> None:
    """Put a node in the place of an initializer that holds what the node makes, under its name.

    Args:
        graph: in whose initializers the value is.
        value: the initializer.
        node: in no graph, with one output.
        before: where it goes; left out, before all other nodes.
    """
    name, result = str(value.name), node.outputs[0]
    graph.initializers.pop(name)
    node.name = result.name = name
    result.type, result.shape = value.type, value.shape
    graph.insert_before(before or graph[0], node)
    value.replace_all_uses_with(result)


def compute(graph: ir.Graph, value: ir.Value, source: ir.Value, function: Function) -> None:
    """Put nodes that compute it of another tensor in the place of an initializer, before all other nodes."""
    first, made = graph[0], source
    *inner, last = function.operations
    for operation in inner:
        node = _node_of(graph, operation, made, source, function)
        node.name = node.outputs[0].name = unused_name(graph, f"{value.name}/{operation.operator}")
        node.outputs[0].type = value.type
        graph.insert_before(first, node)
        made = node.outputs[0]
    make_instead(graph, value, _node_of(graph, last, made, source, function), before=first)


def _node_of(graph: ir.Graph, operation: Operation, made: ir.Value, source: ir.Value, function: Function) -> ir.Node:
    """An operation as a node in no graph; constants of the function that it reads are added to the graph."""
    assert source.dtype is not None
    known = {"x": made, "p": source}
    inputs = [known.get(one) or _constant(graph, one, source.dtype, function) for one in operation.operands]
    return ir.node(operation.operator, inputs, operation.attributes)


def _makes(function: Function, array: Array, result: Array) -> bool:
    tolerance = function.ulps * float(np.finfo(array.dtype).eps)
    with np.errstate(all="ignore"):
        if array.ndim == result.ndim and len(function.axes) < array.ndim:
            corner = tuple(slice(None if axis in function.axes else _FEW) for axis in range(array.ndim))
            few = function.values(array[corner].astype(np.float64))
            if few.shape != result[corner].shape or not np.allclose(few, result[corner], rtol=tolerance, atol=0.0):
                return False
        made = function.values(array.astype(np.float64))
        return made.shape == result.shape and np.allclose(made, result, rtol=tolerance, atol=0.0)


def _constant(graph: ir.Graph, letter: str, dtype: ir.DataType, function: Function) -> ir.Value:
    numbers = np.ones((), dtype.numpy()) if letter == "1" else function.constants[letter]
    name = {"1": "one", "a": "axes", "i": "places", "s": "shape"}.get(letter, "factor")
    return add_constant(graph, name, numbers, "a literal of the program")
