"""The state of a model that is being written without what masks choose, and what is put into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ckplan.model.constants import add_constant
from ckplan.model.inference.infer import static_shape
from ckplan.operators.matching import made_by

_FILLING = 0.5
"""What stands in the place of what is not chosen: logarithms, roots and quotients of it, and slopes, are numbers."""


@dataclass(frozen=True)
class Mask:
    """A tensor that tells what is chosen.

    Attributes:
        root: the smallest tensor that does, of any rank.
        repeats: elements of the mask for each of the root's, one behind the other.
    """

    root: ir.Value
    repeats: int = 1

    @property
    def size(self) -> int:
        """Number of elements of the root."""
        return math.prod(static_shape(self.root) or ())


@dataclass
class Rewriting:
    """A model that is being written without NonZero.

    Attributes:
        graph: the main graph.
        chosen: what holds a place for each element of a root along its first axis -> that root.
        scattered: what reshapes such values that are put back -> the root.
        places: where the chosen elements were, which nothing reads any more.
        told: sizes that were those of places, and are those of all elements.
        sized: nodes whose results are as large as what is chosen, since they are told so.
        counting: nodes that reckon how many elements are chosen, of sizes of all.
        reordered: masks that stand for others whose places are in another order.
        emitted: number of new nodes.
    """

    graph: ir.Graph
    chosen: dict[ir.Value, ir.Value] = field(default_factory=dict)
    scattered: dict[ir.Node, ir.Value] = field(default_factory=dict)
    places: set[ir.Value] = field(default_factory=set)
    told: list[ir.Value] = field(default_factory=list)
    sized: set[ir.Node] = field(default_factory=set)
    counting: set[ir.Node] = field(default_factory=set)
    reordered: set[ir.Value] = field(default_factory=set)
    emitted: int = 0

    def emit(
        self, before: ir.Node, op_type: str, *inputs: ir.Value | None, **attributes: int | str | Sequence[int]
    ) -> ir.Value:
        """Put a node before another one; return its result."""
        self.emitted += 1
        name = f"{before.name}/masked/{op_type}_{self.emitted}"
        node = ir.node(op_type, inputs, attributes, name=name)
        node.outputs[0].name = name
        self.graph.insert_before(before, node)
        return node.outputs[0]

    def emit_like(self, before: ir.Node, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
        """Put a node like another one, which reads other values, before a node; return its result."""
        self.emitted += 1
        name = f"{before.name}/masked/{node.op_type}_{self.emitted}"
        like = ir.node(node.op_type, inputs, node.attributes, name=name)
        like.outputs[0].name = name
        self.graph.insert_before(before, like)
        return like.outputs[0]

    def constant(self, array: np.ndarray) -> ir.Value:
        """Return an initializer of the program."""
        return add_constant(self.graph, "masked", array, "what a mask does not choose")

    def number(self, number: float, kind: ir.DataType) -> ir.Value:
        """Return an initializer of one number of a type."""
        return self.constant(np.asarray(number, kind.numpy()))

    def filling(self, kind: ir.DataType) -> ir.Value:
        """Return what stands in the place of what is not chosen."""
        return self.number(_FILLING if kind.is_floating_point() else 0, kind)

    def numbers(self, *numbers: int) -> ir.Value:
        """Return an initializer of whole numbers [n]."""
        return self.constant(np.asarray(numbers, np.int64))

    def mask(self, before: ir.Node, root: ir.Value, shape: list[int], axis: int) -> ir.Value:
        """Emit a mask that broadcasts to a shape, along one axis of which elements of the root are repeated."""
        size, rest = math.prod(static_shape(root) or ()), [1] * len(shape)
        whole = root if root.dtype == ir.DataType.BOOL else self.emit(before, "Cast", root, to=int(ir.DataType.BOOL))
        repeats = shape[axis] // size
        if repeats > 1:
            whole = self.emit(before, "Reshape", whole, self.numbers(size, 1))
            whole = self.emit(before, "Expand", whole, self.numbers(size, repeats))
        rest[axis] = shape[axis]
        return self.emit(before, "Reshape", whole, self.numbers(*rest))

    def chosen_before(self, before: ir.Node, chosen: ir.Value) -> ir.Value:
        """Emit how many elements of a mask [n] are chosen before each; one less, but no less than 0, for the others."""
        numbers = self.emit(before, "Cast", chosen, to=int(ir.DataType.INT64))
        numbers = self.emit(before, "CumSum", numbers, self.constant(np.asarray(0)))
        numbers = self.emit(before, "Sub", numbers, self.numbers(1))
        return self.emit(before, "Max", numbers, self.numbers(0))

    def chooser_of(self, places: ir.Value | None) -> ir.Value | None:
        """The mask whose chosen places a value lists, [n, axes], as exporters write them and in the order of the file.

        None of anything else.
        """
        turned = made_by(places, "Transpose")
        found = None if turned is None else made_by(turned.inputs[0], "NonZero")
        return None if found is None or found.inputs[0] in self.reordered else found.inputs[0]


def deciding_mask(node: ir.Node) -> ir.Value | None:
    """The mask, of a static shape, that decides how much a Compress or a NonZero finds; None of other nodes."""
    index = None if node.domain else {"Compress": 1, "NonZero": 0}.get(node.op_type)
    mask = None if index is None else node.inputs[index]
    return mask if mask is not None and static_shape(mask) else None


def mask_of(value: ir.Value | None) -> Mask:
    """Tell what a mask repeats."""
    assert value is not None
    node = value.producer()
    source = None if node is None or node.domain or not node.inputs else node.inputs[0]
    shape, before = static_shape(value), None if source is None else static_shape(source)
    if node is None or source is None or shape is None or before is None or 0 in before:
        return Mask(value)
    if node.op_type in ("Identity", "Reshape", "Squeeze", "Unsqueeze"):
        return mask_of(source)
    if node.op_type == "Expand" and len(before) == len(shape):
        same = next((axis for axis in range(len(shape)) if before[axis] != shape[axis]), len(shape))
        if all(size == 1 for size in before[same:]):
            inner = mask_of(source)
            return Mask(inner.root, inner.repeats * math.prod(shape[same:]))
    return Mask(value)
