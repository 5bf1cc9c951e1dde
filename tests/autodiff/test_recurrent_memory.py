"""What checkpoints along time save, measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ckplan.autodiff import build_training_graph
from ckplan.meter import Measurement, measure
from ckplan.model import save
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime import problem_of
from ckplan.writer import emit
from tests.autodiff.gradcheck import infer

STEPS, BATCH, FEATURES, HIDDEN = 196, 8, 16, 32


def lstm() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 4 * HIDDEN, FEATURES), "r": (1, 4 * HIDDEN, HIDDEN), "b": (1, 8 * HIDDEN)}
    graph = helper.make_graph(
        [
            helper.make_node("LSTM", ["x", "w", "r", "b"], ["", "h"], name="lstm", hidden_size=HIDDEN),
            helper.make_node("ReduceSumSquare", ["h"], ["loss"], keepdims=0),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, BATCH, FEATURES])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(rng.uniform(-0.2, 0.2, s).astype(np.float32), n) for n, s in shapes.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def measured(path: Path, chunks: str | None) -> Measurement:
    training = build_training_graph(infer(lstm()), loss="loss", time_checkpoints=chunks)
    save(emit(training.model, parse_strategy("none").solve(problem_of(training.model))), path)
    return measure(path, runs=1, heap=False)


def test_checkpoints_along_time_take_a_fraction(tmp_path):
    plain, cut = measured(tmp_path / "plain.onnx", None), measured(tmp_path / "cut.onnx", "sqrt")
    # 0.064 of it with 1000 steps, batch 32 and 256 hidden units
    assert cut.peak_activations <= 0.18 * plain.peak_activations
    assert abs(plain.prediction.peak_activations / plain.peak_activations - 1) < 0.02
    assert cut.prediction.peak_activations < 1.02 * cut.peak_activations
