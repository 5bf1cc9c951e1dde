"""Numbers of the old size baked into a graph (a Reshape to [1, 2048]) follow the size the user asks for.

Exporters write the batch they traced with into Reshape and Expand targets, and broadcast class tokens and initial
states to it. The shapes that the graph had at its own size tell which axis of a target the batch was, so a target is
changed only where it demonstrably carried the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.model.constants import mark_constant, unused_name
from ckplan.model.fold import Sweep
from ckplan.model.infer import static_shape


@dataclass
class Rebatch:
    """A repair for `fold.sweep`.

    Args:
        old, new: the leading dimension in the file and the one asked for; equal when none was overridden.
        reference: value name -> shape at the file's own size; empty when nothing static was overridden.

    Attributes:
        changed: one entry for each constant or input that was rebound, for the notes.
    """

    old: int
    new: int
    reference: Mapping[str, tuple[int, ...]]
    changed: list[str] = field(default_factory=list)

    def __call__(self, node: ir.Node, state: Sweep) -> None:
        """Repair one node before its shapes are inferred.

        Raises:
            ModelError: a Reshape cannot hold its input any more and no rebinding helps.
        """
        if node.domain != "":
            return
        match node.op_type:
            case "Reshape":
                self._reshape(node, state)
            case "Expand":
                self._expand(node, state)
            case "Concat":
                self._concat(node)
            case "LSTM" | "GRU" | "RNN":
                self._initial_states(node)

    def _reshape(self, node: ir.Node, state: Sweep) -> None:
        target = state.constant(node.inputs[1])
        shape = None if node.inputs[0] is None else static_shape(node.inputs[0])
        if target is None or shape is None or node.inputs[0] is None:
            return
        sizes = [int(size) for size in target]
        zero_is_size = bool(node.attributes.get_int("allowzero", 0))
        before = self.reference.get(node.inputs[0].name or "")
        fixed = rebind_target(sizes, before, shape, self.old, self.new, zero_is_size)
        if fixed is None:
            raise ModelError(
                f"Reshape '{node.name}' cannot make {sizes} of {list(shape)}: the model has a size baked in",
                "use the file's own input shape, or export the model with dynamic axes",
            )
        if fixed != sizes:
            self._set_constant(node, 1, fixed)
            self.changed.append(f"{node.name}: {sizes} to {fixed}")

    def _expand(self, node: ir.Node, state: Sweep) -> None:
        target = state.constant(node.inputs[1])
        shape = None if node.inputs[0] is None else static_shape(node.inputs[0])
        if target is None or shape is None or self.old == self.new:
            return
        sizes = [int(size) for size in target]
        pairs = list(zip(reversed(shape), reversed(sizes), strict=False))
        if any(a != b and 1 not in (a, b) for a, b in pairs) and sizes[0] == self.old:
            self._set_constant(node, 1, [self.new, *sizes[1:]])
            self.changed.append(f"{node.name}: {sizes} to {[self.new, *sizes[1:]]}")

    def _concat(self, node: ir.Node) -> None:
        """An input that does not depend on the batch (a class token) is as long as the old batch: broadcast it."""
        if self.old == self.new:
            return
        shapes = [None if value is None else static_shape(value) for value in node.inputs]
        ranks = {len(shape) for shape in shapes if shape is not None}
        axis = node.attributes.get_int("axis", 0)
        if None in shapes or len(ranks) != 1 or axis % max(ranks) == 0:
            return
        heads = [shape[0] for shape in shapes if shape is not None]
        if set(heads) != {self.old, self.new}:
            return
        for index, shape in enumerate(shapes):
            if shape is not None and shape[0] == self.old:
                self._broadcast(node, index, 0, shape)

    def _initial_states(self, node: ir.Node) -> None:
        """The initial state of a recurrent layer is (directions, batch, hidden)."""
        shape = None if node.inputs[0] is None else static_shape(node.inputs[0])
        batch_first = node.attributes.get_int("layout", 0)
        if self.old == self.new or shape is None or batch_first:
            return
        for index in range(5, min(7, len(node.inputs))):
            state = node.inputs[index]
            have = None if state is None else static_shape(state)
            if have is not None and len(have) == 3 and have[1] == self.old and shape[1] == self.new:
                self._broadcast(node, index, 1, have)

    def _broadcast(self, node: ir.Node, index: int, axis: int, shape: tuple[int, ...]) -> None:
        value = node.inputs[index]
        assert value is not None
        assert node.graph is not None
        wanted = [*shape[:axis], self.new, *shape[axis + 1 :]]
        producer = value.producer()
        if shape[axis] != 1:
            # Broadcast from the old batch already: expand what was there before instead.
            if producer is None or producer.op_type != "Expand" or producer.inputs[0] is None:
                raise ModelError(
                    f"{node.op_type} '{node.name}' joins '{value.name}', made for a batch of {self.old}, to a batch of "
                    f"{self.new}",
                    "use the file's own input shape, or export the model with dynamic axes",
                )
            value = producer.inputs[0]
        expand = ir.node("Expand", inputs=[value, None], name=f"{node.name}/batch_{index}")
        node.graph.insert_before(node, expand)
        self._set_constant(expand, 1, wanted)
        expand.outputs[0].name = f"{node.name}/batch_{index}"
        expand.outputs[0].type, expand.outputs[0].shape = value.type, ir.Shape(wanted)
        node.replace_input_with(index, expand.outputs[0])
        self.changed.append(f"{node.name}: '{value.name}' broadcast to {wanted}")

    def _set_constant(self, node: ir.Node, index: int, sizes: Sequence[int]) -> None:
        assert node.graph is not None
        name = unused_name(node.graph, f"{node.name or node.outputs[0].name}/rebound_shape")
        tensor = ir.Tensor(np.asarray(sizes, dtype=np.int64), name=name)
        value = ir.Value(
            name=name, shape=ir.Shape([len(sizes)]), type=ir.TensorType(ir.DataType.INT64), const_value=tensor
        )
        mark_constant(value, "rebound")
        node.graph.register_initializer(value)
        node.replace_input_with(index, value)


def rebind_target(
    target: Sequence[int],
    before: Sequence[int] | None,
    now: Sequence[int],
    old: int,
    new: int,
    zero_is_size: bool = False,
) -> list[int] | None:
    """The Reshape target that does to a tensor of shape `now` what `target` did to one of shape `before`.

    Args:
        target: sizes, of which one may be -1 and any may be 0 for "as in the input" (unless `zero_is_size`).
        before: the input's shape at the file's own size, if known.
        now: the input's shape.
        old: the leading dimension then.
        new: the leading dimension now.
        zero_is_size: a 0 means an empty axis (the attribute allowzero).

    Returns:
        `target` itself when it still serves, a changed copy, or None when nothing fits.
    """
    same = list(target)
    resolved = _resolve(same, now, zero_is_size)
    if before is None or list(before) == list(now):
        if resolved is not None:
            return same
        # No reference (the file's batch was symbolic): the target was traced with a batch of one.
        old, new, was = 1, 0, None
    else:
        was = _resolve(same, before, zero_is_size)
    if old != new and was is not None:
        # The axis that was the batch becomes the new batch; every other axis must come out as it was.
        for axis, size in enumerate(same):
            fixed = [*same[:axis], new, *same[axis + 1 :]]
            expected = [*was[:axis], new, *was[axis + 1 :]]
            if size == old and _resolve(fixed, now, zero_is_size) == expected:
                return fixed
    if resolved is not None:
        return same
    have = math.prod(now)
    total = math.prod(_with_zeros(same, now, zero_is_size))
    if -1 in same or total == 0:
        return None
    axes = [axis for axis, size in enumerate(same) if size == old] or [0]
    size = same[axes[0]] or (now[axes[0]] if axes[0] < len(now) else 0)
    if size * have % total or size * have == 0:
        return None
    if before is not None and have * old != math.prod(before) * new:
        return None
    return [*same[: axes[0]], size * have // total, *same[axes[0] + 1 :]]


def _with_zeros(target: Sequence[int], shape: Sequence[int], zero_is_size: bool) -> list[int]:
    if zero_is_size:
        return list(target)
    return [shape[axis] if size == 0 and axis < len(shape) else size for axis, size in enumerate(target)]


def _resolve(target: Sequence[int], shape: Sequence[int], zero_is_size: bool) -> list[int] | None:
    """The target with its 0 and -1 filled in, or None when it does not fit `shape`."""
    sizes = _with_zeros(target, shape, zero_is_size)
    have = math.prod(shape)
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        if rest == 0 or have % rest:
            return None
        sizes[sizes.index(-1)] = have // rest
    return sizes if math.prod(sizes) == have else None
