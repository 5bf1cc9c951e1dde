"""Inputs that are fixed as constants: what they decide is decided when the model is read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ckplan.arguments import check_table
from ckplan.display import did_you_mean, shortened
from ckplan.errors import UsageError
from ckplan.model.constants import mark_constant
from ckplan.model.inference.infer import static_shape
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import reads

Number: TypeAlias = "int | float | bool"
Fixed: TypeAlias = "Mapping[str, Number | Sequence[Number]]"


def shapes_of(
    graph: ir.Graph, fixed: Fixed | None, shapes: Mapping[str, Sequence[int]] | None
) -> dict[str, Sequence[int]]:
    """The shapes of inputs: those that are given, and those that lists of numbers give to inputs of one dimension.

    Raises:
        UsageError: the graph has no such input, or one of the arguments is no table.
    """
    fixed = {} if fixed is None else fixed
    shapes = {} if shapes is None else shapes
    check_table("what inputs are set to", fixed)
    check_table("`shapes`", shapes)
    inputs = {value.name: value for value in graph.inputs}
    found: dict[str, Sequence[int]] = {}
    for name, numbers in fixed.items():
        if name not in inputs:
            listed = shortened([f"'{known}'" for known in inputs], 10) or "none"
            hint = did_you_mean(name, [str(known) for known in inputs], most=3) or f"its inputs are {listed}"
            raise UsageError(f"the model has no input '{name}' to set", hint)
        shape = inputs[name].shape
        if isinstance(numbers, Sequence) and (shape is None or len(shape) == 1):
            found[name] = (len(numbers),)
    return {**found, **shapes}


def fix(graph: ir.Graph, fixed: Fixed) -> tuple[str, ...]:
    """Make constants of inputs, in place.

    Args:
        graph: its inputs have types and static shapes.
        fixed: input name -> a number, for every element, or as many numbers as there are elements.

    Returns:
        Notes.

    Raises:
        UsageError: the numbers do not fit the input's type or shape.
    """
    notes = []
    for name, numbers in fixed.items():
        (value,) = (value for value in graph.inputs if value.name == name)
        value.const_value = ir.Tensor(array_of(value, numbers), dtype=value.dtype, name=name)
        graph.inputs.remove(value)
        graph.register_initializer(value)
        mark_constant(value, "set")
        notes.append(f"input '{name}' is set to {_spelled(numbers)}")
    return tuple(notes)


def spell_fixed(fixed: Fixed) -> str:
    """What inputs are fixed at as JSON, for the metadata of a model."""
    return json.dumps({name: np.asarray(numbers).tolist() for name, numbers in fixed.items()})


def deciding_input(graph: ir.Graph, node: ir.Node) -> str:
    """The input of a main graph that alone decides whether a node inside of an If runs; empty if none does."""
    pending: list[ir.Value | None] = []
    for holder in graph:
        inside = any(inner is node for body in graphs_in(holder) for inner in body.all_nodes())
        if holder.op_type == "If" and inside:
            pending.append(holder.inputs[0])
    found = sole_input(pending)
    return "" if found is None else str(found.name)


def sole_input(values: Iterable[ir.Value | None]) -> ir.Value | None:
    """The input of a graph that alone decides on some values of it; None if none does, or several do."""
    pending, seen = list(values), set[ir.Value]()
    while pending:
        value = pending.pop()
        if value is not None and value not in seen:
            seen.add(value)
            maker = value.producer()
            pending.extend(reads(maker) if maker is not None else ())
    found = [value for value in seen if value.is_graph_input()]
    return found[0] if len(found) == 1 else None


def _spelled(numbers: Number | Sequence[Number]) -> str:
    return shortened([str(number) for number in numbers]) if isinstance(numbers, Sequence) else str(numbers)


def array_of(value: ir.Value, numbers: Number | Sequence[Number]) -> np.ndarray:
    """The array of an input that is fixed.

    Args:
        value: the input, of a static shape.
        numbers: one for every element, or as many as there are elements.

    Raises:
        UsageError: the numbers do not fit the input's type or shape.
    """
    shape, dtype = static_shape(value), value.dtype
    if shape is None or dtype is None or dtype == ir.DataType.STRING:
        raise UsageError(f"input '{value.name}' is not a tensor of numbers and cannot be set", "leave it as an input")
    given = np.asarray(numbers)
    if given.dtype.kind not in "biufc":  # None would be NaN
        raise UsageError(f"input '{value.name}' cannot be {numbers!r}", "give numbers, or true and false")
    array = given.astype(dtype.numpy())
    if not np.array_equal(array, given) and not dtype.is_floating_point():
        remedy = "give true or false" if dtype == ir.DataType.BOOL else "give whole numbers"
        raise UsageError(f"input '{value.name}' of type {dtype} cannot be {_spelled(numbers)}", remedy)
    if given.ndim == 0:
        return np.broadcast_to(array, shape)
    if given.size != math.prod(shape):
        raise UsageError(
            f"input '{value.name}' has {math.prod(shape)} elements, {given.size} were given for it",
            "give one number for all of them, or one for each",
        )
    return array.reshape(shape)
