"""Copies that an Expand makes for nodes that stretch their operands themselves."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.broadcasting import BROADCASTING
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of
from ckplan.model.traits import is_backward
from ckplan.operators.matching import is_op


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
