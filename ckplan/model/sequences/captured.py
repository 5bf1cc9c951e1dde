"""A body that takes elements of a sequence from around it reads a tensor of them, where all have one shape.

``for q in torch.unbind(x)`` in a scripted module is a Loop that takes an element a step, by the number of the step.
Which one that is, is known at run time only; but of elements alike a tensor with one more axis holds all, and Gather
takes one. A fixed element is read as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ckplan.model.bodies import bodies_of
from ckplan.model.inference.infer import static_shape
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.sequences.resolved import Constant, Contents, Initializer, Visit, emit_before, place_among
from ckplan.operators.matching import is_op


def gather_captured(
    node: ir.Node, contents: Contents, visit: Visit, constant: Constant, initializer: Initializer
) -> None:
    """Let SequenceAt in the bodies of a node read elements of sequences that are known outside, in place.

    Args:
        node: of If, Loop or Scan; its bodies were not visited yet.
        contents: what sequences hold.
        visit: called with each new node that stands before `node`.
        constant: the array of a value that is constant, else None.
        initializer: makes a constant of an array.
    """
    stacks: dict[ir.Value, ir.Value] = {}
    for inner in list(_inside(node)):
        sequence, index = (*inner.inputs, None, None)[:2]
        elements = contents.of(sequence) if is_op(inner, "SequenceAt") else None
        if not elements or sequence is None or index is None or inner.graph is None:
            continue
        position = constant(index)
        if position is not None:
            if (place := place_among(position, len(elements))) is not None:
                _replace(inner, ir.node("Identity", [elements[place]], name=inner.name))
            continue
        if len({(static_shape(element), element.dtype) for element in elements}) > 1 or not static_shape(elements[0]):
            continue
        if sequence not in stacks:
            stacks[sequence] = _stack(node, elements, visit, initializer)
        if index.shape is None or len(index.shape):
            scalar = ir.node("Reshape", [index, initializer(np.zeros(0, np.int64))], name=f"{inner.name}/place")
            scalar.outputs[0].name = f"{inner.name}/place_out0"
            inner.graph.insert_before(inner, scalar)
            index = scalar.outputs[0]
        _replace(inner, ir.node("Gather", [stacks[sequence], index], {"axis": 0}, name=inner.name))


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    for body in bodies_of(node):
        for inner in body:
            yield inner
            if graphs_in(inner):
                yield from _inside(inner)


def _stack(node: ir.Node, elements: tuple[ir.Value, ...], visit: Visit, initializer: Initializer) -> ir.Value:
    """A tensor of all elements along a first axis, made before a node."""
    first = initializer(np.zeros(1, np.int64))
    rows = [emit_before(node, visit, "Unsqueeze", element, first)[0] for element in elements]
    return emit_before(node, visit, "Concat", *rows, axis=0)[0]


def _replace(old: ir.Node, new: ir.Node) -> None:
    """Put a node in the place of another, whose output it makes under its name."""
    assert old.graph is not None
    new.outputs[0].name = old.outputs[0].name
    ir.convenience.replace_nodes_and_values(old.graph, old, [old], [new], old.outputs, new.outputs)
