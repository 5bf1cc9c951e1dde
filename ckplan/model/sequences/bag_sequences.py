"""Bags of embeddings as torch's default exporter writes them: a Loop that puts one row after the other in a sequence.

Each step cuts the rows of one bag out of the rows of all bags and reduces them; a bag of nothing is a row of zeros. The
last bag, and a mean, have branches of their own, which come to the same. The sequence is joined behind the Loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.model.bodies import bodies_of, constant_array, through_identity
from ckplan.model.constants import mark_constant
from ckplan.model.contrib.emitter import EXPANSION, Emitter
from ckplan.model.inference.infer import static_shape
from ckplan.model.sequences.bags import Bags, emit_bags
from ckplan.model.sequences.resolved import Contents
from ckplan.operators.matching import is_op

Constant = Callable[[ir.Value | None], np.ndarray | None]

_SAME_NUMBER = ("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that leave a number what it is."""


def write_bag_sequence(node: ir.Node, contents: Contents, visit: Callable[[ir.Node], None], constant: Constant) -> bool:
    """Write the bags that a Loop puts in a sequence without a Loop, and note that the sequence holds them all as one.

    Args:
        node: any node whose bodies were visited.
        contents: what is known of sequences; the Loop's is added. The Loop itself stays, unread.
        visit: infers the outputs of a new node, and folds what is constant.
        constant: the content of a value that is known in advance, else None.

    Returns:
        Whether it was such a Loop.
    """
    if not is_op(node, "Loop") or len(node.outputs) != 2 or len(bodies_of(node)[0].inputs) != 4:
        return False
    # Which of the two states comes first is left to chance by torch's exporter.
    place = 0 if node.outputs[0].uses() else 1
    readers = [use.node for use in node.outputs[place].uses()]
    joins = all(r.op_type == "ConcatFromSequence" and not _int(r, "axis") and not _int(r, "new_axis") for r in readers)
    unread = not node.outputs[1 - place].uses()
    bags = _Reading(node, place, constant).bags() if readers and joins and unread else None
    if bags is None:
        return False
    contents.elements[node.outputs[place]] = (emit_bags(Emitter(node, visit, constant), bags),)
    return True


def _int(node: ir.Node, name: str, default: int = 0) -> int:
    return node.attributes.get_int(name, default)


