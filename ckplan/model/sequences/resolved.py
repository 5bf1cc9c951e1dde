"""Sequences and optionals whose make-up is known are resolved: whoever takes an element reads that element.

A sequence of tensors is a detour that exporters take where a list stood in the program. Where the file tells how long
it is and which element is taken, nothing has to be computed at run time, planned for or differentiated: SequenceAt is
the element itself, SequenceMap a copy of its body for each element. What cannot be told stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.node_copies import copy_nodes
from ckplan.operators.matching import input_of

Constant = Callable[[ir.Value | None], np.ndarray | None]
Visit = Callable[[ir.Node], None]
Initializer = Callable[[np.ndarray], ir.Value]


@dataclass
class Contents:
    """What sequences and optionals hold, as far as it is known.

    Attributes:
        elements: by sequence.
        optionals: by optional; None for one that is empty.
    """

    elements: dict[ir.Value, tuple[ir.Value, ...]] = field(default_factory=dict)
    optionals: dict[ir.Value, ir.Value | None] = field(default_factory=dict)

    def of(self, value: ir.Value | None) -> tuple[ir.Value, ...] | None:
        """The elements of a sequence, None if they are not known."""
        return None if value is None else self.elements.get(value)


@dataclass(frozen=True)
class _Site:
    """A node that may be resolved, and what is known about the values around it."""

    node: ir.Node
    contents: Contents
    visit: Visit
    constant: Constant
    initializer: Initializer

    def input(self, index: int) -> ir.Value | None:
        return input_of(self.node, index)

    def emit(self, op_type: str, *inputs: ir.Value, outputs: int = 1, **attributes: int) -> Sequence[ir.Value]:
        """Put a node before this one; its types and shapes are inferred."""
        return emit_before(self.node, self.visit, op_type, *inputs, outputs=outputs, **attributes)

    def position(self, index: int, count: int, default: int) -> int | None:
        """A position among ``count`` that an input gives, None if it is computed at run time or out of range."""
        value = self.input(index)
        if value is None:
            return default
        return place_among(self.constant(value), count)

    def replace(self, index: int, source: ir.Value) -> None:
        """Let everybody read ``source`` instead of an output."""
        output = self.node.outputs[index]
        if output.is_graph_output():
            name, (copy,) = output.name, self.emit("Identity", source)
            output.name = f"{name}/resolved"
            ir.convenience.replace_all_uses_with(output, copy, replace_graph_outputs=True)
            copy.name = name
        else:
            ir.convenience.replace_all_uses_with(output, source)


def emit_before(
    node: ir.Node, visit: Visit, op_type: str, *inputs: ir.Value, outputs: int = 1, **attributes: int
) -> Sequence[ir.Value]:
    """Put a new node before another one.

    Args:
        node: the other one.
        visit: called with the new node; infers its types and shapes.
        op_type: its operator.
        inputs: what it reads.
        outputs: how many results it has.
        attributes: its attributes.

    Returns:
        Its results.
    """
    graph = node.graph
    assert graph is not None
    name = f"{node.name}/{op_type}_{len(graph)}"
    fresh = ir.node(op_type, inputs, attributes, num_outputs=outputs, name=name)
    for index, output in enumerate(fresh.outputs):
        output.name = f"{name}_out{index}"
    graph.insert_before(node, fresh)
    visit(fresh)
    return fresh.outputs


def place_among(position: np.ndarray | None, count: int) -> int | None:
    """The place among ``count`` that a position means, which counts from the end below 0; None for none or outside."""
    if position is None:
        return None
    place = int(position.reshape(()))
    place = place + count if place < 0 else place
    return place if 0 <= place < count else None


def resolve(node: ir.Node, contents: Contents, visit: Visit, constant: Constant, initializer: Initializer) -> None:
    """Note what a node's sequences hold, and put what is taken from known ones in its place.

    Args:
        node: nodes before it were resolved already.
        contents: what is known; added to.
        visit: called with each new node, which stands before this one.
        constant: the array of a value that is constant, else None.
        initializer: makes a constant of an array.
    """
    handler = _HANDLERS.get(node.op_type)
    if node.domain in ("", "ai.onnx") and handler is not None:
        handler(_Site(node, contents, visit, constant, initializer))


def _empty(site: _Site) -> None:
    site.contents.elements[site.node.outputs[0]] = ()


def _construct(site: _Site) -> None:
    site.contents.elements[site.node.outputs[0]] = tuple(value for value in site.node.inputs if value is not None)


def _insert(site: _Site) -> None:
    elements, tensor = site.contents.of(site.input(0)), site.input(1)
    if elements is None or tensor is None:
        return
    place = site.position(2, len(elements) + 1, len(elements))
    array = site.constant(site.input(2))
    if array is not None and int(array.reshape(())) < 0:  # counted from behind the elements that are there
        place = len(elements) + int(array.reshape(()))
    if place is not None and 0 <= place <= len(elements):
        site.contents.elements[site.node.outputs[0]] = (*elements[:place], tensor, *elements[place:])


def _erase(site: _Site) -> None:
    elements = site.contents.of(site.input(0))
    if elements:
        place = site.position(1, len(elements), len(elements) - 1)
        if place is not None:
            site.contents.elements[site.node.outputs[0]] = (*elements[:place], *elements[place + 1 :])


def _at(site: _Site) -> None:
    elements = site.contents.of(site.input(0))
    if elements:
        place = site.position(1, len(elements), 0)
        if place is not None:
            site.replace(0, elements[place])


def _length(site: _Site) -> None:
    elements = site.contents.of(site.input(0))
    if elements is not None:
        site.replace(0, site.initializer(np.asarray(len(elements), dtype=np.int64)))


def _concat(site: _Site) -> None:
    elements = site.contents.of(site.input(0))
    if not elements:
        return
    axis = site.node.attributes.get_int("axis", 0)
    if site.node.attributes.get_int("new_axis", 0):
        where = site.initializer(np.asarray([axis], dtype=np.int64))
        elements = tuple(site.emit("Unsqueeze", element, where)[0] for element in elements)
    site.replace(0, site.emit("Concat", *elements, axis=axis)[0])


def _split(site: _Site) -> None:
    data, sizes = site.input(0), site.input(1)
    shape = static_shape(data) if data is not None else None
    axis = site.node.attributes.get_int("axis", 0)
    count = None if sizes is None or site.constant(sizes) is not None else static_shape(sizes)
    if data is not None and sizes is not None and count and count[0]:  # how many is known, if not how large they are
        site.contents.elements[site.node.outputs[0]] = tuple(
            site.emit("Split", data, sizes, outputs=count[0], axis=axis)
        )
        return
    if data is None or not shape:
        return
    total = shape[axis]
    if sizes is None:
        parts = [1] * total
    else:
        array = site.constant(sizes)
        if array is None:
            return
        if array.ndim:
            parts = [int(size) for size in array]
        else:
            size = int(array)
            parts = [min(size, total - start) for start in range(0, total, size)]
    if not parts:
        site.contents.elements[site.node.outputs[0]] = ()
        return
    elements = tuple(
        site.emit("Split", data, site.initializer(np.asarray(parts, dtype=np.int64)), outputs=len(parts), axis=axis)
    )
    if sizes is None and not site.node.attributes.get_int("keepdims", 1):
        where = site.initializer(np.asarray([axis], dtype=np.int64))
        elements = tuple(site.emit("Squeeze", element, where)[0] for element in elements)
    site.contents.elements[site.node.outputs[0]] = elements


def _identity(site: _Site) -> None:
    source, output = site.input(0), site.node.outputs[0]
    elements = site.contents.of(source)
    if elements is not None:
        site.contents.elements[output] = elements
    elif source in site.contents.optionals:
        site.contents.optionals[output] = site.contents.optionals[source]


def _optional(site: _Site) -> None:
    site.contents.optionals[site.node.outputs[0]] = site.input(0)


def _get_element(site: _Site) -> None:
    source, output = site.input(0), site.node.outputs[0]
    held = site.contents.optionals.get(source) if source in site.contents.optionals else source
    if held is None or (held is source and isinstance(held.type, ir.OptionalType)):
        return
    elements = site.contents.of(held)
    if elements is not None:
        site.contents.elements[output] = elements
    elif not isinstance(held.type, ir.SequenceType):
        site.replace(0, held)


def _has_element(site: _Site) -> None:
    """Of a plain tensor it is left alone: a file made by this package uses that to order nodes."""
    source = site.input(0)
    if source is not None and source not in site.contents.optionals:
        return
    full = source is not None and site.contents.optionals[source] is not None
    site.replace(0, site.initializer(np.asarray(full)))


def _map(site: _Site) -> None:
    """Copy the body once for each element; inputs that are tensors are the same for all."""
    node = site.node
    body, graph = node.attributes.get_graph("body"), node.graph
    lists = [site.contents.of(value) for value in node.inputs]
    first = lists[0]
    unknown = any(
        elements is None and (value is None or isinstance(value.type, ir.SequenceType))
        for value, elements in zip(node.inputs, lists, strict=True)
    )
    if body is None or graph is None or first is None or unknown:
        return
    results: list[list[ir.Value]] = [[] for _ in node.outputs]
    for index in range(len(first)):
        values: dict[ir.Value, ir.Value] = {}
        for parameter, value, elements in zip(body.inputs, node.inputs, lists, strict=True):
            source = value if elements is None else elements[index]
            assert source is not None
            values[parameter] = source
        inner = copy_nodes(body, values, partial("{}/{}/{}".format, node.name, index), {})
        # This reads what comes in the place of a node that is visited.
        held = ir.Node("", "Identity", [values.get(output, output) for output in body.outputs])
        graph.insert_before(node, [*inner, held])
        for fresh in inner:
            site.visit(fresh)
        for result, element in zip(results, held.inputs, strict=True):
            assert element is not None  # bodies have no outputs left out
            result.append(element)
        graph.remove(held, safe=True)
    for output, result in zip(node.outputs, results, strict=True):
        site.contents.elements[output] = tuple(result)


_HANDLERS: dict[str, Callable[[_Site], None]] = {
    "ConcatFromSequence": _concat,
    "Identity": _identity,
    "Optional": _optional,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SequenceMap": _map,
    "SplitToSequence": _split,
}

#: Operators that are resolved where their make-up is known.
RESOLVED = frozenset(_HANDLERS) - {"Identity"}
