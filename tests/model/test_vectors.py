"""Products with vectors compute in onnxruntime what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from ckplan.model import load, save
from tests.model.models import normal, operators, parse, write

PRODUCTS = {
    "behind a Transpose": ("float[5,3] x", "float[3] y", "t = Transpose(x) y = MatMul(t, w)"),
    "of several matrices": ("float[2,5,3] x", "float[2,3] y", "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul(t, w)"),
    "with a Transpose that moves": (
        "float[5,3] x",
        "float[3] y",
        "t = Transpose(x) e = Exp(t) n = Neg(e) y = MatMul(n, w)",
    ),
    "of two vectors": ("float[5] x", "float y", "y = MatMul(x, w)"),
    "in a branch": (
        "float[5,3] x, bool c",
        "float[3] y",
        """y = If (c) <
            then_branch = a () => (float[3] r) { t = Transpose(x) r = MatMul(t, w) },
            else_branch = b () => (float[3] s) { t = Transpose(x) u = MatMul(t, w) s = Neg(u) }
        >""",
    ),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_what_onnxruntime_computes_by_default(tmp_path: Path, case: str) -> None:
    inputs, outputs, nodes = PRODUCTS[case]
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    vector = normal(1, 5)
    model = load(write(parse(text, {"w": vector}), tmp_path)).model
    assert [output.name for output in model.graph.outputs] == ["y"]
    assert operators(model).count("Unsqueeze") == (0 if "two" in case or "branch" in case else 1)
    save(model, tmp_path / "loaded.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "loaded.onnx", providers=["CPUExecutionProvider"])
    shape = [int(size) for size in session.get_inputs()[0].shape]
    x = normal(2, *shape)
    feeds = {"x": x} | ({"c": np.array(True)} if "branch" in case else {})
    (found,) = session.run(None, feeds)
    matrix = -np.exp(np.swapaxes(x, -1, -2)) if "moves" in case else np.swapaxes(x, -1, -2) if x.ndim > 1 else x
    np.testing.assert_allclose(found, matrix @ vector, rtol=1e-5)