@dataclass(frozen=True)
class _Reading:
    """A Loop with a sequence and a counter as states, the place of the sequence among the two, and how to read it."""

    loop: ir.Node
    place: int
    constant: Constant

    def bags(self) -> Bags | None:
        """What the Loop reads; None if it is another one than those over bags."""
        (body,) = bodies_of(self.loop)
        first, goes = self.number(self.loop.inputs[3 - self.place]), self.loop.inputs[1]
        insert, again = body.outputs[1 + self.place].producer(), through_identity(body.outputs[0]).producer()
        if first != 0 or (goes is not None and not self.number(goes)) or self.loop.inputs[0] is not None:
            return None
        if self.step(body.outputs[2 - self.place]) != 1 or again is None or again.op_type != "Less":
            return None
        count = self.number(again.inputs[1])
        if count is None or count < 1 or self.step(again.inputs[0]) != 1:
            return None
        if insert is None or insert.op_type != "SequenceInsert" or insert.inputs[0] is not body.inputs[2 + self.place]:
            return None
        choice = insert.inputs[1].producer() if len(insert.inputs) == 2 and insert.inputs[1] is not None else None
        if choice is None or choice.op_type != "If":
            return None
        nothing, (then, other) = _producer(choice.inputs[0]), _branches(choice)
        if nothing is None or nothing.op_type != "Equal" or not _is_zero(then):
            return None
        starts, ends = (self.bound(value, at) for value, at in zip(nothing.inputs, (0, 1), strict=True))
        found = None if starts is None else self.reduction(other, nothing.inputs, count)
        if found is None or starts is None or starts is not ends:
            return None
        reduction, rows, to_end = found
        size, shape = static_shape(starts), static_shape(rows)
        if size is None or shape is None or len(size) != 1 or size[0] < count + 1:
            return None
        if to_end and self.last(starts, count) != shape[0]:
            return None
        mark_constant(through_identity(then), EXPANSION)  # a row of zeros, which nobody reads any more
        return Bags(reduction, rows, starts, count, default=True)

    def number(self, value: ir.Value | None) -> int | None:
        """The one number that a value holds, None if that is not known or there are more."""
        array, node = self.constant(value), _producer(value)
        if array is None and is_op(node, _SAME_NUMBER):
            return self.number(node.inputs[0])
        return int(array.reshape(())) if array is not None and array.size == 1 else None

    def last(self, bounds: ir.Value, count: int) -> int | None:
        """Where the last bag ends."""
        array = self.constant(bounds)
        if array is not None:
            return int(array[count])
        join = bounds.producer()
        return self.number(join.inputs[-1]) if join is not None and join.op_type == "Concat" else None

    def step(self, value: ir.Value | None) -> int | None:
        """How far a number is behind the Loop's own counter; None if it is something else."""
        node = _producer(value)
        if value is bodies_of(self.loop)[0].inputs[3 - self.place]:
            return 0
        if node is None or node.domain:
            return None
        if node.op_type in _SAME_NUMBER:
            return self.step(node.inputs[0])
        if node.op_type == "Add":
            for one, other in (node.inputs, node.inputs[::-1]):
                before, more = self.step(one), self.number(other)
                if before is not None and more is not None:
                    return before + more
        return None

    def bound(self, value: ir.Value | None, at: int) -> ir.Value | None:
        """The vector that a number is cut out of, ``at`` places behind the counter; None if it is something else."""
        node = _producer(value)
        if node is None or node.op_type != "Slice" or len(node.inputs) > 4:
            return None
        if len(node.inputs) == 4 and self.number(node.inputs[3]) != 0:
            return None
        return node.inputs[0] if [self.step(end) for end in node.inputs[1:3]] == [at, at + 1] else None

    def reduction(
        self, value: ir.Value | None, ends: Sequence[ir.Value | None], count: int, last: bool = False
    ) -> tuple[str, ir.Value, bool] | None:
        """What makes a row of a bag, of which rows, and whether the last bag is cut to their end.

        ``last`` says that this is made in the last step alone.
        """
        node = _producer(value)
        if node is None or node.domain:
            return None
        if node.op_type in ("ReduceSum", "ReduceMean", "ReduceMax"):
            rows = self.rows(node.inputs[0], ends, count, last)
            along = self.number(node.inputs[1]) if len(node.inputs) > 1 else None
            return (node.op_type, *rows) if rows is not None and along == 0 and _int(node, "keepdims", 1) else None
        if node.op_type == "If":
            inside = last or self.is_last(node.inputs[0], count)
            branches = zip(_branches(node), (inside, last), strict=True)
            then, other = (self.reduction(branch, ends, count, at) for branch, at in branches)
            if then is None or other is None or then[1] is not other[1]:
                return None
            kinds = {then[0], other[0]}
            # A mean is a sum that is divided, unless there is nothing to divide by.
            guarded = last and kinds == {"ReduceSum", "ReduceMean"}
            guarded = guarded and self.is_size(_first(_producer(node.inputs[0])), ends)
            kind = "ReduceMean" if guarded else then[0]
            return (kind, then[1], then[2] or other[2]) if guarded or len(kinds) == 1 else None
        if node.op_type == "Identity":
            return self.reduction(node.inputs[0], ends, count, last)
        if node.op_type == "Div" and last:
            found = self.reduction(node.inputs[0], ends, count, last)
            if found is not None and found[0] == "ReduceSum" and self.is_size(node.inputs[1], ends):
                return "ReduceMean", found[1], True
        return None

    def is_size(self, value: ir.Value | None, ends: Sequence[ir.Value | None]) -> bool:
        """Say whether a number is how many rows lie behind the beginning of a bag."""
        node = _producer(value)
        while node is not None and node.op_type in _SAME_NUMBER:
            node = _producer(node.inputs[0])
        return node is not None and node.op_type == "Sub" and node.inputs[1] is ends[0]

    def rows(
        self, value: ir.Value | None, ends: Sequence[ir.Value | None], count: int, last: bool
    ) -> tuple[ir.Value, bool] | None:
        """The rows that a bag is cut out of, and whether the last bag is cut to the end instead of its own end."""
        node = _producer(value)
        if node is None or node.domain:
            return None
        if node.op_type == "If" and self.is_last(node.inputs[0], count):
            first, second = _branches(node)
            then, other = self.rows(first, ends, count, True), self.rows(second, ends, count, last)
            return (then[0], True) if then is not None and other is not None and then[0] is other[0] else None
        cut = node.op_type == "Slice" and len(node.inputs) == 3 and node.inputs[1] is ends[0]
        if not cut or node.inputs[0] is None:
            return None
        if node.inputs[2] is ends[1]:
            return node.inputs[0], False
        shape = static_shape(node.inputs[0])
        to_end = last and shape is not None and self.number(node.inputs[2]) == shape[0]
        return (node.inputs[0], True) if to_end else None

    def is_last(self, value: ir.Value | None, count: int) -> bool:
        """Say whether a condition holds in the last step alone."""
        node = _producer(value)
        return (
            node is not None
            and node.op_type == "Equal"
            and self.step(node.inputs[0]) == 0
            and self.number(node.inputs[1]) == count - 1
        )


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _is_zero(value: ir.Value) -> bool:
    """Say whether a row is known to hold zeros only; files that nothing optimised expand one."""
    row, node = constant_array(value), through_identity(value).producer()
    if row is None and is_op(node, "Expand") and node.inputs[0] is not None:
        row = constant_array(node.inputs[0])
    return row is not None and not np.any(row)


def _first(node: ir.Node | None) -> ir.Value | None:
    return node.inputs[0] if node is not None and node.inputs else None


def _branches(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """What the branches of an If return first."""
    then, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    return then.outputs[0], other.outputs[0]
