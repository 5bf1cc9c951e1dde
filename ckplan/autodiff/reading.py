"""What a gradient rule reads off nodes and values: shapes, element types, attributes, operands."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.model.node_reads import fixed_tensor
from ckplan.operators.matching import input_of, is_op


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Return the static shape of a value.

    Raises:
        ModelError: the shape is unknown or has a dimension that is not a number.
    """
    if value.shape is None or not all(isinstance(dim, int) for dim in value.shape):
        raise ModelError(f"value '{value.name}' has no static shape", "load the model with ckplan.load, which finds it")
    return tuple(cast("Sequence[int]", value.shape))


def dtype_of(value: ir.Value) -> np.dtype[Any]:
    """Return the element type of a value as numpy (or ml_dtypes) knows it.

    Raises:
        ModelError: the element type is unknown.
    """
    if value.dtype is None:
        raise ModelError(f"value '{value.name}' has no element type", "load the model with ckplan.load, which finds it")
    return np.dtype(value.dtype.numpy())


def size_of(value: ir.Value) -> int:
    """Return the number of elements of a value."""
    return math.prod(shape_of(value))


def is_floating(value: ir.Value) -> bool:
    """Say whether a value is a floating-point tensor, the only kind that carries gradients."""
    return value.dtype is not None and value.dtype.is_floating_point()


def is_read_once(value: ir.Value) -> bool:
    """Say whether one input of one node reads a value, and nobody else."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def sole_reader(value: ir.Value) -> ir.Node | None:
    """The node of which one input reads a value, if nobody else does; see `is_read_once`."""
    return value.consumers()[0] if is_read_once(value) else None


def attr_int(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute of a node, or the operator's default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def attr_float(node: ir.Node, name: str, default: float) -> float:
    """Return a float attribute of a node, or the operator's default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def attr_str(node: ir.Node, name: str, default: str) -> str:
    """Return a string attribute of a node, or the operator's default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_string()


def attr_ints(node: ir.Node, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
    """Return a list-of-integers attribute of a node, or the default, which may be None for "absent"."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return None if default is None else tuple(default)
    return tuple(attribute.as_ints())


def required_input(node: ir.Node, index: int) -> ir.Value:
    """Return an input that the operator demands.

    Raises:
        ModelError: the model leaves it out.
    """
    value = input_of(node, index)
    if value is None:
        raise ModelError(f"{node.op_type} '{node.name}' lacks its input {index}")
    return value


def factor_of(node: ir.Node, held: Container[ir.Value] = ()) -> ir.Value | None:
    """Return the one number of the file that a node multiplies or divides all of its first input by, if it does that.

    Args:
        node: any node.
        held: values that gradients are asked for, which count as no numbers of the file.
    """
    if not is_op(node, ("Mul", "Div")):
        return None
    value = required_input(node, 1)
    return value if fixed_tensor(value) is not None and value not in held and size_of(value) == 1 else None
