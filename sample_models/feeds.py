"""Seeded random inputs that a sample model can run with."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

PASSES_ON = ("Reshape", "Unsqueeze", "Squeeze", "Flatten", "Cast", "Identity", "Transpose")


def random_feeds(model: onnx.ModelProto, *, batch: int = 2, seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """Draw an array for every input that is no initializer: normal numbers, or integers that are valid indices.

    Args:
        model: with static or symbolic input shapes.
        batch: what every symbolic dimension becomes.
        seed: of the numbers.
    """
    random = np.random.default_rng(seed)
    known = {tensor.name for tensor in model.graph.initializer}
    feeds: dict[str, NDArray[np.generic]] = {}
    for value in model.graph.input:
        if value.name in known:
            continue
        kind = value.type.tensor_type
        shape = [dimension.dim_value or batch for dimension in kind.shape.dim]
        if kind.elem_type == TensorProto.INT64:
            feeds[value.name] = random.integers(0, _limit(model, value.name), shape)
        else:
            feeds[value.name] = random.standard_normal(shape).astype(np.float32)
    return feeds


def _limit(model: onnx.ModelProto, name: str) -> int:
    """How many integers the readers of ``name`` allow: the rows of a table, the classes of a loss; two if unknown."""
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    limits = [2]
    for node in model.graph.node:
        if name not in node.input:
            continue
        if node.op_type == "Gather" and node.input[1] == name:
            limits.append(rows.get(node.input[0], 2))
        elif node.op_type == "SoftmaxCrossEntropyLoss" and node.input[1] == name:
            limits.append(_classes(model, node.input[0]))
        elif node.op_type in PASSES_ON and node.input[0] == name:
            limits.append(_limit(model, node.output[0]))
    return max(limits)


def _classes(model: onnx.ModelProto, scores: str) -> int:
    """The second dimension of ``scores``."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    for value in (*inferred.value_info, *inferred.input):
        if value.name == scores:
            return int(value.type.tensor_type.shape.dim[1].dim_value) or 2
    return 2
