"""Control edges out of standard operators: a node that waits for a tensor it does not read.

``alias = Reshape(t, Where(OptionalHasElement(after), shape, shape))`` is ``t`` itself, without a copy, but ready only
once ``after`` is. No data of ``after`` is read (on a GPU nothing is synchronised), the value is always ``shape``, and
no optimiser of onnxruntime can know that: the alias also keeps a recomputed node from being merged with the original.
A tensor of a few bytes is copied instead, ``Where(OptionalHasElement(after), t, t)``: one node less, and no Reshape
that could be fused with a neighbouring one.
OptionalHasElement reads plain tensors since opset 18 (https://onnx.ai/onnx/operators/onnx__OptionalHasElement.html).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.keys import ROLE
from ckplan.runtime.cpu import CPU
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import SMALL, bytes_of, dimensions_of

_SHAPE = "ckplan/shape_dims"
"""What the names of initializers begin with that hold shapes."""

_SELECTABLE = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64, ir.DataType.INT32)
"""Element types for which onnxruntime's Where has kernels."""


def is_control(node: ir.Node) -> bool:
    """Whether a node is part of a control edge."""
    return node.metadata_props.get(ROLE) == "control"


def shape_constant(dims: tuple[int, ...], initializers: dict[str, ir.Value]) -> ir.Value:
    """The initializer that holds a shape; made once for equal shapes."""
    name = _SHAPE + "".join(f"_{dim}" for dim in dims)  # no name that an edge may get, too
    if name not in initializers:
        array = np.array(dims, np.int64)
        initializers[name] = ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.INT64),
            const_value=ir.tensor(array, name=name),
        )
    return initializers[name]


class ControlEdges:
    """Makes control edges and shares their parts.

    Args:
        graph: the graph that they are for; shapes of edges that it has already are used again.
        prefix: what the names of their nodes and values begin with.
        runtime: where the graph is to run.

    Attributes:
        initializers: the shapes that the edges need, to be added to the graph.
        count: number of aliases made.
        waits: which node waits for which tensor.
    """

    def __init__(self, graph: ir.Graph | None = None, prefix: str = "ckplan", runtime: Runtime = CPU) -> None:
        self.runtime = runtime
        own = {} if graph is None else graph.initializers
        self._prefix = prefix
        self.initializers = {name: value for name, value in own.items() if name.startswith(_SHAPE)}
        self.count = 0
        self.waits: set[tuple[ir.Node, ir.Value]] = set()
        self._made: dict[tuple[str | ir.Value, ...], ir.Value] = {}

    def alias(self, tensor: ir.Value, after: ir.Value, *, hidden: bool = False) -> ir.Value:
        """An alias of ``tensor`` that waits for ``after``; if it is to be hidden, of a shape that no optimiser knows.

        Raises:
            ModelError: the shape of ``tensor`` is not static.
        """
        dims = dimensions_of(tensor)
        if dims is None or tensor.dtype is None:
            raise ModelError(f"value '{tensor.name}' has no static shape", "bind its dimensions with --dim")
        ready = self._ready(after)
        before = len(self._made)
        if not hidden and bytes_of(tensor) < SMALL and tensor.dtype in _SELECTABLE:
            alias = self._emit("copy", "Where", [ready, tensor, tensor], tensor.dtype, dims)
        else:
            alias = self._emit("alias", "Reshape", [tensor, self._waiting_shape(ready, dims)], tensor.dtype, dims)
            if 0 in dims:
                # An empty tensor has zeros in its shape, which Reshape would otherwise read as "copy this dimension".
                producer = alias.producer()
                assert producer is not None
                producer.attributes["allowzero"] = ir.AttrInt64("allowzero", 1)
        self.count += len(self._made) > before
        return alias

    def _ready(self, after: ir.Value) -> ir.Value:
        """A True that is there once ``after`` is."""
        if after.dtype == ir.DataType.BFLOAT16:
            # The operator does not know the type, so it is asked for one element in another.
            flat, start, end = (shape_constant((number,), self.initializers) for number in (-1, 0, 1))
            row = self._emit("row", "Reshape", [after, flat], after.dtype, (math.prod(dimensions_of(after) or (1,)),))
            first = self._emit("first", "Slice", [row, start, end], after.dtype, (1,))
            after = self._emit("single", "Cast", [first], ir.DataType.FLOAT, (1,))
            producer = after.producer()
            assert producer is not None
            producer.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
        return self._emit("ready", "OptionalHasElement", [after], ir.DataType.BOOL, ())

    def after_all(self, values: Sequence[ir.Value]) -> ir.Value:
        """What is there once all of some tensors are; onnxruntime's default order makes the first of them first.

        The nodes that tell that one is there stand in reverse order, for among what a node reads it makes first what
        stands last.
        """
        ready = [self._ready(value) for value in reversed(values)]
        made = self._emit("all", "SequenceConstruct", ready, ir.DataType.BOOL, ())
        made.shape, made.type = None, ir.SequenceType(ir.TensorType(ir.DataType.BOOL))
        return made

    def shape_after(self, dims: tuple[int, ...], after: ir.Value) -> ir.Value:
        """A shape that waits for ``after``, so that no optimiser knows it."""
        ready = self._ready(after)
        return self._waiting_shape(ready, dims)

    def _waiting_shape(self, ready: ir.Value, dims: tuple[int, ...]) -> ir.Value:
        shape = shape_constant(dims, self.initializers)
        return self._emit("shape", "Where", [ready, shape, shape], ir.DataType.INT64, (len(dims),))

    def _emit(
        self, part: str, op_type: str, inputs: list[ir.Value], dtype: ir.DataType, dims: tuple[int, ...]
    ) -> ir.Value:
        key: tuple[str | ir.Value, ...] = (op_type, *inputs)
        if key not in self._made:
            # A number, not the inputs' names: edges wait for edges, and the names would grow without bound.
            name = f"{self._prefix}/{part}_{len(self._made)}"
            node = ir.node(op_type, inputs, name=name, metadata_props={ROLE: "control"})
            value = node.outputs[0]
            value.name, value.shape, value.type = name, ir.Shape(dims), ir.TensorType(dtype)
            self._made[key] = value
        return self._made[key]


def read_instead(node: ir.Node, value: ir.Value, alias: ir.Value) -> None:
    """Let a node read an alias wherever it reads a value."""
    for index, read in enumerate(node.inputs):
        if read is value:
            node.replace_input_with(index, alias)


def assemble(model: ir.Model, nodes: Sequence[ir.Node], edges: ControlEdges) -> None:
    """Make a node sequence, with the shapes that its control edges need, the content of a model's graph."""
    graph = model.graph
    graph.remove(list(graph))
    for name, value in edges.initializers.items():
        if name not in graph.initializers:
            graph.register_initializer(value)
    graph.extend(nodes)
