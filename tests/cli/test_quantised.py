"""Quantised models on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from ckplan.cli import cli


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """A layer whose weight and result pass pairs of QuantizeLinear and DequantizeLinear."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> g (float[3,4] x) => (float[3,5] y) {
            q = QuantizeLinear (w, s, z)
            d = DequantizeLinear (q, s, z)
            h = MatMul (x, d)
            p = QuantizeLinear (h, s, z)
            y = DequantizeLinear (p, s, z)
        }"""
    )
    arrays = {"w": np.ones((4, 5), np.float32), "s": np.asarray(0.05, np.float32), "z": np.asarray(0, np.int8)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    path = tmp_path / "quantised.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("command", ["grad", "analyze", "rewrite"])
def test_refused_with_exit_code_3(quantised: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [command, str(quantised)]
    if command != "analyze":
        arguments += ["-o", str(quantised.with_name("out.onnx"))]
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments, "ckplan")
    assert caught.value.code == 3
    error = capsys.readouterr().err
    assert "the model is quantised" in error
    assert "--straight-through" in error
    assert not quantised.with_name("out.onnx").exists()


def test_trained_straight_through(quantised: Path) -> None:
    out = quantised.with_name("out.onnx")
    with pytest.raises(SystemExit) as caught:
        cli.main(["grad", str(quantised), "-o", str(out), "--straight-through", "--quiet"], "ckplan")
    assert caught.value.code == 0
    assert "w_grad" in [output.name for output in onnx.load(out).graph.output]


@pytest.mark.parametrize("zero_point", [np.int8(0), np.int8(3), np.uint8(3)])
def test_frozen_weights_of_a_convolution_are_turned_for_the_gradient_of_its_input(
    tmp_path: Path, zero_point: np.integer
) -> None:
    """onnxruntime refused the file where it moved a DequantizeLinear of signed numbers past the Transpose."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> g (float[1,4,5,5] x) => (float[1,6,5,5] y) {
            h = Conv (x, w)
            d = DequantizeLinear (q, s, z)
            y = Conv (h, d)
        }"""
    )
    quantised = np.arange(6 * 4).reshape(6, 4, 1, 1).astype(zero_point.dtype)
    arrays = {"w": np.ones((4, 4, 1, 1), np.float32), "q": quantised, "s": np.float32(0.05), "z": zero_point}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    onnx.save(model, tmp_path / "model.onnx")
    out = tmp_path / "out.onnx"
    with pytest.raises(SystemExit) as caught:
        cli.main(["grad", str(tmp_path / "model.onnx"), "-o", str(out), "--loss", "sum", "--quiet"], "ckplan")
    assert caught.value.code == 0
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    (gradient,) = session.run(["w_grad"], {"x": np.ones((1, 4, 5, 5), np.float32)})
    expected = 25 * 0.05 * (quantised.astype(np.float32) - np.float32(zero_point)).sum(0)
    np.testing.assert_allclose(gradient, np.repeat(expected, 4, axis=1)[..., None], rtol=1e-5)
