"""Softmaxes of attention without what exporters put behind them for rows of which a mask leaves nothing.

Such a row is 0 / 0, and torch's exporters write a Where behind each softmax that puts zeros there, where it is not a
number; so does the definition of Attention, by a truth value for each row. For what is known of a row beforehand, that
is another tensor of queries by keys in each layer, and onnxruntime's Where works in two more; its gradient is a Where
again.

A row cannot be 0 / 0 if no score is minus infinity, and masks of the lowest finite number make none: e to the power of
a sum with it is 0 as well. Behind those the Where does nothing, and goes. Where a mask has minus infinity, the lowest
number takes its place: that alters no row of which a key is left. The softmax of another row is some numbers then, and
zeros are put behind the product with the values, by a factor for each query.

In one thing this differs from the file: where scores overflow, not-a-number stays what it is, as in torch.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.attention.finite_masks import Mask, finite_mask, is_finite
from ckplan.autodiff.attention.idle_masks import is_zero
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.formulas.replacement import is_private
from ckplan.autodiff.paths import depends, discard
from ckplan.autodiff.reading import attr_int, required_input, shape_of
from ckplan.keys import PHASE
from ckplan.model.rewiring import put_behind
from ckplan.operators.matching import is_op

_WIDE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Types in which the lowest number and a score make no infinite one."""


@dataclass(frozen=True)
class _Guard:
    """What puts zeros into rows of a softmax.

    Attributes:
        where: the Where.
        nodes: it, and all between it and the softmax; readers stand before what they read.
        empty: a truth value for each row, of which nothing is left; None where it asks what is not a number.
    """

    where: ir.Node
    nodes: tuple[ir.Node, ...]
    empty: ir.Value | None

    def left(self, op: Builder, mask: Mask | None) -> ir.Value | None:
        """1 for each row of which something is left, 0 for others, as it says itself, or a mask; None: of every row."""
        if self.empty is None:
            return None if mask is None else mask.left
        with op.scope(str(self.where.name), "forward", before=self.where):
            return op.Cast(op.Not(self.empty), to=self.where.outputs[0].dtype)


def drop_softmax_guards(op: Builder, held: Container[ir.Value]) -> set[ir.Node]:
    """Let what reads a guarded softmax read the softmax, where no row of it can be 0 / 0, or can be made so.

    Returns the products whose results are multiplied by 0 in rows of which nothing is left.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated; they stay what they are.
    """
    masks: dict[ir.Value, Mask] = {}
    zeroed: set[ir.Node] = set()
    for softmax in [node for node in op.graph if is_op(node, "Softmax")]:
        guard = _guard(op, softmax, held)
        if guard is None:
            continue
        products = _products(guard.where.outputs[0], held)
        finite = is_finite(op, required_input(softmax, 0))
        if not products and not (finite and guard.empty is None):
            continue
        mask = None if finite else _masked(op, softmax, masks, held)
        if not finite and mask is None:
            continue
        left = guard.left(op, mask)
        if left is not None:
            _put_zeros(op, products, left)
            zeroed.update(products)
        guard.where.outputs[0].replace_all_uses_with(softmax.outputs[0])
        discard(op.graph, guard.nodes)
    return zeroed


def _guard(op: Builder, softmax: ir.Node, held: Container[ir.Value]) -> _Guard | None:
    """What puts zeros into rows of a softmax, if nobody else reads it, and nothing else than rows needs these zeros."""
    y = softmax.outputs[0]
    if attr_int(softmax, "axis", -1) not in (-1, len(shape_of(y)) - 1):
        return None
    readers = {use.node.op_type: use.node for use in y.uses()}
    guard = readers.get("Where")
    if guard is None or guard.inputs[2] is not y:
        return None
    condition, result = guard.inputs[0], guard.outputs[0]
    if condition is None or not is_zero(op, guard.inputs[1], held) or shape_of(result) != shape_of(y):
        return None
    asks = readers.get("IsNaN")
    if asks is not None and asks.outputs[0] is not condition:
        return None
    if asks is None and shape_of(condition)[-1:] != (1,):
        return None
    nodes = [guard] if asks is None else [guard, asks]
    if result in held or result.is_graph_output() or not is_private({softmax, *nodes}, guard, held):
        return None
    return _Guard(guard, tuple(nodes), None if asks is not None else condition)


def _masked(op: Builder, softmax: ir.Node, masks: dict[ir.Value, Mask], held: Container[ir.Value]) -> Mask | None:
    """Let a softmax read scores behind a mask without minus infinity, if scores and a mask are added before it."""
    node = required_input(softmax, 0).producer()
    if not is_op(node, "Add") or node.outputs[0].dtype not in _WIDE:
        return None
    for place, scores in ((1, node.inputs[0]), (0, node.inputs[1])):
        mask = required_input(node, place)
        if is_finite(op, scores) and not depends(mask, held):
            if mask not in masks:
                masks[mask] = finite_mask(op, mask)
            with op.scope(str(node.name), "forward", before=softmax):
                softmax.replace_input_with(0, op.Add(scores, masks[mask].finite))
            if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                op.graph.remove(node, safe=True)  # nobody but the softmax is to read the scores
            return masks[mask]
    return None


def _products(value: ir.Value, held: Container[ir.Value]) -> list[ir.Node]:
    """The products with what is attended to, if these alone read a softmax, perhaps behind Dropouts; else none."""
    products: list[ir.Node] = []
    for use in value.uses():
        node = use.node
        if is_op(node, "Dropout") and use.idx == 0 and not node.outputs[0].is_graph_output():
            behind = _products(node.outputs[0], held)
            if not behind:
                return []
            products += behind
        elif is_op(node, "MatMul") and use.idx == 0 and node.outputs[0] not in held:
            products.append(node)
        else:
            return []
    return products


def _put_zeros(op: Builder, products: list[ir.Node], left: ir.Value) -> None:
    """Multiply what products make by 0 in the rows of which nothing is left."""
    for node in products:
        name = op.unique_name(f"{node.name}/left")
        factor = ir.node("Mul", [node.outputs[0], left], name=name, metadata_props={PHASE: "forward"})
        put_behind(node, factor, "attended")
        node.outputs[0].name = op.unique_name(str(node.outputs[0].name))  # taken, for whoever copies the product
        op.infer(factor)
