"""Copies that an Expand makes for nodes that stretch their operands themselves."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.broadcasting import BROADCASTING
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import is_read_once, required_input, shape_of
from ckplan.model.traits import is_backward
from ckplan.operators.matching import is_op, made_by


def read_past_expands(op: Builder) -> None:
    """Let nodes that stretch their operands read what an Expand of the backward pass reads, not the copy that it makes.

    The gradient of a mean is expanded, and what comes next multiplies it by something of the shape that the mean was
    taken of, often by a number before: that is multiplied while there are few. Expands that nobody reads any more stay.

    Args:
        op: builder of the finished graph.
    """
    for node in list(op.graph):
        if is_op(node, "Expand") and is_backward(node):
            source, made = node.inputs[0], node.outputs[0]
            assert source is not None
            for reader, index in made.uses():
                if _stretches(reader, index, shape_of(made)):
                    reader.replace_input_with(index, source)
                else:
                    _multiply_before(op, reader, index, source)


def _stretches(reader: ir.Node, index: int, shape: tuple[int, ...]) -> bool:
    """Say whether a node makes the same of an input that is not expanded, since its other one has the shape already."""
    if not is_op(reader, BROADCASTING) or len(reader.inputs) != 2:
        return False
    other = reader.inputs[1 - index]
    return other is not None and other is not reader.inputs[index] and shape_of(other) == shape


def _multiply_before(op: Builder, reader: ir.Node, index: int, source: ir.Value) -> None:
    """Let a product of what was expanded and a number be one of what is not, if whoever reads it stretches that."""
    if not is_op(reader, "Mul") or reader.outputs[0].is_graph_output():
        return
    made, number = reader.outputs[0], op.constant_of(reader.inputs[1 - index])
    shape = shape_of(made)
    if number is None or number.size != 1 or not all(_stretches(node, at, shape) for node, at in made.uses()):
        return
    reader.replace_input_with(index, source)
    reader.replace_input_with(1 - index, op.constant(number.reshape((1,) * len(shape_of(source)))))
    made.shape = ir.Shape(shape_of(source))


def add_before_copies(op: Builder) -> None:
    """Let the forward pass add up what samples share before it is copied for each, and an Add stretch the sum.

    An attention of windows has a mask for each of them, which is copied for each sample, and the bias of a head, which
    is added to all of the copies before scores are.

    Args:
        op: builder of the finished graph.
    """
    for node in list(op.graph):
        if not is_op(node, "Add") or is_backward(node) or not is_read_once(node.outputs[0]):
            continue
        for index in (0, 1):
            found = _shared(required_input(node, index))
            if found is not None and _stretch_sum(op, node, required_input(node, 1 - index), *found):
                break


def _shared(value: ir.Value) -> tuple[ir.Value, int] | None:
    """What is copied along its first axis, which a Reshape merges with the next one, and how often."""
    merged = made_by(value, "Reshape")
    copied = None if merged is None else made_by(merged.inputs[0], "Expand")
    if copied is None:
        return None
    source = required_input(copied, 0)
    copies, *rest = shape_of(copied.outputs[0])
    fits = copies > 1 and rest and shape_of(source) == (1, *rest) and shape_of(value) == (copies * rest[0], *rest[1:])
    return (source, copies) if fits else None


def _stretch_sum(op: Builder, node: ir.Node, other: ir.Value, source: ir.Value, copies: int) -> bool:
    """Put ``other`` + ``source`` in the place of a sum with copies, if an Add of its shape alone reads that; say so."""
    made = node.outputs[0]
    ((reader, at),) = made.uses()
    shape = shape_of(made)
    if not is_op(reader, "Add") or is_backward(reader) or reader.outputs[0].is_graph_output():
        return False
    scores, result = required_input(reader, 1 - at), reader.outputs[0]
    own, rank = shape_of(other), len(shape_of(source)) - 1
    if shape_of(scores) != shape or len(own) > rank or (len(own) == rank and own[0] != 1):
        return False
    with op.scope(str(node.name), "forward", before=node):
        once = op.Add(op.reshape(source, shape_of(source)[1:]), other)
    with op.scope(str(reader.name), "forward", before=reader):
        apart = op.reshape(scores, (copies, shape[0] // copies, *shape[1:]))
        result.replace_all_uses_with(op.reshape(op.Add(apart, once), shape))
    discard(op.graph, [reader, node])
    return True
