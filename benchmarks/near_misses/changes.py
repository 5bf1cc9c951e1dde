"""Changes to a forward model, most of which leave a model that runs: each may break the form that some rule looks for.

A change is made in place and returns what it did, or None where the model has nothing to change in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

Kinds = Mapping[str, tuple[int, tuple[int, ...]]]
"""Element type and shape of the values of a model whose shapes are known."""

_ALIKE = (
    ("Add", "Mul", "Sub", "Div", "Max", "Min"),
    ("Tanh", "Sigmoid", "Erf", "Softplus", "Relu", "Identity", "Sin"),
    ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"),
    ("Sqrt", "Exp", "Reciprocal", "Abs", "Neg"),
    ("Softmax", "LogSoftmax"),
    ("And", "Or"),
    ("Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
)
"""Operators that one may stand for another of, as far as types and shapes go."""
_SMALL = 4
"""Elements of what counts as a constant of a formula."""


def kinds_of(model: onnx.ModelProto) -> Kinds:
    """The values whose types and shapes are known.

    Raises:
        onnx.shape_inference.InferenceError: the model contradicts itself.
    """
    graph = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.HasField("tensor_type") and all(dim.HasField("dim_value") for dim in dims):
            found[value.name] = value.type.tensor_type.elem_type, tuple(dim.dim_value for dim in dims)
    return found


def change(model: onnx.ModelProto, random: Random) -> str | None:
    """Make one change at random."""
    make = random.choice(_CHANGES)
    done = make(model, random, kinds_of(model))
    return None if done is None else f"{make.__name__.lstrip('_')}: {done}"


def _other_constant(model: onnx.ModelProto, random: Random, kinds: Kinds) -> str | None:
    found = [tensor for tensor in _floats(model) if _count(tensor) <= _SMALL]
    if not found:
        return None
    tensor = random.choice(found)
    old = numpy_helper.to_array(tensor)
    new = random.choice([old * 2, old / 2, -old, old * 0, old * 0 + 1, old + 0.3, old[None]])
    _set(tensor, new)
    return f"{tensor.name} from {old.tolist()} to {new.tolist()}"


def _constant_by_element(model: onnx.ModelProto, random: Random, kinds: Kinds) -> str | None:
    """One number for all elements becomes one for each of an axis."""
    scalars = {tensor.name: tensor for tensor in _floats(model) if _count(tensor) == 1}
    found = [
        (node, place)
        for node in model.graph.node
        for place, name in enumerate(node.input)
        if name in scalars and node.op_type in _ALIKE[0] and kinds.get(node.output[0], (0, ()))[1]
    ]
    if not found:
        return None
    node, place = random.choice(found)
    shape = kinds[node.output[0]][1]
    wide = random.choice([shape[-1:], (*shape[-2:-1], 1), shape])
    number = numpy_helper.to_array(scalars[node.input[place]]).item()
    spread = np.random.default_rng(random.getrandbits(32)).normal(1, 0.2, wide)
    node.input[place] = _add(model, number * spread)
    return f"operand {place} of {_told(node)} in shape {wide}"


def _other_elements(model: onnx.ModelProto, random: Random, kinds: Kinds) -> str | None:
    """Two elements of a mask, a table of indices or a small parameter change places."""
    types = (TensorProto.BOOL, TensorProto.INT64, TensorProto.FLOAT)
    found = [tensor for tensor in model.graph.initializer if 1 < _count(tensor) <= 4096 and tensor.data_type in types]
    if not found:
        return None
    tensor = random.choice(found)
    array = numpy_helper.to_array(tensor).copy()
    one, other = random.randrange(array.size), random.randrange(array.size)
    array.flat[one], array.flat[other] = array.flat[other], array.flat[one]
    _set(tensor, array)
    return f"{one} and {other} of {tensor.name}"


def _other_attribute(model: onnx.ModelProto, random: Random, kinds: Kinds) -> str | None:
    found = [(node, attribute) for node in model.graph.node for attribute in node.attribute]
    if not found:
        return None
    node, attribute = random.choice(found)
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = random.choice([attribute.i - 1, attribute.i + 1, -attribute.i, 1 - attribute.i])
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f *= random.choice([0.5, 2, 100])
    elif attribute.type == onnx.AttributeProto.INTS and len(attribute.ints) > 1:
        one, other = random.sample(range(len(attribute.ints)), 2)
        attribute.ints[one], attribute.ints[other] = attribute.ints[other], attribute.ints[one]
    else:
        return None
    return f"{attribute.name} of {_told(node)}"


def _swapped_operands(model: onnx.ModelProto, random: Random, kinds: Kinds) -> str | None:
    found = [node for node in model.graph.node if len(node.input) == 2]
    if not found:
        return None
    node = random.choice(found)
    node.input[:] = reversed(node.input)
    return _told(node)


def _other_operator(model: onnx.ModelProto, random: Random, kinds: Kinds) -> str | None:
    found = [(node, some) for node in model.graph.node for some in _ALIKE if node.op_type in some]
    if not found:
        return None
    node, some = random.choice(found)
    told = _told(node)
    node.op_type = random.choice([other for other in some if other != node.op_type])
    return f"{node.op_type} for {told}"


def _other_operand(model: onnx.ModelProto, random: Random, kinds: Kinds) -> str | None:
    """A node reads another value of the same type and shape, as the node of a residual or of a second branch does."""
    found = [(at, place) for at, node in enumerate(model.graph.node) for place, name in enumerate(node.input) if name]
    at, place = random.choice(found)
    node = model.graph.node[at]
    others = [name for name in _made_before(model, at) if _alike(name, node.input[place], kinds)]
    if not others:
        return None
    node.input[place] = random.choice(others)
    return f"{node.input[place]} as operand {place} of {_told(node)}"


def _node_between(model: onnx.ModelProto, random: Random, kinds: Kinds) -> str | None:
    made = set(_made_before(model, len(model.graph.node)))
    found = [
        (at, place)
        for at, node in enumerate(model.graph.node)
        for place, name in enumerate(node.input)
        if name in made and kinds.get(name, (0, ()))[0] == TensorProto.FLOAT
    ]
    if not found:
        return None
    at, place = random.choice(found)
    node = model.graph.node[at]
    source, target = node.input[place], _fresh(model)
    op_type = random.choice(["Tanh", "Neg", "Relu", "Identity", "Mul", "Cast"])
    if op_type == "Cast":
        between = [
            helper.make_node("Cast", [source], [target + "_wide"], to=TensorProto.DOUBLE),
            helper.make_node("Cast", [target + "_wide"], [target], to=TensorProto.FLOAT),
        ]
    else:
        others = [name for name in _made_before(model, at) if _alike(name, source, kinds)]
        more = [random.choice([source, *others])] if op_type == "Mul" else []
        between = [helper.make_node(op_type, [source, *more], [target])]
    node.input[place] = target
    _insert(model, at, between)
    return f"{op_type} before operand {place} of {_told(node)}"


def _computed_twice(model: onnx.ModelProto, random: Random, kinds: Kinds) -> str | None:
    """One reader of a value gets a copy of it, from a node that does the same."""
    maker = {name: node for node in model.graph.node for name in node.output}
    found = [
        (at, place)
        for at, node in enumerate(model.graph.node)
        for place, name in enumerate(node.input)
        if name in maker
    ]
    if not found:
        return None
    at, place = random.choice(found)
    node, twin = model.graph.node[at], onnx.NodeProto()
    twin.CopyFrom(maker[node.input[place]])
    suffix = _fresh(model)
    twin.name = suffix
    twin.output[:] = [name and f"{name}_{suffix}" for name in twin.output]
    node.input[place] += f"_{suffix}"
    _insert(model, at, [twin])
    return f"{twin.op_type} for operand {place} of {_told(node)}"


def _also_read(model: onnx.ModelProto, random: Random, kinds: Kinds) -> str | None:
    """The output reads a value from the middle as well, its mean."""
    made = _made_before(model, len(model.graph.node))
    found = [name for name in made if kinds.get(name, (0, ()))[0] == TensorProto.FLOAT]
    output = model.graph.output[0]
    if not found or kinds.get(output.name, (0, ()))[0] != TensorProto.FLOAT:
        return None
    value, mean, total = random.choice(found), _fresh(model), f"{_fresh(model)}_sum"
    model.graph.node.append(helper.make_node("ReduceMean", [value], [mean], keepdims=0))
    model.graph.node.append(helper.make_node("Add", [output.name, mean], [total]))
    output.name = total
    return value


_CHANGES: tuple[Callable[[onnx.ModelProto, Random, Kinds], str | None], ...] = (
    _other_constant,
    _constant_by_element,
    _other_elements,
    _other_attribute,
    _swapped_operands,
    _other_operator,
    _other_operand,
    _node_between,
    _computed_twice,
    _also_read,
)


def _floats(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    return [tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT]


def _count(tensor: onnx.TensorProto) -> int:
    return int(np.prod(tensor.dims))


def _set(tensor: onnx.TensorProto, array: np.ndarray[Any, Any]) -> None:
    old = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array, old).reshape(array.shape), tensor.name))


def _add(model: onnx.ModelProto, array: np.ndarray[Any, Any]) -> str:
    model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), _fresh(model)))
    return model.graph.initializer[-1].name


def _insert(model: onnx.ModelProto, at: int, nodes: list[onnx.NodeProto]) -> None:
    for offset, node in enumerate(nodes):
        model.graph.node.insert(at + offset, node)


def _made_before(model: onnx.ModelProto, at: int) -> list[str]:
    return [name for node in model.graph.node[:at] for name in node.output if name]


def _alike(name: str, other: str, kinds: Kinds) -> bool:
    return name != other and name in kinds and kinds[name] == kinds.get(other)


def _fresh(model: onnx.ModelProto) -> str:
    return f"changed_{len(model.graph.node)}_{len(model.graph.initializer)}"


def _told(node: onnx.NodeProto) -> str:
    return f"{node.op_type} '{node.name or node.output[0]}'"
