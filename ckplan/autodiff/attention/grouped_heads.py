"""Products of attention whose keys or values several heads share, without a copy of these for each head.

Files repeat keys and values before the products: with r queries for each key they take r times what they have to, in
the forward pass and as gradients, which are summed over the copies afterwards (grouped queries; Ainslie et al.,
arXiv:2305.13245). The queries of a group lie one behind the other in memory. Seen as one matrix of r times the rows,
they go through the product with what they share, and the sum over the copies is one that the product makes.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import attr_int, attr_ints, factor_of, required_input, shape_of
from ckplan.operators.matching import is_op


def group_heads(op: Builder, held: Container[ir.Value]) -> None:
    """Let products read what is repeated right before its last two axes as it was before.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated.
    """
    for node in list(op.graph):
        if is_op(node, "MatMul"):
            left, right = (required_input(node, index) for index in (0, 1))
            ahead, own = shape_of(left)[:-2], shape_of(right)[:-2]
            if ahead and ahead[-1] > 1 and own == (*ahead[:-1], 1):
                _group(op, node, right, ahead[-1], [], held)  # the product repeats it itself
            elif behind := _behind_copies(right, held):
                expand, *others = behind
                _group(op, node, required_input(expand, 0), shape_of(expand.outputs[0])[-3], others, held)


def _behind_copies(value: ir.Value, held: Container[ir.Value]) -> list[ir.Node]:
    """The Expand that makes a value of copies, and the nodes from there on that change more than its shape."""
    nodes: list[ir.Node] = []
    while (node := value.producer()) is not None and not node.domain:
        source = required_input(node, 0)
        if node.op_type == "Expand":
            return [node, *reversed(nodes)] if _repeats_matrices(node) else []
        if node.op_type == "Reshape":
            if shape_of(source)[-2:] != shape_of(value)[-2:]:
                return []
        elif node.op_type == "Cast" or _turns_matrices(node) or factor_of(node, held) is not None:
            nodes.append(node)
        else:
            return []
        value = source
    return []


def _repeats_matrices(expand: ir.Node) -> bool:
    """Whether an Expand repeats matrices, each copy right behind the one before."""
    one, many = shape_of(required_input(expand, 0)), shape_of(expand.outputs[0])
    return len(one) == len(many) > 3 and one[-3] == 1 < many[-3] and (*many[:-3], 1, *many[-2:]) == one


def _turns_matrices(node: ir.Node) -> bool:
    """Whether a node swaps the last two axes and no others."""
    axes = attr_ints(node, "perm") if node.op_type == "Transpose" else None
    return axes is not None and axes == (*range(len(axes) - 2), len(axes) - 1, len(axes) - 2)


def _group(
    op: Builder,
    product: ir.Node,
    source: ir.Value,
    copies: int,
    before: Sequence[ir.Node],
    held: Container[ir.Value],
) -> None:
    """Put a product with what is not repeated in the place of one, if the rows of its left side are in groups.

    Args:
        op: the builder.
        product: of a left side [..., g r, m, k], or the like, and copies of the source.
        source: [..., g, 1, k, n], or turned.
        copies: r of each matrix.
        before: what changes the copies before the product reads them.
        held: see `group_heads`.
    """
    left = required_input(product, 0)
    batch, (*ahead, rows, columns) = shape_of(source)[:-3], shape_of(left)
    if math.prod(ahead) != math.prod(batch) * copies:
        return
    behind = _factors_behind(product, held)
    last = behind[-1] if behind else product
    with op.scope(str(product.name), "forward", before=last):
        shared = op.reshape(source, (*batch, *shape_of(source)[-2:]))
        for node in before:
            shared = _on_matrices(op, node, shared)
        grouped = op.MatMul(op.reshape(left, (*batch, copies * rows, columns)), shared)
        for node in behind:
            grouped = _on_matrices(op, node, grouped)
        shape = op.constant(shape_of(last.outputs[0]))
    become(last, ("", "Reshape", ""), [grouped, shape], [])
    discard(op.graph, reversed([product, *behind][:-1]))


def _factors_behind(product: ir.Node, held: Container[ir.Value]) -> list[ir.Node]:
    """The nodes that multiply all that a product makes, which its kernel does on the way."""
    nodes: list[ir.Node] = []
    value = product.outputs[0]
    while value not in held and not value.is_graph_output() and len(value.uses()) == 1:
        ((reader, index),) = value.uses()
        if index or factor_of(reader, held) is None:
            break
        nodes.append(reader)
        value = reader.outputs[0]
    return nodes


def _on_matrices(op: Builder, node: ir.Node, value: ir.Value) -> ir.Value:
    """What a node makes of matrices, whatever other axes they lie along."""
    if node.op_type == "Cast":
        return op.Cast(value, to=attr_int(node, "to", 0))
    if node.op_type == "Transpose":
        rank = len(shape_of(value))
        return op.Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])
    number = required_input(node, 1).const_value
    assert number is not None
    scaled: ir.Value = op.emit(node.op_type, value, op.constant(number.numpy().reshape(())))
    return scaled
