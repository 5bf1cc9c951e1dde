"""Small models for the tests of measuring, written by hand so that every size in them is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BATCH, WIDTH = 64, 256
ACTIVATION = BATCH * WIDTH * 4
WEIGHT = WIDTH * WIDTH * 4


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    metadata: dict[str, str] | None = None,
    **options: Any,
) -> Path:
    """Write a model of opset 21."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("test", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, str(path), **options)
    return path


def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """A float32 input or output."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def integers(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """An int64 input or output."""
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def weight(name: str, seed: int) -> onnx.TensorProto:
    """A square weight that keeps the scale of what it multiplies."""
    array = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)) / math.sqrt(WIDTH)
    return numpy_helper.from_array(array.astype(np.float32), name)


def chain(
    path: Path, layers: int, *, segment: int = 0, gated: bool = True, metadata: dict[str, str] | None = None
) -> Path:
    """A tanh chain and its backward pass, the weight gradients last in the file and in reverse.

    In this order onnxruntime runs each weight gradient when its inputs are there, so the live set is the textbook's.

    Args:
        path: the file.
        layers: number of MatMul and Tanh pairs.
        segment: recompute segments of so many layers; 0 keeps all activations.
        gated: put a zero-copy alias at the start of a segment, so that the clones are not merged back.
        metadata: of the model.
    """
    nodes: list[onnx.NodeProto] = []

    def op(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=f"{kind}:{output}", **attributes))
        return output

    def forward(layer: int, value: str, suffix: str = "") -> str:
        return op("Tanh", [op("MatMul", [value, f"W{layer}"], f"z{layer}{suffix}")], f"a{layer}{suffix}")

    def alias(value: str, after: str, tag: int) -> str:
        present = op("OptionalHasElement", [after], f"has{tag}")
        return op("Reshape", [value, op("Where", [present, "shape", "shape"], f"shape{tag}")], f"alias{tag}")

    made = {-1: "x"}
    for layer in range(layers):
        made[layer] = forward(layer, made[layer - 1])
    op("ReduceSum", [made[layers - 1]], "loss", keepdims=0)
    gradient = op("Expand", ["one", "shape"], "g")
    used = dict(made)
    for layer in reversed(range(layers)):
        if segment and (layer + 1) % segment == 0 and layer != layers - 1:
            start = layer - segment + 1
            used[start - 1] = alias(made[start - 1], gradient, layer) if gated else made[start - 1]
            for again in range(start, layer):
                used[again] = forward(again, used[again - 1], "/recompute1")
        square = op("Mul", [used[layer], used[layer]], f"square{layer}")
        inner = op("Mul", [gradient, op("Sub", ["one", square], f"slope{layer}")], f"inner{layer}")
        op("Gemm", [used[layer - 1], inner], f"W{layer}_grad", transA=1)
        if layer:
            gradient = op("Gemm", [inner, f"W{layer}"], f"back{layer}/grad/", transB=1)
    read = {name for node in nodes for name in node.input}
    nodes = [n for n in nodes if n.output[0] in read] + [n for n in nodes if n.output[0] not in read][::-1]

    initializers = [weight(f"W{layer}", layer) for layer in range(layers)]
    initializers.append(numpy_helper.from_array(np.array([BATCH, WIDTH], np.int64), "shape"))
    initializers.append(numpy_helper.from_array(np.array(1, np.float32), "one"))
    # Overridable, as in ckplan's files: onnxruntime then neither folds nor prepacks them.
    inputs = [floats("x", BATCH, WIDTH), *(floats(f"W{layer}", WIDTH, WIDTH) for layer in range(layers))]
    outputs = [floats("loss"), *(floats(f"W{layer}_grad", WIDTH, WIDTH) for layer in range(layers))]
    return save(path, nodes, inputs, outputs, initializers, metadata)


def endless_loop() -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
    """A Loop of 2^62 iterations whose condition stays true, from `x` to `y` of 4 floats; and its initializers."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Neg", ["state"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            floats("state", 4),
        ],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), floats("next", 4)],
    )
    trips = numpy_helper.from_array(np.array(1 << 62, np.int64), "trips")
    return helper.make_node("Loop", ["trips", "", "x"], ["y"], "forever", body=body), [trips]
