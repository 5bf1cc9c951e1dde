"""What gradient rules write into the file grows with the tensors that it is about, and not with their square."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import infer, node_model, values


def ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, dtype=np.int64)


def made(op_type: str, *inputs: Any, **attributes: Any) -> onnx.ModelProto:
    return node_model(op_type, *inputs, **attributes)


CASES: dict[str, Callable[[int], onnx.ModelProto]] = {
    "Pad-constant": lambda n: made("Pad", values(1, n), ints(n // 2, 3), None, ints(1)),
    "Pad-edge": lambda n: made("Pad", values(1, n), ints(n // 2, 3), None, ints(1), mode="edge"),
    "Pad-reflect": lambda n: made("Pad", values(1, n), ints(n // 2, 3), None, ints(1), mode="reflect"),
    "Pad-wrap": lambda n: made("Pad", values(1, n), ints(n // 2, 3), None, ints(1), mode="wrap"),
    "Resize-nearest": lambda n: made("Resize", values(1, 1, n), None, None, ints(1, 1, n + 7)),
    "Resize-linear": lambda n: made("Resize", values(1, 1, n), None, None, ints(1, 1, 2 * n), mode="linear"),
    "Resize-cubic": lambda n: made("Resize", values(1, 1, n), None, None, ints(1, 1, n - 9), mode="cubic"),
    "LRN": lambda n: made("LRN", values(1, n, 1, 1), size=3),
    "Col2Im": lambda n: made("Col2Im", values(1, 4, n - 3), ints(1, n), ints(1, 4)),
    "STFT": lambda n: made("STFT", values(1, n, 1), np.asarray(4), values(16), onesided=1),
    "DFT": lambda n: made("DFT", values(1, n, 1), None, np.asarray(1)),
    "AveragePool": lambda n: made("AveragePool", values(1, 1, n), kernel_shape=[3], pads=[1, 1]),
    "MaxPool": lambda n: made("MaxPool", values(1, 1, n), kernel_shape=[3]),
    "LpPool": lambda n: made("LpPool", values(1, 1, n), kernel_shape=[3]),
    "Conv": lambda n: made("Conv", values(1, 2, n), values(3, 2, 5)),
    "Conv-depthwise": lambda n: made("Conv", values(1, 2, n), values(2, 1, 5), group=2),
    "ConvTranspose": lambda n: made("ConvTranspose", values(1, 2, n), values(2, 3, 5), strides=[2]),
    "ReduceProd": lambda n: made("ReduceProd", values(1, n), ints(1)),
    "CumSum": lambda n: made("CumSum", values(1, n), np.asarray(1)),
    "CumProd": lambda n: made("CumProd", values(1, n), np.asarray(1), opset=26),
    "Gather": lambda n: made("Gather", values(n), np.arange(n)[::-1].copy()),
    "GatherND": lambda n: made("GatherND", values(n), np.arange(n)[::-1].reshape(-1, 1).copy()),
    "ScatterElements": lambda n: made("ScatterElements", values(n), np.arange(n), values(n, seed=1)),
    "TopK": lambda n: made("TopK", values(1, n), ints(n // 2), outputs=2),
    "Slice": lambda n: made("Slice", values(n), ints(-1), ints(-(2**40)), ints(0), ints(-3)),
    "Tile": lambda n: made("Tile", values(n), ints(5)),
    "Range": lambda n: made("Range", np.float64(0), np.float64(n), np.float64(1)),
    "AffineGrid": lambda n: made("AffineGrid", values(1, 2, 3).astype(np.float32), ints(1, 1, 2, n)),
    "GridSample": lambda n: made("GridSample", values(1, 1, 2, n), values(1, 1, n, 2)),
}


def bytes_of_constants(model: onnx.ModelProto) -> tuple[int, int]:
    """Build the training graph; return the bytes of what rules added, and those of the largest tensor of the graph."""
    given = {tensor.name for tensor in model.graph.initializer}
    graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
    tensors = {name: v.const_value for name, v in graph.initializers.items() if v.const_value is not None}
    largest = max(int(np.prod(v.shape.numpy())) * v.dtype.itemsize for node in graph for v in node.outputs if v.shape)
    return sum(tensor.nbytes for name, tensor in tensors.items() if name not in given), int(largest)


@pytest.mark.parametrize("case", CASES)
def test_constants_are_linear(case: str) -> None:
    (short, _), (long, largest) = (bytes_of_constants(CASES[case](size)) for size in (600, 2400))
    assert long <= 4.2 * short + 1000
    assert long <= 4 * largest + 1000
