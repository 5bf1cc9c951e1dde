"""Control edges out of standard operators: a node that waits for a tensor it does not read.

``alias = Unsqueeze(t, Shape(after)[0:0])`` is ``t`` itself, without a copy, but ready only once ``after`` is. The axes
are none, whatever ``after`` holds: no data are read (on a GPU nothing is synchronised), and no optimiser of onnxruntime
can know it. So the alias also keeps a recomputed node from being merged with the original, and hides the shape of its
tensor. Where onnxruntime knows the shape of ``after``, it folds Shape away, and keeps Size
(``core/optimizer/constant_folding.cc``): then the axes are ``Expand(Size(after), [0])``, one node more.

Where a number is to be known late, as a target shape is, it stands behind the axes: ``Concat(axes, number)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.keys import ROLE
from ckplan.runtime.cpu import CPU
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import dimensions_of, hide_dimensions
from ckplan.writer.known_shapes import KnownShapes, is_named

_SHAPE = "ckplan/shape_dims"
"""What the names of initializers begin with that hold shapes."""


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
        named: whether the dimensions of what is made in the graph are called after buffers.
        batch: an input that is never written over, for aliases that are to hide something and not to wait.

    Attributes:
        batch: see above.
        initializers: the shapes that the edges need, to be added to the graph.
        count: number of aliases made.
        waits: which node waits for which tensor.
    """

    def __init__(
        self,
        graph: ir.Graph | None = None,
        prefix: str = "ckplan",
        runtime: Runtime = CPU,
        *,
        named: bool = True,
        batch: ir.Value | None = None,
    ) -> None:
        self.runtime = runtime
        own = {} if graph is None else graph.initializers
        self.batch = batch
        self._prefix, self._named = prefix, named
        self._known = KnownShapes()
        self.initializers = {name: value for name, value in own.items() if name.startswith(_SHAPE)}
        self.count = 0
        self.waits: set[tuple[ir.Node, ir.Value]] = set()
        self._made: dict[tuple[str | ir.Value, ...], ir.Value] = {}

    def alias(self, tensor: ir.Value, after: ir.Value) -> ir.Value:
        """An alias of ``tensor`` that waits for ``after``, of a shape that no optimiser knows.

        Raises:
            ModelError: the shape of ``tensor`` is not static.
        """
        dims = dimensions_of(tensor)
        if dims is None or tensor.dtype is None:
            raise ModelError(f"value '{tensor.name}' has no static shape", "bind its dimensions with --dim")
        before = len(self._made)
        alias = self._emit("alias", "Unsqueeze", [tensor, self._nothing(after)], tensor.dtype, dims)
        self.count += len(self._made) > before
        return alias

    def hide(self, tensor: ir.Value) -> ir.Value:
        """An alias of ``tensor`` that hides its shape and its maker, and waits for nothing that is not there.

        Raises:
            ModelError: the shape of ``tensor`` is not static.
        """
        return self.alias(tensor, self.batch or tensor)

    def after_all(self, values: Sequence[ir.Value]) -> ir.Value:
        """What is there once all of some tensors are; onnxruntime's default order makes the first of them first.

        The nodes that tell that one is there stand in reverse order, for among what a node reads it makes first what
        stands last.
        """
        sizes = [self._emit("size", "Size", [value], ir.DataType.INT64, ()) for value in reversed(values)]
        return self._emit("all", "Max", sizes, ir.DataType.INT64, ())

    def shape_after(self, dims: tuple[int, ...], after: ir.Value) -> ir.Value:
        """A shape that waits for ``after``, so that no optimiser knows it."""
        return self._behind(self._nothing(after), dims)

    def target(self, dims: tuple[int, ...], batch: ir.Value) -> ir.Value:
        """A shape of which onnxruntime does not know how many entries it has."""
        nothing = self._emit("after", "Shape", [self.hide(batch)], ir.DataType.INT64, (0,), start=0, end=0)
        hide_dimensions(nothing, (0,))
        target = self._behind(nothing, dims)
        hide_dimensions(target, (len(dims),))
        return target

    def restore(self, executed: ir.Model) -> int:
        """Give edges that onnxruntime folded away, since it knows the shape of what they wait for, their other form.

        Args:
            executed: what it executes of the file.

        Returns:
            How many edges were restored.
        """
        left = {str(value.name) for node in executed.graph for value in node.outputs}
        lost = 0
        for made in list(self._made.values()):
            node = made.producer()
            after = None if node is None or node.op_type != "Shape" else node.inputs[0]
            if after is not None and made.uses() and made.name not in left:
                self._made["Shape", after] = self._nothing_of_size(after)
                made.replace_all_uses_with(self._made["Shape", after])
                lost += 1
        return lost

    def _behind(self, nothing: ir.Value, dims: tuple[int, ...]) -> ir.Value:
        """A shape that is there once a vector without elements is."""
        shape = shape_constant(dims, self.initializers)
        return self._emit("shape", "Concat", [nothing, shape], ir.DataType.INT64, (len(dims),), axis=0)

    def _nothing(self, after: ir.Value) -> ir.Value:
        """A vector without elements that is there once ``after`` is."""
        maker = after.producer()
        # The shape of what is transposed may be taken before that, and that of an optional tensor is its input's.
        moved = maker is not None and maker.op_type in ("Transpose", "OptionalGetElement")
        if self._named and is_named(after) and not moved and not self._known.is_known(after):
            return self._emit("after", "Shape", [after], ir.DataType.INT64, (0,), start=0, end=0)
        return self._nothing_of_size(after)

    def _nothing_of_size(self, after: ir.Value) -> ir.Value:
        size = self._emit("size", "Size", [after], ir.DataType.INT64, ())
        return self._emit("after", "Expand", [size, shape_constant((0,), self.initializers)], ir.DataType.INT64, (0,))

    def _emit(
        self,
        part: str,
        op_type: str,
        inputs: list[ir.Value],
        dtype: ir.DataType,
        dims: tuple[int, ...],
        **attributes: int,
    ) -> ir.Value:
        key: tuple[str | ir.Value, ...] = (op_type, *inputs)
        if key not in self._made:
            # A number, not the inputs' names: edges wait for edges, and the names would grow without bound.
            name = f"{self._prefix}/{part}_{len(self._made)}"
            node = ir.node(op_type, inputs, attributes, name=name, metadata_props={ROLE: "control"})
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
