"""Fused nodes, written as the nodes that onnxruntime makes them of."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from itertools import chain, count

import onnx_ir as ir

from ckplan.keys import SHAPE
from ckplan.runtime.sizes import dimensions_of, hide_dimensions

PARTS = "ckplan.parts"
"""Key in ``Node.meta`` of a fused node: what it is written as, a tuple of `Part` in execution order."""

FUSED = "ckplan.fused"
"""Key in ``Model.meta`` of a graph whose nodes are those that onnxruntime executes."""


@dataclass(frozen=True)
class Part:
    """A node that a fused one stands for.

    Attributes:
        domain: that of its operator, empty for ONNX's own.
        op_type: its operator.
        attributes: its attributes.
        inputs: what it reads: position among the inputs of the fused node, or the name of a constant of the graph or of
            what an earlier part makes.
        outputs: what it makes: position among the outputs of the fused node, or a name.
        types: element type and dimensions of each output, where they are known.
    """

    domain: str
    op_type: str
    attributes: tuple[ir.Attr, ...]
    inputs: tuple[int | str | None, ...]
    outputs: tuple[int | str, ...]
    types: tuple[tuple[ir.DataType | None, tuple[int, ...] | None], ...]


def unfuse(model: ir.Model) -> None:
    """Replace the fused nodes of a model by the nodes that they stand for, in place."""
    graph = model.graph
    taken = {str(node.name) for node in graph}
    for node in list(graph):
        parts: tuple[Part, ...] | None = node.meta.get(PARTS)
        if parts is None:
            continue
        inner: dict[str, ir.Value] = {}
        written = []
        stem = _stem(str(node.name), taken)
        for number, part in enumerate(parts, start=1):
            inputs = [_read(node, name, inner, graph) for name in part.inputs]
            last = number == len(parts)
            name = node.name if last else f"{stem}/part{number}"
            fresh = ir.Node(
                part.domain, part.op_type, inputs, part.attributes, num_outputs=len(part.outputs), name=name
            )
            fresh.metadata_props.update(node.metadata_props)
            written.append(fresh)
            for value, made, (dtype, dims) in zip(fresh.outputs, part.outputs, part.types, strict=True):
                if isinstance(made, int):
                    value.type, value.shape = node.outputs[made].type, node.outputs[made].shape
                    continue
                inner[made] = value
                value.name = f"{stem}/{made}" if made else ""
                value.type = None if dtype is None else ir.TensorType(dtype)
                if dims is not None:
                    hide_dimensions(value, dims)
            if part.op_type == "Add":
                _declare_summand(fresh, inner)
        graph.insert_before(node, written)
        for fresh, part in zip(written, parts, strict=True):
            for value, made in zip(fresh.outputs, part.outputs, strict=True):
                if isinstance(made, int):
                    old = node.outputs[made]
                    name, old.name = old.name, None
                    value.metadata_props.update(old.metadata_props)
                    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
                    value.name = name
        graph.remove(node, safe=True)


def _stem(name: str, taken: Container[str]) -> str:
    """What parts of a fused node are called after: its name, with a number where the file has such parts already."""
    stems = chain([name], (f"{name}_{number}" for number in count(1)))
    return next(stem for stem in stems if f"{stem}/part1" not in taken)


def _read(node: ir.Node, name: int | str | None, inner: dict[str, ir.Value], graph: ir.Graph) -> ir.Value | None:
    if name is None:
        return None
    if isinstance(name, int):
        return node.inputs[name]
    return inner[name] if name in inner else graph.initializers[name]


def _declare_summand(node: ir.Node, inner: dict[str, ir.Value]) -> None:
    """Declare the shape of a value inside of a fusion that is added to another as that one's.

    An addition is made part of a convolution only where onnxruntime sees that both shapes are the same
    (``core/optimizer/conv_add_act_fusion.cc``), and dimensions may be named after buffers.
    """
    for value, other in (node.inputs, node.inputs[::-1]):
        if value is None or other is None or value not in inner.values() or value.shape is not None:
            continue
        if dimensions_of(value) == dimensions_of(other):
            value.shape = other.shape
            value.metadata_props.pop(SHAPE, None)
