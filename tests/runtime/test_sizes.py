"""Bytes of values of types that are not like others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

import ckplan
from ckplan.runtime.sizes import bytes_of


def test_strings_are_counted_as_objects() -> None:
    assert bytes_of(ir.Value(name="s", shape=ir.Shape((2, 3)), type=ir.TensorType(ir.DataType.STRING))) == 6 * 32


def test_a_model_of_strings_is_planned(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 2]>
    g (string[4] words) => (float[4, 5] y) {
        twice = StringConcat(words, words)
        rows = ai.onnx.ml.LabelEncoder <keys_strings = ["aa"], values_int64s = [1]> (twice)
        y = Gather(weight, rows)
    }""")
    table = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "weight"))
    onnx.save(model, tmp_path / "words.onnx")
    step = ckplan.open_model(tmp_path / "words.onnx", loss="mean")
    assert list(step.training.gradients) == ["weight"]
    made = {tensor.name: tensor.bytes for tensor in step.problem.tensors}
    assert made["twice"] == 4 * 32
