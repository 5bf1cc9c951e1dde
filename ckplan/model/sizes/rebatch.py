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
from ckplan.model.constants import add_constant
from ckplan.model.inference.fold import Sweep
from ckplan.model.inference.infer import static_shape
from ckplan.model.sizes.default_sizes import SizesError


@dataclass
class Rebatch:
    """A repair for `fold.sweep`.

    Args:
        old, new: the leading dimension in the file and the one asked for; equal when none was overridden.
        reference: value name -> shape at the file's own size; empty when nothing static was overridden.

    Attributes:
        changed: one entry for each constant or input that was rebound, for the notes.
        certain: every rebinding was the only one possible; else the result should be checked by a run.
    """

    old: int
    new: int
    reference: Mapping[str, tuple[int, ...]]
    changed: list[str] = field(default_factory=list)
    certain: bool = True

    def __call__(self, node: ir.Node, state: Sweep) -> None:
        """Repair one node before its shapes are inferred.

        Raises:
            SizesError: a Reshape cannot hold its input any more and no rebinding helps.
        """
        if node.domain != "":
            return
        match node.op_type:
            case "Reshape":
                self._reshape(node, state)
            case "Expand":
                self._expand(node, state)
            case "Resize":
                self._resize(node, state)
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
        rebound = rebind_target(sizes, before, shape, self.old, self.new, zero_is_size)
        if rebound is None:
            raise SizesError(
                f"Reshape '{node.name}' cannot make {sizes} of {list(shape)}: the model has a size baked in",
                "use the file's own input shape, or export the model with dynamic axes",
            )
        fixed, certain = rebound
        if fixed != sizes:
            self.certain = self.certain and certain
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

    def _resize(self, node: ir.Node, state: Sweep) -> None:
        target = state.constant(node.inputs[3]) if len(node.inputs) > 3 else None
        shape = None if node.inputs[0] is None else static_shape(node.inputs[0])
        if target is None or shape is None or "axes" in node.attributes or self.old == self.new:
            return
        sizes = [int(size) for size in target]
        if sizes[0] == self.old and shape[0] == self.new:
            self._set_constant(node, 3, [self.new, *sizes[1:]])
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
        name = f"{node.name or node.outputs[0].name}/rebound_shape"
        node.replace_input_with(index, add_constant(node.graph, name, np.asarray(sizes, np.int64), "rebound"))


def rebind_target(
    target: Sequence[int],
    before: Sequence[int] | None,
    now: Sequence[int],
    old: int,
    new: int,
    zero_is_size: bool = False,
) -> tuple[list[int], bool] | None:
    """The Reshape target that does to a tensor of shape `now` what `target` did to one of shape `before`.

    A Reshape keeps the order of the elements, so the batch keeps its stride: the axis of the target that carried it
    is found by comparing the sizes of what lies inside. Where the batch was 1 and is now merged with a neighbour
    (batch x heads, or length x batch), two axes fit, and the likelier one is taken.

    Args:
        target: sizes, of which one may be -1 and any may be 0 for "as in the input" (unless `zero_is_size`).
        before: the input's shape at the file's own size, if known.
        now: the input's shape.
        old: the leading dimension then.
        new: the leading dimension now.
        zero_is_size: a 0 means an empty axis (the attribute allowzero).

    Returns:
        The target (the same when it still serves), and whether there was no other reading of it; None when nothing
        fits.
    """
    same = list(target)
    resolved = _resolve(same, now, zero_is_size)
    if before is None or list(before) == list(now):
        return (same, True) if resolved is not None else _rebind_traced_with_one(same, now)
    was = _resolve(same, before, zero_is_size)
    changed = [axis for axis, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    if was is None or old == new or len(changed) != 1 or before[changed[0]] * new != now[changed[0]] * old:
        return (same, True) if resolved is not None else None
    axis = changed[0]
    merged = before[axis] != old
    inside = math.prod(before[axis + 1 :])
    strides = [inside, inside * before[axis] // old] if merged else [inside]

    def scaled(at: int) -> list[int]:
        return [*was[:at], was[at] * new // old, *was[at + 1 :]]

    explicit = [
        at
        for at, size in enumerate(same)
        if size == old
        and math.prod(was[at + 1 :]) in strides
        and _resolve([*same[:at], new, *same[at + 1 :]], now, zero_is_size) == scaled(at)
    ]
    if explicit:
        at = explicit[0]
        return [*same[:at], new, *same[at + 1 :]], not merged and len(explicit) == 1
    if resolved is not None:
        return same, True
    for stride in reversed(strides):
        outer = [at for at in range(len(was)) if math.prod(was[at:]) == stride and was[at] not in (1, stride)]
        inner = [at for at in range(len(was)) if math.prod(was[at + 1 :]) == stride]
        for at in (*outer, *inner):
            if was[at] * new % old == 0 and math.prod(scaled(at)) == math.prod(now):
                return scaled(at), False
    return None


def _rebind_traced_with_one(target: list[int], now: Sequence[int]) -> tuple[list[int], bool] | None:
    """The file leaves the batch open, yet the target was traced with a batch of one: put the missing factor there."""
    total = math.prod(target)
    if -1 in target or total == 0 or math.prod(now) % total:
        return None
    factor = math.prod(now) // total
    at = target.index(1) if 1 in target else 0
    return [*target[:at], target[at] * factor, *target[at + 1 :]], target[at] == 1 and at == 0 and now[0] == factor


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
