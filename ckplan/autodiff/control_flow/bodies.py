"""The graphs inside control-flow nodes: emitting into them, copying parts of them, closing them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.presence import there
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.registry import NoGradientError
from ckplan.keys import PHASE
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_copies import copy_nodes as copied
from ckplan.operators.matching import is_op


class BodyBuilder(Builder):
    """Emits nodes into the body of a control-flow node.

    Names are unique in the whole model, because a body's names must not shadow those around it, and constants become
    initializers of the main graph, where all others are.

    Args:
        outer: builder of the graph around the body.
        graph: the body.
        wanted: the values whose gradients are needed.
    """

    def __init__(self, outer: Builder, graph: ir.Graph, wanted: Container[ir.Value] = ()) -> None:
        super().__init__(graph, outer.opset_imports, wanted, outer.functions, outer.device)
        self._outer = outer
        self._names = outer._names
        self._counters = outer._counters

    def constant(self, array: np.ndarray | np.generic | Sequence[int], name: str = "ckplan/constant") -> ir.Value:
        """Return an initializer of the main graph with this content; a sequence of ints becomes int64."""
        return self._outer.constant(array, name)


def new_value(op: Builder, name: str, dtype: ir.DataType | None, shape: Iterable[int | str]) -> ir.Value:
    """Return a value that nothing makes yet, such as an input of a new body; its name is made unique.

    Args:
        op: builder that knows which names are taken.
        name: what to call it.
        dtype: its element type.
        shape: its dimensions.
    """
    assert dtype is not None
    return ir.Value(name=op.unique_name(name), type=ir.TensorType(dtype), shape=ir.Shape(tuple(shape)))


def demand_static(node: ir.Node) -> None:
    """Check that every floating value in the bodies of a node has a static shape.

    Raises:
        NoGradientError: one has not; the message names it.
    """
    for graph in graphs_in(node):
        for inner in graph:
            for value in inner.outputs:
                unknown = value.shape is None or not value.shape.is_static()
                if value.name and isinstance(value.type, ir.TensorType | None) and unknown:
                    raise NoGradientError(f"the shape of '{value.name}' in its body is not the same in every run of it")


def copy_nodes(
    op: Builder, nodes: Iterable[ir.Node], values: dict[ir.Value, ir.Value], phase: str | None = None
) -> list[ir.Node]:
    """Copy nodes, with their bodies, under new names.

    Args:
        op: builder that knows which names are taken.
        nodes: in topological order.
        values: what to read instead of a value; what the copies make is added.
        phase: phase to mark the copies with; None keeps that of the original.
    """
    return copied(nodes, values, op.unique_name, {} if phase is None else {PHASE: phase})


def close(op: Builder, outputs: Sequence[ir.Value], phase: str = "backward") -> list[ir.Value]:
    """Return values that can be outputs of the body that ``op`` emits into.

    An output has to be made in the body itself, and onnxruntime misreads a value that stands there twice; so others
    are copied.

    Args:
        op: builder of the body.
        outputs: what should come out.
        phase: phase of the copies.
    """
    closed: list[ir.Value] = []
    for value in outputs:
        producer = value.producer()
        if producer is None or producer.graph is not op.graph or value in closed:
            with op.scope(f"{value.name}/out", phase):
                value = op.Identity(value)
        closed.append(value)
    return closed


def close_body(op: Builder) -> None:
    """Make every output of a body a value of its own that a node in it makes; see :func:`close`."""
    outputs = close(op, list(op.graph.outputs), "forward")
    op.graph.outputs.clear()
    op.graph.outputs.extend(outputs)


def origin(value: ir.Value) -> ir.Value:
    """Return the value that a chain of Identity nodes copies."""
    producer = value.producer()
    while is_op(producer, "Identity") and producer.inputs[0]:
        value = producer.inputs[0]
        producer = value.producer()
    return value


def zeros(op: Builder, like: ir.Value, after: ir.Value) -> ir.Value:
    """Return zeros of the shape and type of one value, made once another is there; see :meth:`Builder.zeros`."""
    zero = op.Cast(op.Not(there(op, after)), to=like.dtype)
    return op.expand(zero, shape_of(like))


def emit_control(
    op: Builder,
    op_type: str,
    name: str,
    inputs: Sequence[ir.Value | None],
    attributes: Sequence[ir.Attr],
    outputs: Sequence[ir.Value],
    metadata: Mapping[str, str],
) -> ir.Node:
    """Emit a control-flow node, whose outputs' types and shapes no inference has to find.

    Args:
        op: builder of the graph that gets the node.
        op_type: If, Loop or Scan.
        name: what to call it; made unique.
        inputs: its inputs.
        attributes: its attributes, bodies among them.
        outputs: the values that it makes.
        metadata: of the node, its phase among it.
    """
    node = ir.Node(
        "", op_type, inputs, attributes, outputs=outputs, name=op.unique_name(name), metadata_props=dict(metadata)
    )
    op.insert(node)
    return node


def emit_scan(
    op: Builder,
    name: str,
    body: ir.Graph,
    states: Sequence[ir.Value],
    sequences: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    metadata: Mapping[str, str],
    tracks: Sequence[ir.Attr] = (),
) -> ir.Node:
    """Emit a Scan (https://onnx.ai/onnx/operators/onnx__Scan.html).

    Args:
        op: builder of the graph that gets the node.
        name: what to call it; made unique.
        body: what is done in a step; its inputs are states, then an element of each sequence.
        states: what the first step starts from.
        sequences: what it goes over.
        outputs: the last states, then what the steps have made.
        metadata: of the node, its phase among it.
        tracks: axes and directions of sequences and outputs, where they are not the first one and forwards.
    """
    attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(sequences)), *tracks]
    return emit_control(op, "Scan", name, [*states, *sequences], attributes, outputs, metadata)


def dims_of(value: ir.Value) -> tuple[int, ...]:
    """Return the static shape of a value in a body.

    Raises:
        NoGradientError: it has none.
    """
    if value.shape is None or not value.shape.is_static():
        raise NoGradientError(f"the shape of '{value.name}' in its body is not the same in every run of it")
    return tuple(cast("Sequence[int]", value.shape))
