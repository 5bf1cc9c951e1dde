"""A small classifier, its twin in torch, and data for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import ckplan

BATCH, INPUTS, HIDDEN, CLASSES = 8, 6, 10, 4
NAMES = ("first.weight", "first.bias", "second.weight", "second.bias")


def weights(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    shapes = ((HIDDEN, INPUTS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,))
    return {name: (rng.normal(size=shape) * 0.4).astype(dtype) for name, shape in zip(NAMES, shapes, strict=True)}


def data(samples: int = 64, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(samples, INPUTS))
    rule = rng.normal(size=(INPUTS, CLASSES))
    return {"x": x.astype(dtype), "labels": (x @ rule).argmax(axis=1).astype(np.int64)}


def network(dtype: Any = np.float32) -> onnx.ModelProto:
    """x -> Gemm -> Tanh -> Gemm -> scores, of a free batch."""
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    graph = onnx.helper.make_graph(
        [
            node("Gemm", ["x", NAMES[0], NAMES[1]], ["h"], transB=1),
            node("Tanh", ["h"], ["t"]),
            node("Gemm", ["t", NAMES[2], NAMES[3]], ["scores"], transB=1),
        ],
        "net",
        [info("x", element, ["batch", INPUTS])],
        [info("scores", element, ["batch", CLASSES])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights(dtype).items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


def files(folder: Path, dtype: Any = np.float32, **options: Any) -> tuple[Path, Path]:
    """The model and a step of it with cross-entropy, as files."""
    model, step = folder / "net.onnx", folder / "step.onnx"
    onnx.save(network(dtype), model)
    opened = ckplan.open_model(model, dims={"batch": BATCH}, loss="cross-entropy", **options)
    ckplan.save(opened.model, step, force=True)
    return model, step


def twin(dtype: Any = np.float32) -> Any:
    """The network in torch, with the same weights to begin with."""
    import torch

    made = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, CLASSES))
    made = made.to(torch.from_numpy(np.zeros(1, dtype)).dtype)
    with torch.no_grad():
        for parameter, array in zip(made.parameters(), weights(dtype).values(), strict=True):
            parameter.copy_(torch.from_numpy(array))
    return made


def order(samples: int, batch: int, epochs: int, seed: int = 0) -> list[np.ndarray]:
    """The batches that a trainer draws, as numbers of samples."""
    rng = np.random.default_rng(seed)
    size = samples // batch * batch
    return [part for _ in range(epochs) for part in rng.permutation(samples)[:size].reshape(-1, batch)]


def with_dropout(folder: Path) -> Path:
    """A step file that draws masks."""
    model = network()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    dropout = onnx.helper.make_node("Dropout", ["t"], ["d"])
    nodes[2].input[0] = "d"
    model.graph.node.extend([*nodes[:2], dropout, nodes[2]])
    made = ckplan.open_model(model, dims={"batch": BATCH}, loss="cross-entropy", training=True, optimizer="adam")
    path = folder / "dropout.onnx"
    ckplan.save(made.model, path)
    assert any("seed" in node.attributes for node in ir.load(path).graph)
    return path
