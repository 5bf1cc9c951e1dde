"""Arithmetic on vectors of channels, for all layers at once.

A normalisation has a dozen nodes for numbers per channel. Deviations and factors read nothing of the backward pass,
and running statistics are read by nothing but the outputs of the file, so that those of all layers may as well be one
node, on the vectors joined end to end. Each element is computed as before.

Such a node takes the place of at least :data:`FEWEST`, with a Concat for what it reads and a Split for what it makes.
Gradients of scales are left alone: onnxruntime would make what they read, the gradients of whole weights, for all
layers before it sums up the first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, is_floating, required_input, shape_of, size_of
from ckplan.keys import CHANNEL_VECTORS, PHASE

FEWEST = 6
"""Layers from which on there are fewer nodes in any case."""

LONGEST = 8192
"""Elements up to which a vector is of no account, however long it is held."""

_CONSTANT = "ckplan/constant"
"""What the names of constants begin with that gradients make."""

_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sqrt", "Sub"})


def join_channel_vectors(op: Builder) -> None:
    """Let one node compute what nodes of several layers do; the old ones are left without a reader.

    Args:
        op: builder of the finished graph, in which gradients have been asked for already.
    """
    nodes = _members(op)
    first = next((node for node in op.graph if node.metadata_props.get(PHASE) == "backward"), None)
    _join(op, _late([node for node in nodes if node.metadata_props.get(PHASE) == "forward"]), "forward", first)
    # What reads nothing of the backward pass goes before all of it.
    _join(op, _early(nodes), "backward", first)


def _axis(value: ir.Value | None) -> int | None:
    """The axis along which a value is a vector, None if it is none."""
    if value is None or value.shape is None or not value.shape.is_static() or not is_floating(value):
        return None
    long = [axis for axis, size in enumerate(shape_of(value)) if size != 1]
    return long[0] if len(long) == 1 and 1 < size_of(value) <= LONGEST else None


def _members(op: Builder) -> list[ir.Node]:
    """The nodes that compute vectors of channels, of nothing but statistics and weights.

    With a batch of one, activations are vectors as well, which are not to be held for all layers at once.
    """
    found: dict[ir.Node, None] = {}
    for node in op.graph:
        if _is_member(op, node) and all(
            value is not None and (value.producer() in found or _is_number(op, value) or _is_statistic(value))
            for value in node.inputs[: 1 if node.op_type == "Reshape" else None]
        ):
            found[node] = None
    return list(found)


def _is_statistic(value: ir.Value) -> bool:
    """Say whether a vector is a weight or a constant, or what something larger was reduced to."""
    maker = value.producer()
    if maker is None:
        return value.is_initializer()
    return maker.op_type.startswith("Reduce") and size_of(required_input(maker, 0)) > size_of(value)


def _is_member(op: Builder, node: ir.Node) -> bool:
    """Say whether a node computes a vector from vectors of that length, element by element, and numbers."""
    made = node.outputs[0]
    if node.domain or len(node.outputs) != 1 or _axis(made) is None:
        return False
    if node.op_type == "Reshape":
        return _axis(required_input(node, 0)) is not None and _is_constant(op, required_input(node, 1))
    return node.op_type in _ARITHMETIC and all(
        value is not None and (value.shape == made.shape or _is_number(op, value)) for value in node.inputs
    )


def _is_number(op: Builder, value: ir.Value) -> bool:
    return _is_constant(op, value) and value.const_value is not None and value.const_value.size == 1


def _is_constant(op: Builder, value: ir.Value) -> bool:
    """Say whether a value is a constant of a gradient, and not of the model: nothing feeds or trains it."""
    return str(value.name).startswith(_CONSTANT) and op.constant_of(value) is not None


def _early(nodes: Sequence[ir.Node]) -> dict[ir.Node, int]:
    """Nodes of the backward pass that read nothing of it, with the length of the longest way to each of them."""
    found: dict[ir.Node, int] = {}
    for node in nodes:
        makers = [maker for value in node.inputs if value is not None and (maker := value.producer()) is not None]
        ready = all(maker in found or maker.metadata_props.get(PHASE) == "forward" for maker in makers)
        if ready and node.metadata_props.get(PHASE) == "backward":
            found[node] = 1 + max((found.get(maker, 0) for maker in makers), default=0)
    return found


def _late(nodes: Sequence[ir.Node]) -> dict[ir.Node, int]:
    """Nodes that only each other and the outputs of the graph read, with the length of the longest way to each."""
    last: set[ir.Node] = set()
    for node in reversed(nodes):
        made = node.outputs[0]
        readers = [use.node for use in made.uses()]
        if (readers or made.is_graph_output()) and last.issuperset(readers):
            last.add(node)
    found: dict[ir.Node, int] = {}
    for node in nodes:
        if node in last:
            makers = [value.producer() for value in node.inputs if value is not None]
            found[node] = 1 + max((found.get(maker, 0) for maker in makers if maker is not None), default=0)
    return found


def _join(op: Builder, members: dict[ir.Node, int], phase: str, before: ir.Node | None) -> None:
    """Join trees of one form; those that others read first."""
    inner = {node for node in members if _is_inner(node, members)}
    groups: dict[Hashable, list[ir.Node]] = {}
    for root in sorted(members.keys() - inner, key=lambda node: members[node]):
        groups.setdefault((members[root], *_form(op, root, inner)), []).append(root)
    joined: dict[tuple[ir.Value, ...], ir.Value] = {}
    for roots in groups.values():
        if len(roots) < FEWEST:
            continue
        axis = _axis(roots[0].outputs[0])
        assert axis is not None
        with op.scope(CHANNEL_VECTORS, phase, before=before):
            whole = _emit(op, roots, inner, joined)
            sizes = np.asarray([shape_of(root.outputs[0])[axis] for root in roots], dtype=np.int64)
            parts = op.Split(whole, sizes, axis=axis, _outputs=len(roots))
        joined[parts] = whole
        for root, part in zip(roots, parts, strict=True):
            made = root.outputs[0]
            made.name, part.name = part.name, made.name
            made.replace_all_uses_with(part, replace_graph_outputs=True)


def _is_inner(node: ir.Node, members: dict[ir.Node, int]) -> bool:
    made = node.outputs[0]
    readers = [use.node for use in made.uses()]
    return not made.is_graph_output() and len(readers) == 1 and readers[0] in members


def _form(op: Builder, node: ir.Node, inner: set[ir.Node]) -> Iterator[Hashable]:
    """What trees have to have in common: all but the lengths of the vectors and where they come from."""
    made = node.outputs[0]
    yield node.op_type, made.dtype, len(made.shape or ()), _axis(made)
    for value in node.inputs[: 1 if node.op_type == "Reshape" else None]:
        assert value is not None
        maker = value.producer()
        if maker in inner:
            assert maker is not None
            yield tuple(_form(op, maker, inner))
        elif _is_number(op, value):
            yield value
        else:
            yield len(value.shape or ()), _axis(value), _is_constant(op, value)


def _emit(
    op: Builder, nodes: Sequence[ir.Node], inner: set[ir.Node], joined: dict[tuple[ir.Value, ...], ir.Value]
) -> ir.Value:
    """Emit what nodes of one form compute, and the inner nodes before them, on joined vectors."""
    first, made = nodes[0], nodes[0].outputs[0]
    operands: list[ir.Value] = []
    for index in range(1 if first.op_type == "Reshape" else len(first.inputs)):
        values = tuple(required_input(node, index) for node in nodes)
        makers = [maker for value in values if (maker := value.producer()) in inner and maker is not None]
        axis = _axis(values[0])
        if makers:
            operands.append(_emit(op, makers, inner, joined))
        elif axis is None:
            operands.append(values[0])
        elif _is_constant(op, values[0]):
            arrays = [value.const_value.numpy() for value in values if value.const_value is not None]
            operands.append(op.constant(np.concatenate(arrays, axis=axis)))
        else:
            if values not in joined:
                joined[values] = op.Concat(*values, axis=axis)
            operands.append(joined[values])
    if first.op_type == "Reshape":
        length = size_of(operands[0])
        return op.reshape(operands[0], [length if axis == _axis(made) else 1 for axis in range(len(made.shape or ()))])
    result: ir.Value = op.emit(first.op_type, *operands)
    return result
