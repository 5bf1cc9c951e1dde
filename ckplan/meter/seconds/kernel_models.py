"""One node of a graph as a model of its own, to be timed apart from the graph."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.isolation.arrays import Array
from ckplan.model.costs import node_cost, seconds
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import fixed_tensor
from ckplan.runtime.sizes import dimensions_of

_NUMBERS = 64
"""Elements of the largest constant that is part of the kernel: shapes, axes, pads, exponents; larger ones are data."""

_LASTING = 2e-4
"""Seconds that the copies of a node are to take together: the clock does not tell less."""

_MOST_COPIES = 32
_MOST_BYTES = 2**25
"""What all copies may read and write."""

_LARGEST = 2**31
"""Bytes of the largest node that is timed: what is planned here may be for a larger machine."""

_LONGEST = 2.0
"""Seconds, as shapes tell, of the longest one; of so long a kernel they tell enough."""

_IN_CACHE = 2**16
"""Bytes of a node that a step will find in the core's own cache: its copies read the same tensors."""


@dataclass(frozen=True)
class Kernel:
    """A node to be timed.

    Attributes:
        model: several copies of the node, and one that reads the last of them, so that there is an output.
        copies: how many.
        below: what integers must be below, by input.
    """

    model: ir.Model
    copies: int
    below: Mapping[str, int]


def signature(node: ir.Node) -> str | None:
    """What the time of a node depends on: operator, attributes, types and shapes of what it reads, small constants.

    Returns:
        JSON, equal for nodes that run alike; None for a node that cannot be timed by itself, since it holds graphs,
        reads what is no tensor of known shape, or is too large.
    """
    if graphs_in(node) or any(not value.name for value in node.outputs[:1]):
        return None
    cost = node_cost(node)
    if cost.bytes > _LARGEST or seconds(cost) > _LONGEST:
        return None
    read: list[list[object] | None] = []
    for value in node.inputs:
        if value is None:
            read.append(None)
            continue
        dims = dimensions_of(value)
        if dims is None or value.dtype in (None, ir.DataType.STRING, ir.DataType.UNDEFINED):
            return None
        numbers = _numbers(value)
        read.append([str(value.dtype), list(dims), *([] if numbers is None else [numbers.tobytes().hex()])])
    attributes = {name: _text(attribute) for name, attribute in sorted(node.attributes.items())}
    made = [int(bool(value.name)) for value in node.outputs]
    return json.dumps([node.domain, node.op_type, attributes, read, made], separators=(",", ":"))


def kernel_of(node: ir.Node, opsets: Mapping[str, int]) -> Kernel:
    """Copies of a node in a model, as many as it takes for a time that can be read.

    Args:
        node: a node that has a `signature`; not changed.
        opsets: versions of the operator sets.
    """
    cost = node_cost(node)
    copies = min(_MOST_COPIES, int(_LASTING / max(seconds(cost), 1e-9)), _MOST_BYTES // max(cost.bytes, 1))
    copies = max(copies, 1)
    shared = cost.bytes <= _IN_CACHE
    inputs: dict[str, ir.Value] = {}
    nodes = []
    for copy in range(copies):
        read = [
            None if value is None else _input(value, f"{0 if shared else copy}_{place}", inputs)
            for place, value in enumerate(node.inputs)
        ]
        twin = ir.Node(
            node.domain, node.op_type, read, node.attributes.values(), num_outputs=len(node.outputs), name=f"{copy}"
        )
        for place, (value, original) in enumerate(zip(twin.outputs, node.outputs, strict=True)):
            value.name = f"made_{copy}_{place}" if original.name else ""
        nodes.append(twin)
    end = ir.node("Size", [nodes[-1].outputs[0]], name="end")
    result = end.outputs[0]
    result.name, result.shape, result.type = "end", ir.Shape(()), ir.TensorType(ir.DataType.INT64)
    constants = [value for value in inputs.values() if value.const_value is not None]
    fed = [value for value in inputs.values() if value.const_value is None]
    dims = [dim for value in node.inputs[:1] if value is not None for dim in dimensions_of(value) or ()]
    least = min(dims, default=1)
    below = {str(value.name): max(least, 1) for value in fed if value.dtype is not None and value.dtype.is_integer()}
    graph = ir.Graph(
        fed, [result], nodes=[*nodes, end], initializers=constants, opset_imports=dict(opsets), name="kernel"
    )
    return Kernel(ir.Model(graph, ir_version=10), copies, below)


def _input(value: ir.Value, name: str, made: dict[str, ir.Value]) -> ir.Value:
    """What a copy reads in the place of a value, made once for each name."""
    if name not in made:
        numbers = _numbers(value)
        made[name] = ir.Value(
            name=name,
            shape=ir.Shape(dimensions_of(value) or ()),
            type=ir.TensorType(value.dtype or ir.DataType.FLOAT),
            const_value=None if numbers is None else ir.tensor(numbers, name=name),
        )
    return made[name]


def _numbers(value: ir.Value) -> Array | None:
    """The constant that is part of a kernel, None for data."""
    tensor = fixed_tensor(value)
    return None if tensor is None or tensor.size > _NUMBERS else np.asarray(tensor.numpy())


def _text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype} {math.prod(tensor.shape.numpy())} {tensor.numpy().tobytes()[:_NUMBERS].hex()}"
    return str(attribute.value)
