"""BatchNormalization by the statistics of the batch, out of operators that every device of onnxruntime has.

``training_mode=1`` is not used: onnxruntime's CUDA kernel refuses it, and its gradient would have to make the
statistics again. Here the centred input c = x - mean is kept in place of x, which nothing else reads behind a
convolution, and the form of inference normalises it by the variance of the batch, a number per channel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import outline
from ckplan.autodiff.reading import attr_float, dtype_of, required_input, shape_of
from ckplan.autodiff.rules.normalisation.batch_norm import EPSILON, centre


def batch_normalization(op: Builder, node: ir.Node, old: Sequence[ir.Value]) -> list[ir.Value]:
    """Emit a BatchNormalization in training form as one composite.

    Args:
        op: the builder, in a scope of its own.
        node: a BatchNormalization of x [N, C, ...] in either form; it stays as it is.
        old: the running mean and variance [C] before the step; empty where nothing reads what becomes of them.

    Returns:
        The normalised x, and the running mean and variance after the step if ``old`` are given.
    """
    x, scale, bias = (required_input(node, index) for index in range(3))
    channels, narrow = shape_of(x)[1], x.dtype
    assert narrow is not None
    momentum = attr_float(node, "momentum", 0.9)
    epsilon = attr_float(node, "epsilon", EPSILON)
    with op.recording() as nodes:
        mean, centred, variance = centre(op, x)
        assert centred.dtype is not None
        parts = [op.cast(part, centred.dtype) for part in (scale, bias)]
        zeros = np.zeros(channels, dtype_of(centred))
        y = op.cast(op.BatchNormalization(centred, *parts, zeros, variance, epsilon=epsilon), narrow)
        statistics = [op.reshape(mean, [channels]), variance] if old else []
        new = [_running(op, before, batch, momentum) for before, batch in zip(old, statistics, strict=True)]
    outputs = [y, *new, centred, variance]
    inputs, attributes = [x, scale, bias, *old], {"momentum": momentum, "epsilon": epsilon}
    kind = "TrainingBatchNormalization" if old else "StatelessBatchNormalization"
    return list(outline(op, kind, nodes, inputs, outputs, attributes))[: 1 + len(new)]


def _running(op: Builder, old: ir.Value, batch: ir.Value, momentum: float) -> ir.Value:
    """Emit the new running statistic ``momentum * old + (1 - momentum) * batch``, as ONNX defines it."""
    assert old.dtype is not None
    return op.Add(op.Mul(old, momentum), op.Mul(op.cast(batch, old.dtype), 1.0 - momentum))


def splits(nodes: Sequence[ir.Node]) -> dict[ir.Node, bool]:
    """Say which of some BatchNormalizations need running statistics of their own.

    Exporters merge initializers of equal content, and fresh layers have equal ones: the running mean may be the bias.
    Nodes that share scale, bias, mean and variance are taken for one layer that is applied several times.
    """
    layers: dict[ir.Value, tuple[ir.Value, ...]] = {}
    result = {}
    for node in nodes:
        layer = tuple(required_input(node, index) for index in range(1, 5))
        result[node] = any(
            layers.setdefault(layer[index - 1], layer) != layer or not _is_only(layer[index - 1], index)
            for index in (3, 4)
        )
    return result


def _is_only(value: ir.Value, index: int) -> bool:
    """Say whether a value is read as this input of BatchNormalizations and as nothing else."""
    read = all(use.idx == index and use.node.op_type == "BatchNormalization" for use in value.uses())
    return read and not value.is_graph_output()
