"""What is promised of loss heads with label smoothing and a z-loss in pieces is what onnxruntime counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ckplan
from tests.autodiff.softmax_heads import LOSSES

SAMPLES, FEATURES, CLASSES = 256, 32, 2000


def head(loss: str) -> onnx.ModelProto:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[{SAMPLES},{FEATURES}] x, int64[{SAMPLES}] labels) => (float loss) {{
        h = MatMul(x, v) t = Transpose<perm=[1,0]>(w) logits = MatMul(h, t) {LOSSES[loss]}
    }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((n, FEATURES)) / 8 for name, n in (("v", FEATURES), ("w", CLASSES))}
    arrays |= {"many": np.asarray(0.75), "few": np.asarray(0.25), "two": np.asarray(2.0)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1]), "last"))
    return model


@pytest.mark.parametrize("chunks", ["off", "loss=4", "loss=4x2"])
def test_memory_is_predicted_to_the_byte(tmp_path: Path, chunks: str) -> None:
    made = ckplan.rewrite(head("both"), strategy="memory", chunks=chunks, output=tmp_path / "step.onnx")
    found = ckplan.measure(tmp_path / "step.onnx")
    assert found.peak_activations == made.after.peak_activations
    logits = SAMPLES * CLASSES * 4
    assert (made.after.peak_activations < logits) == (chunks != "off")
