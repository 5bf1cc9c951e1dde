"""Whether two nodes compute the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir


def is_twin(node: ir.Node, other: ir.Node, values: Mapping[ir.Value, ir.Value] | None = None) -> bool:
    """Whether a node makes what another makes: the same operator of the same values, in all bodies, too.

    Args:
        node: the node.
        other: the other.
        values: what stands in the place of a value, for nodes of two bodies.
    """
    values = values or {}
    read = [value if value is None else values.get(value, value) for value in node.inputs]
    return (
        node.op_identifier() == other.op_identifier()
        and read == list(other.inputs)
        and len(node.outputs) == len(other.outputs)
        and node.attributes.keys() == other.attributes.keys()
        and all(_are_equal(a, other.attributes[name], values) for name, a in node.attributes.items())
    )


def _are_equal(attribute: ir.Attr, other: ir.Attr, values: Mapping[ir.Value, ir.Value]) -> bool:
    if attribute.type != other.type or attribute.ref_attr_name != other.ref_attr_name:
        return False
    if attribute.type == ir.AttributeType.GRAPH:
        return _are_same(attribute.as_graph(), other.as_graph(), values)
    if attribute.type == ir.AttributeType.GRAPHS:
        bodies, others = attribute.as_graphs(), other.as_graphs()
        return len(bodies) == len(others) and all(_are_same(*pair, values) for pair in zip(bodies, others, strict=True))
    if attribute.type == ir.AttributeType.TENSOR:
        return _hold_the_same(attribute.as_tensor(), other.as_tensor())
    return bool(attribute.value == other.value)


def _are_same(body: ir.Graph, other: ir.Graph, values: Mapping[ir.Value, ir.Value]) -> bool:
    """Whether two bodies are the same but for their names."""
    inner = dict(values)
    numbers, others = list(body.initializers.values()), list(other.initializers.values())
    pairs = ((body.inputs, other.inputs), (body.outputs, other.outputs), (numbers, others), (body, other))
    if any(len(mine) != len(theirs) for mine, theirs in pairs):
        return False
    if not all(_hold_the_same(a.const_value, b.const_value) for a, b in zip(numbers, others, strict=True)):
        return False
    inner.update(zip(body.inputs, other.inputs, strict=True))
    inner.update(zip(numbers, others, strict=True))
    for node, twin in zip(body, other, strict=True):
        if not is_twin(node, twin, inner):
            return False
        inner.update(zip(node.outputs, twin.outputs, strict=True))
    return [inner.get(value, value) for value in body.outputs] == list(other.outputs)


def _hold_the_same(tensor: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    if tensor is None or other is None or tensor is other:
        return tensor is other
    return tensor.dtype == other.dtype and np.array_equal(tensor.numpy(), other.numpy())
