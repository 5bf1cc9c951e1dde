"""Forward graphs with a loss, in the form that onnxruntime-training reads as well."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

_OPTIONAL = {"LayerNormalization": ("mean", "inverse"), "SoftmaxCrossEntropyLoss": ("log_prob",)}
"""Outputs that onnxruntime-training insists on, by the operator's type."""


def set_batch(model: onnx.ModelProto, batch: int) -> None:
    """Give the free dimensions of a model's inputs and outputs a size."""
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if not dim.dim_value:
                dim.dim_value = batch


def add_cross_entropy(model: onnx.ModelProto) -> None:
    """Put a mean cross-entropy, ``loss``, in the place of logits (N, classes, ...), against an input ``labels``."""
    logits, shape = _take_output(model)
    model.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.INT64, [shape[0], *shape[2:]]))
    _add_loss(model, [helper.make_node("SoftmaxCrossEntropyLoss", [logits, "labels"], ["loss"], name="loss")])


def add_mean_squared_error(model: onnx.ModelProto, target: str) -> None:
    """Put a mean squared error, ``loss``, in the place of the first output, against a new input of this name."""
    output, shape = _take_output(model)
    model.graph.input.append(helper.make_tensor_value_info(target, TensorProto.FLOAT, shape))
    nodes = [
        helper.make_node("Sub", [output, target], ["loss_error"], name="loss_error"),
        helper.make_node("Mul", ["loss_error", "loss_error"], ["loss_square"], name="loss_square"),
        helper.make_node("ReduceMean", ["loss_square"], ["loss"], name="loss", keepdims=0),
    ]
    _add_loss(model, nodes)


def add_optional_outputs(model: onnx.ModelProto) -> None:
    """Add the outputs that onnxruntime-training insists on."""
    for node in model.graph.node:
        missing = _OPTIONAL.get(node.op_type, ())[len(node.output) - 1 :]
        node.output.extend(f"{node.output[0]}_{name}" for name in missing)


def _take_output(model: onnx.ModelProto) -> tuple[str, list[int]]:
    output = model.graph.output.pop(0)
    return output.name, [dim.dim_value for dim in output.type.tensor_type.shape.dim]


def _add_loss(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
