"""BatchNormalization by statistics of the batch that a model computes itself, differentiated as one.

torch's exporter writes a BatchNormalization without running statistics as the nodes that compute the mean and the
variance of x, and a BatchNormalization in inference form that is given both. Node by node, the backward pass needs x,
for the normalisation, and x less its mean, for the variance. The gradient of the whole needs the second alone, see
:func:`ckplan.autodiff.rules.normalisation.batch_norm.stateless_batch_normalization`.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import outline
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import attr_float, attr_int, dtype_of, required_input, shape_of
from ckplan.autodiff.rules.normalisation.batch_norm import EPSILON, centre
from ckplan.operators.matching import input_of, is_op

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def outline_batch_statistics(op: Builder, held: Container[ir.Value] = ()) -> None:
    """Put composites in the place of BatchNormalizations and the nodes that compute statistics of their input.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated: none of them is inside.
    """
    for norm in list(op.graph):
        if not is_op(norm, "BatchNormalization") or attr_int(norm, "training_mode", 0):
            continue
        x, scale, bias = (required_input(norm, index) for index in range(3))
        written = _statistics(op, norm)
        if not written or x.dtype not in _TYPES or not _is_read_by(written, norm, held):
            continue
        with op.scope(str(norm.name), "forward", before=norm), op.recording() as nodes:
            _, centred, variance = centre(op, x)
            zeros = op.constant(np.zeros(shape_of(variance), dtype_of(variance)))
        for index, value in ((0, centred), (3, zeros), (4, variance)):
            norm.replace_input_with(index, value)
        attributes = {"epsilon": attr_float(norm, "epsilon", EPSILON)}
        outputs = [norm.outputs[0], centred, variance]
        outline(op, "StatelessBatchNormalization", [*nodes, norm], [x, scale, bias], outputs, attributes)
        discard(op.graph, reversed([node for node in op.graph if node in written]))


def _statistics(op: Builder, norm: ir.Node) -> set[ir.Node]:
    """The nodes that compute mean and variance of what a node normalises; none if they compute something else."""
    x = required_input(norm, 0)
    mean = _mean_of(op, required_input(norm, 3))
    variance = _mean_of(op, required_input(norm, 4))
    if mean is None or mean[0] is not x or variance is None:
        return set()
    square = variance[0].producer()
    if square is None or not _is_square(op, square):
        return set()
    subtraction = required_input(square, 0).producer()
    if subtraction is None or subtraction.op_type != "Sub" or subtraction.inputs[0] is not x:
        return set()
    subtracted = required_input(subtraction, 1)
    again = _mean_of(op, subtracted)
    per_channel = [1, shape_of(x)[1], *[1] * (len(shape_of(x)) - 2)]
    if again is None or again[0] is not x or list(shape_of(subtracted)) != per_channel:
        return set()
    return {*mean[1], *again[1], subtraction, square, *variance[1]}


def _mean_of(op: Builder, value: ir.Value) -> tuple[ir.Value, list[ir.Node]] | None:
    """What a value is the mean of for each channel, and the nodes between the two."""
    nodes = []
    while is_op(node := value.producer(), _VIEWS):
        nodes.append(node)
        value = required_input(node, 0)
    if not is_op(node, "ReduceMean"):
        return None
    source, axes = required_input(node, 0), op.constant_of(input_of(node, 1))
    rank = len(shape_of(source))
    if axes is None or sorted({int(axis) % rank for axis in axes.reshape(-1)}) != [0, *range(2, rank)]:
        return None
    return source, [*nodes, node]


def _is_square(op: Builder, node: ir.Node) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    return node.op_type == "Pow" and op.number_of(input_of(node, 1)) == 2


def _is_read_by(written: set[ir.Node], norm: ir.Node, held: Container[ir.Value]) -> bool:
    """Whether what some nodes make is read by each other and by one more, and asked for by nobody."""
    made = [value for node in written for value in node.outputs]
    if any(value in held or value.is_graph_output() for value in made):
        return False
    return all(use.node in written or use.node is norm for value in made for use in value.uses())
