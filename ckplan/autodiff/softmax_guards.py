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

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.formulas import is_private
from ckplan.autodiff.idle_masks import is_zero
from ckplan.autodiff.paths import depends, discard
from ckplan.autodiff.reading import attr_int, dtype_of, is_floating, required_input, shape_of
from ckplan.keys import PHASE
from ckplan.model.rewiring import put_behind
from ckplan.operators.matching import is_op

_PRODUCTS = frozenset({"Conv", "Einsum", "Gemm", "MatMul"})
_BOUNDED = frozenset({"Sigmoid", "Softmax", "Tanh"})
_OF_ALL = frozenset({"Add", "Mul", "Neg", "Sub"})
"""Operators whose results are finite if all that they read is, but for an overflow."""
_OF_FIRST = frozenset(
    {"Cast", "Expand", "Gather", "GatherND", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that move what they read first."""
_MOST_STEPS = 12
"""Nodes between a mask and a softmax, at most."""
_WIDE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Types in which the lowest number and a score make no infinite one."""


@dataclass(frozen=True)
class _Mask:
    """A mask that is added to scores.

    Attributes:
        finite: the mask with the lowest number in the place of minus infinity.
        left: 1 for each row of which something is left, 0 for others; None where something is left of every row.
    """

    finite: ir.Value
    left: ir.Value | None


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

    def left(self, op: Builder) -> ir.Value | None:
        """1 for each row of which something is left, 0 for others, as a guard says that has a truth value for each."""
        if self.empty is None:
            return None
        with op.scope(str(self.where.name), "forward", before=self.where):
            return op.Cast(op.Not(self.empty), to=self.where.outputs[0].dtype)


def drop_softmax_guards(op: Builder, held: Container[ir.Value]) -> None:
    """Let what reads a guarded softmax read the softmax, where no row of it can be 0 / 0, or can be made so.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated; they stay what they are.
    """
    masks: dict[ir.Value, _Mask] = {}
    for softmax in [node for node in op.graph if is_op(node, "Softmax")]:
        guard = _guard(op, softmax, held)
        if guard is None:
            continue
        products = _products(guard.where.outputs[0], held)
        finite = _is_finite(op, required_input(softmax, 0), _MOST_STEPS)
        if not products and not (finite and guard.empty is None):
            continue
        mask = None if finite else _masked(op, softmax, masks, held)
        if not finite and mask is None:
            continue
        left = guard.left(op) if mask is None or guard.empty is not None else mask.left
        _put_zeros(op, products, left)
        guard.where.outputs[0].replace_all_uses_with(softmax.outputs[0])
        discard(op.graph, guard.nodes)


def _guard(op: Builder, softmax: ir.Node, held: Container[ir.Value]) -> _Guard | None:
    """What puts zeros into rows of a softmax, if nobody else reads it, and nothing else than rows needs these zeros."""
    y = softmax.outputs[0]
    if attr_int(softmax, "axis", -1) not in (-1, len(shape_of(y)) - 1):
        return None
    readers = {use.node.op_type: use.node for use in y.uses()}
    guard = readers.get("Where")
    if guard is None or guard.inputs[2] is not y or guard.inputs[1] in held:
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
    known = result in held or result.is_graph_output() or len(readers) > (1 if asks is None else 2)
    if known or not is_private({softmax, *nodes}, guard, held):
        return None
    return _Guard(guard, tuple(nodes), None if asks is not None else condition)


def _is_finite(op: Builder, value: ir.Value | None, steps: int) -> bool:
    """Whether no element of a value is infinite or not a number, as far as nothing overflows on the way."""
    if value is None:
        return True
    if value.const_value is not None and not value.is_graph_input():
        return _holds_numbers(value.const_value.numpy())
    node = value.producer()
    if node is None or node.domain or not steps:
        return False
    if node.op_type in _PRODUCTS | _BOUNDED:
        return True
    read = [operand for operand in _finite_because_of(op, node) if operand is not None]
    return bool(read) and all(not is_floating(operand) or _is_finite(op, operand, steps - 1) for operand in read)


def _finite_because_of(op: Builder, node: ir.Node) -> Sequence[ir.Value | None]:
    """Which of a node's inputs are to be finite for its result to be; none where that does not tell."""
    if node.op_type in _OF_ALL:
        return node.inputs
    if node.op_type in _OF_FIRST:
        return node.inputs[:1]
    if node.op_type == "Where":
        return node.inputs[1:]
    divisor = op.constant_of(node.inputs[1]) if node.op_type == "Div" else None
    return node.inputs[:1] if divisor is not None and divisor.all() else ()


def _holds_numbers(array: np.ndarray) -> bool:
    """Whether all elements are finite, and a score that is added makes none infinite.

    The lowest number in half precision takes a score of -16 to get there, that in single precision one of -1e31.
    """
    if not np.issubdtype(array.dtype, np.floating):
        return True
    half = array.dtype == np.float16
    return bool(np.all(np.abs(array) <= np.finfo(array.dtype).max / (2 if half else 1)))


def _masked(op: Builder, softmax: ir.Node, masks: dict[ir.Value, _Mask], held: Container[ir.Value]) -> _Mask | None:
    """Let a softmax read scores behind a mask without minus infinity, if scores and a mask are added before it."""
    node = required_input(softmax, 0).producer()
    if not is_op(node, "Add") or node.outputs[0].dtype not in _WIDE:
        return None
    for place, scores in ((1, node.inputs[0]), (0, node.inputs[1])):
        mask = required_input(node, place)
        if _is_finite(op, scores, _MOST_STEPS) and not depends(mask, held):
            if mask not in masks:
                masks[mask] = _finite_mask(op, mask)
            with op.scope(str(node.name), "forward", before=softmax):
                softmax.replace_input_with(0, op.Add(scores, masks[mask].finite))
            if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                op.graph.remove(node, safe=True)  # nobody but the softmax is to read the scores
            return masks[mask]
    return None


def _finite_mask(op: Builder, mask: ir.Value) -> _Mask:
    """The mask without minus infinity, made before the first node that reads it."""
    lowest = np.finfo(dtype_of(mask)).min
    known = op.constant_of(mask)
    if known is not None:
        some = np.asarray((known > -np.inf).any(axis=-1, keepdims=True))
        return _Mask(
            op.constant(np.maximum(known, lowest)), None if some.all() else op.constant(some.astype(known.dtype))
        )
    readers = {use.node for use in mask.uses()}
    first = next(node for node in op.graph if node in readers)
    with op.scope(f"{mask.name}/finite", "forward", before=first):
        largest = op.ReduceMax(mask, np.asarray([-1], dtype=np.int64), keepdims=1)
        left = op.Cast(op.Greater(largest, float("-inf")), to=mask.dtype)
        return _Mask(op.Max(mask, float(lowest)), left)


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


def _put_zeros(op: Builder, products: list[ir.Node], left: ir.Value | None) -> None:
    """Multiply what products make by 0 in the rows of which nothing is left."""
    if left is None:
        return
    for node in products:
        name = op.unique_name(f"{node.name}/left")
        factor = ir.node("Mul", [node.outputs[0], left], name=name, metadata_props={PHASE: "forward"})
        put_behind(node, factor, "attended")
        op.infer(factor)
