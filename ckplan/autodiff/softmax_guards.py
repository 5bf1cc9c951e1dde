"""Softmaxes of attention without what exporters put behind them for rows of which a mask leaves nothing.

Such a row is 0 / 0, and torch's exporters write a Where behind each softmax that puts zeros there. For what is known of
a row beforehand, that is a tensor of truth values and another one of numbers in each layer, queries by keys, and
onnxruntime's Where works in two more; its gradient is a Where again.

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
from ckplan.autodiff.paths import depends, discard
from ckplan.autodiff.reading import attr_int, dtype_of, is_floating, required_input, shape_of
from ckplan.keys import PHASE
from ckplan.model.rewiring import put_behind

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


def drop_softmax_guards(op: Builder, held: Container[ir.Value]) -> None:
    """Let what reads a guarded softmax read the softmax, where no row of it can be 0 / 0, or can be made so.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated; they stay what they are.
    """
    masks: dict[ir.Value, _Mask] = {}
    for softmax in [node for node in op.graph if node.op_type == "Softmax" and not node.domain]:
        found = _guard(op, softmax, held)
        if found is None:
            continue
        asks, guard = found
        if not _is_finite(op, required_input(softmax, 0), _MOST_STEPS):
            products = _products(guard.outputs[0], held)
            mask = _masked(op, softmax, masks, held) if products else None
            if mask is None:
                continue
            _put_zeros(op, products, mask)
        guard.outputs[0].replace_all_uses_with(softmax.outputs[0])
        discard(op.graph, [guard, asks])


def _guard(op: Builder, softmax: ir.Node, held: Container[ir.Value]) -> tuple[ir.Node, ir.Node] | None:
    """The IsNaN and the Where that put zeros in the place of what is not a number, if nobody else reads the softmax."""
    y = softmax.outputs[0]
    readers = {use.node.op_type: use.node for use in y.uses()}
    if readers.keys() != {"IsNaN", "Where"} or attr_int(softmax, "axis", -1) not in (-1, len(shape_of(y)) - 1):
        return None
    asks, guard = readers["IsNaN"], readers["Where"]
    zeros, result = op.constant_of(guard.inputs[1]), guard.outputs[0]
    if zeros is None or zeros.any() or guard.inputs[0] is not asks.outputs[0] or guard.inputs[2] is not y:
        return None
    known = result in held or result.is_graph_output() or shape_of(result) != shape_of(y)
    return (asks, guard) if not known and is_private({softmax, asks, guard}, guard, held) else None


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
    if node is None or node.op_type != "Add" or node.domain or node.outputs[0].dtype not in _WIDE:
        return None
    for place, scores in ((1, node.inputs[0]), (0, node.inputs[1])):
        mask = required_input(node, place)
        if _is_finite(op, scores, _MOST_STEPS) and not depends(mask, held):
            if mask not in masks:
                masks[mask] = _finite_mask(op, mask)
            with op.scope(str(node.name), "forward", before=softmax):
                softmax.replace_input_with(0, op.Add(scores, masks[mask].finite))
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
        if node.op_type == "Dropout" and not node.domain and use.idx == 0 and not node.outputs[0].is_graph_output():
            behind = _products(node.outputs[0], held)
            if not behind:
                return []
            products += behind
        elif node.op_type == "MatMul" and not node.domain and use.idx == 0 and node.outputs[0] not in held:
            products.append(node)
        else:
            return []
    return products


def _put_zeros(op: Builder, products: list[ir.Node], mask: _Mask) -> None:
    """Multiply what products make by 0 in the rows of which the mask leaves nothing."""
    if mask.left is None:
        return
    for node in products:
        name = op.unique_name(f"{node.name}/left")
        factor = ir.node("Mul", [node.outputs[0], mask.left], name=name, metadata_props={PHASE: "forward"})
        put_behind(node, factor, "attended")
        op.infer(factor)
