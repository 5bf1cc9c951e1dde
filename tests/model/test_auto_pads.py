"""What stands beside an ``auto_pad`` says nothing, and an empty one is none, as onnxruntime takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import ckplan
from ckplan.model import load, save
from tests.model.models import normal, parse, write

NODES = {
    "AveragePool": "y = AveragePool <kernel_shape = [3, 3], PADS> (p)",
    "MaxPool": "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], PADS> (p)",
    "LpPool": "y = LpPool <kernel_shape = [3, 3], PADS> (p)",
    "Conv": "y = Conv <PADS> (p, w)",
}
PADS = {"": "NOTSET", "VALID": "VALID", "SAME_UPPER": "SAME_UPPER", "SAME_LOWER": "SAME_LOWER"}
CASES = [(node, automatic) for node in NODES for automatic in PADS if node != "Conv" or not automatic]


def _model(node: str, pads: str, folder: Path) -> Path:
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[1,2,6,6] x) => (float[1,2,h,w] y)
        <float[1] f = {{1.5}}> {{ p = Mul(x, f) {NODES[node].replace("PADS", pads)} }}"""
    return write(parse(text, {"w": normal(1, 2, 2, 3, 3)} if "w)" in NODES[node] else {}), folder)


@pytest.mark.parametrize(("node", "automatic"), CASES)
def test_as_onnxruntime_takes_it(tmp_path: Path, node: str, automatic: str) -> None:
    path = _model(node, f'auto_pad = "{automatic}", pads = [1, 0, 1, 1]', tmp_path)
    save(load(path).model, tmp_path / "loaded.onnx")
    x = normal(2, 1, 2, 6, 6)
    before, after = (
        onnxruntime.InferenceSession(one, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for one in (path, tmp_path / "loaded.onnx")
    )
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(("node", "automatic"), CASES)
def test_a_gradient_is_that_of_what_counts(tmp_path: Path, node: str, automatic: str) -> None:
    own = ", pads = [1, 0, 1, 1]" if not automatic else ""
    found = []
    for pads in (f'auto_pad = "{automatic}", pads = [1, 0, 1, 1]', f'auto_pad = "{PADS[automatic]}"{own}'):
        path = _model(node, pads, tmp_path)
        save(ckplan.build_training_graph(path, loss="mean").model, tmp_path / "step.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
        found.append(session.run(None, {"x": normal(3, 1, 2, 6, 6)}))
        (tmp_path / "step.onnx").unlink()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
