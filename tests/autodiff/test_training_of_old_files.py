"""Training forms of BatchNormalization and Dropout in files of old operator sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ckplan
from ckplan.errors import UsageError
from tests.autodiff.gradcheck import onnxruntime_run, values
from tests.autodiff.test_training_batch_norm import EPSILON, MOMENTUM, statistics
from tests.autodiff.test_training_dropout import with_mask


def write(path: Path, text: str, opset: int, **arrays: np.ndarray) -> Path:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(model, path)
    return path


OLD_DROPOUTS = [
    (6, "Dropout <ratio = 0.25, is_test = 1> (h)"),
    (7, "Dropout <ratio = 0.25> (h)"),
    (10, "Dropout <ratio = 0.25> (h)"),
    (12, "Dropout (h, r)"),
    (17, "Dropout (h, r, no)"),
    (22, "Dropout (h, r, no)"),
]


@pytest.mark.parametrize(("opset", "node"), OLD_DROPOUTS)
def test_dropout_of_old_files(opset, node, tmp_path):
    constants = {"r": np.array(0.25, np.float32), "no": np.array(False)}
    path = write(
        tmp_path / "model.onnx",
        f"g (float[4, 8] x) => (float[4, 2] y) {{ h = MatMul (x, w) d = {node} y = MatMul (d, u) }}",
        opset,
        w=values(8, 50).astype(np.float32),
        u=values(50, 2).astype(np.float32),
        **{name: array for name, array in constants.items() if f", {name}" in node},
    )
    forward = ckplan.load(path, training=True)
    training = ckplan.build_training_graph(forward.model, training=True, loss="mse")
    model, name = with_mask(training)
    shape = {value.name: value.shape.numpy() for value in model.graph.inputs}
    ran = onnxruntime_run(model, {key: np.ones(shape[key], np.float32) for key in ("x", "target")})
    assert ran[name].mean() == pytest.approx(0.75, abs=0.1)
    assert ckplan.build_training_graph(forward.model).updates == {}
    with pytest.raises(UsageError, match=r"1 Dropout node\(s\) were removed"):
        ckplan.build_training_graph(ckplan.load(path).model, training=True)


@pytest.mark.parametrize(
    ("opset", "outputs"), [(7, "y"), (9, "y, m1, v1, m2, v2"), (9, "y"), (14, "y, m1, v1"), (15, "y")]
)
def test_batch_normalization_of_old_files(opset, outputs, tmp_path):
    mode = ", training_mode = 1" if opset >= 14 and "," in outputs else ""
    path = write(
        tmp_path / "model.onnx",
        f"""g (float[6, 3] x) => (float[6, 3] z) {{
            {outputs} = BatchNormalization <momentum = {MOMENTUM}, epsilon = {EPSILON}{mode}> (x, s, b, m, v)
            z = Tanh (y)
        }}""",
        opset,
        **{name: array.astype(np.float32) for name, array in statistics(3).items()},
    )
    forward = ckplan.load(path, training=True)
    (node,) = (node for node in forward.model.graph if node.op_type == "BatchNormalization")
    assert ("training_mode" in node.attributes) == ("," in outputs)
    training = ckplan.build_training_graph(forward.model, training=True, loss="sum")
    assert set(training.updates) == {"m", "v"}
    x = values(6, 3).astype(np.float32)
    ran = onnxruntime_run(training.model, {"x": x})
    np.testing.assert_allclose(
        ran["m_new"], MOMENTUM * statistics(3)["m"] + (1 - MOMENTUM) * x.mean(0), rtol=1e-5, atol=1e-6
    )
