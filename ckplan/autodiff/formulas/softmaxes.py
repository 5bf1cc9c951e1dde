"""Softmaxes that a model writes out in arithmetic, made one node again.

JAX exports ``exp(x - max x) / sum exp(x - max x)``, and the logarithm of it, as five nodes and more, most of which
write a tensor of the size of x. onnxruntime's kernels of Softmax and LogSoftmax
(https://onnx.ai/onnx/operators/onnx__Softmax.html) go through x once, and their gradients read the result alone. Only a
Softmax tells, too, that an output is of classes, and that a product is of attention.

The maximum takes part in no gradient: whatever is subtracted along the axis, the result is the same.
"""

from __future__ import annotations

import math
from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.formulas.replacement import TYPES, is_private, nodes_inside, reduced_axis, replace_formula
from ckplan.autodiff.losses.head import SHAPE_ONLY
from ckplan.autodiff.reading import shape_of
from ckplan.model.node_reads import fixed_tensor
from ckplan.operators.matching import is_op


def join_softmaxes(op: Builder, held: Container[ir.Value]) -> None:
    """Make one Softmax or LogSoftmax of each that is written out.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated: none of them is inside.
    """
    for exponential in [node for node in op.graph if is_op(node, "Exp")]:
        found = _written(exponential)
        if found is None:
            continue
        x, axis, last, op_type = found
        nodes = nodes_inside({x}, last)
        if is_private(nodes, last, held):
            replace_formula(op.graph, nodes, last, op_type, [x], [ir.AttrInt64("axis", axis)])


def _written(exponential: ir.Node) -> tuple[ir.Value, int, ir.Node, str] | None:
    """The softmax that an Exp belongs to: what it is of, its axis, its last node, and its operator."""
    shifted, raised = exponential.inputs[0], exponential.outputs[0]
    if shifted is None or raised.dtype not in TYPES:
        return None
    total = next((node for node in raised.consumers() if is_op(node, "ReduceSum")), None)
    axis = None if total is None else reduced_axis(total)
    if total is None or axis is None:
        return None
    x = _without_maximum(shifted, axis)
    for reader in raised.consumers():
        if is_op(reader, "Div") and reader.inputs[0] is raised:
            sums = reader.inputs[1]
            if sums is not None and _is_laid_along(sums, total, raised, axis):
                return x, axis, reader, "Softmax"
    for reader in shifted.consumers():
        if is_op(reader, "Sub") and reader.inputs[0] is shifted:
            logarithm = reader.inputs[1]
            if logarithm is not None and _is_laid_along(logarithm, total, raised, axis, logarithm=True):
                return x, axis, reader, "LogSoftmax"
    return None


def _without_maximum(shifted: ir.Value, axis: int) -> ir.Value:
    """What the maximum was subtracted from; the value itself where none was."""
    node = shifted.producer()
    if not is_op(node, "Sub") or node.inputs[0] is None or node.inputs[1] is None:
        return shifted
    x, maximum = node.inputs[0], node.inputs[1]
    found = any(
        reduction.op_type == "ReduceMax"
        and reduced_axis(reduction) == axis
        and _is_laid_along(maximum, reduction, x, axis)
        for reduction in x.consumers()
    )
    return x if found else shifted


def _is_laid_along(value: ir.Value, reduction: ir.Node, x: ir.Value, axis: int, logarithm: bool = False) -> bool:
    """Whether a value is what a reduction makes, in the shape of x, or in that with a 1 along the axis.

    Args:
        value: what may be it.
        reduction: of x, or of a value of its shape.
        x: for its shape.
        axis: that is reduced.
        logarithm: whether a Log is to stand in between.
    """
    whole = shape_of(x)
    kept = (*whole[:axis], 1, *whole[axis + 1 :])
    if shape_of(value) not in (whole, kept):
        return False
    expanded, taken = shape_of(value) == kept, not logarithm
    while (node := value.producer()) is not None and node is not reduction and not node.domain:
        source = node.inputs[0]
        if node.op_type == "Expand":
            if source is None or shape_of(source) != kept:  # exporters write some that change nothing, too
                return False
            expanded = True
        elif not expanded:
            return False
        elif node.op_type == "Log":
            if taken:
                return False
            taken = True
        elif node.op_type == "Max":
            source = _beside_infinity(node)
        elif node.op_type not in SHAPE_ONLY:
            return False
        if source is None:
            return False
        value = source
    return node is reduction and expanded and taken


def _beside_infinity(node: ir.Node) -> ir.Value | None:
    """What a Max compares with negative infinity, which changes nothing."""
    computed = [value for value in node.inputs if value is not None and not _is_lowest(value)]
    return computed[0] if len(computed) == 1 else None


def _is_lowest(value: ir.Value) -> bool:
    tensor = fixed_tensor(value)
    return tensor is not None and bool((tensor.numpy() == -math.inf).all())
