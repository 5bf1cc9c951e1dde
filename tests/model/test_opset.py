"""What `load` makes of the operator set and the IR version of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckplan.model import load
from tests.model.models import loaded, normal, operators, parse, run, write


def test_old_opset_is_lifted_and_computes_the_same(tmp_path: Path) -> None:
    text = """
    <ir_version: 6, opset_import: ["" : 9, "com.microsoft" : 1]>
    g (float[2, 3, 4] x) => (float[] y, float[] z) {
        a = MatMul(x, w)
        b = Softmax <axis = 1> (a)
        c = Unsqueeze <axes = [0]> (b)
        y = Squeeze <axes = [0]> (c)
        z = com.microsoft.FusedMatMul <alpha = 2.0> (x, w)
    }"""
    weights = {"w": normal(0, 4, 300)}
    forward = loaded(tmp_path, text, weights)
    feeds = {"x": normal(1, 2, 3, 4)}
    for got, expected in zip(run(forward.model, feeds), run(parse(text, weights), feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert "FusedMatMul" not in operators(forward.model)
    assert any("opset 9 to 21" in note for note in forward.notes)
    assert any("com.microsoft" in note and "FusedMatMul" in note for note in forward.notes)


@pytest.mark.parametrize("version", [13, 22])
def test_standard_operators_may_go_by_their_other_name(version: int, tmp_path: Path) -> None:
    proto = parse(f'<ir_version: 8, opset_import: ["" : {version}]> g (float[2] x) => (float[2] y) {{ y = Tanh(x) }}')
    proto.opset_import[0].domain = proto.graph.node[0].domain = "ai.onnx"
    imports = load(write(proto, tmp_path)).model.opset_imports
    assert "ai.onnx" not in imports
    assert imports[""] >= 21


def test_newer_opset_is_kept(tmp_path: Path) -> None:
    text = '<ir_version: 11, opset_import: ["" : 23]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    assert loaded(tmp_path, text).model.graph.opset_imports[""] == 23


@pytest.mark.parametrize(("given", "kept"), [(3, 10), (11, 11), (14, 13)])
def test_the_ir_version_is_one_that_runs(tmp_path: Path, given: int, kept: int) -> None:
    """`onnx.helper.make_model` of onnx 1.23 writes version 14, and onnxruntime 1.31 loads none above 13."""
    text = f'<ir_version: {given}, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) {{ y = Relu(x) }}'
    forward = loaded(tmp_path, text)
    assert forward.model.ir_version == kept
    run(forward.model, {"x": normal(1, 2)})


def test_a_new_opset_that_nothing_needs_is_labelled_with_one_that_runs(tmp_path: Path) -> None:
    """onnxruntime 1.31 loads nothing above opset 26, and most models of opset 28 use nothing that is newer."""
    text = '<ir_version: 13, opset_import: ["" : 28]> g (float[2] x) => (float[2] y) { a = Celu(x) y = Mul(a, w) }'
    forward = loaded(tmp_path, text, {"w": normal(0, 2)})
    assert forward.model.graph.opset_imports[""] == 26
    assert any("nothing in it needs 28" in note for note in forward.notes)
    feeds = {"x": normal(1, 2)}
    np.testing.assert_allclose(
        run(forward.model, feeds)[0],
        np.where(feeds["x"] > 0, feeds["x"], np.expm1(np.minimum(feeds["x"], 0))) * normal(0, 2),
        rtol=1e-6,
    )
