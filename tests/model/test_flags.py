"""Attributes that are true or false mean in other numbers than 0 and 1 what onnxruntime takes them for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import ckplan
from ckplan.model import load, save
from tests.model.models import normal, parse, write

NODES = {
    "Gemm": ("float[4,4] y", "y = Gemm <FLAG> (x, w)", ("transA", "transB")),
    "ReduceSum": ("float[r] y", "a = Constant <value_ints: ints = [1]> () y = ReduceSum <FLAG> (x, a)", ("keepdims",)),
    "ReduceMax": ("float[r] y", "a = Constant <value_ints: ints = [0]> () y = ReduceMax <FLAG> (x, a)", ("keepdims",)),
    "ReduceL2": ("float[r] y", "y = ReduceL2 <FLAG> (x)", ("noop_with_empty_axes",)),
    "ReduceMin": ("float[r] y", "y = ReduceMin <FLAG> (x)", ("noop_with_empty_axes",)),
    "ArgMax": ("int64[r] y", "s = Sign(x) y = ArgMax <keepdims = 0, FLAG> (s)", ("select_last_index",)),
    "ArgMin": ("int64[r] y", "y = ArgMin <FLAG> (x)", ("keepdims",)),
    "Trilu": ("float[4,4] y", "y = Trilu <FLAG> (x)", ("upper",)),
    "TopK": ("float[4,2] y", "k = Constant <value_ints: ints = [2]> () y, i = TopK <FLAG> (x, k)", ("largest",)),
    "AveragePool": (
        "float[r] y",
        "s = Constant <value_ints: ints = [1, 1, 4, 4]> () p = Reshape(x, s) "
        "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 0, 0], strides = [2, 2], FLAG> (p)",
        ("ceil_mode", "count_include_pad"),
    ),
}
CASES = [(name, flag, number) for name, (_, _, flags) in NODES.items() for flag in flags for number in (2, -1)]


def _written(inputs: str, outputs: str, nodes: str, folder: Path) -> Path:
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    weights = {name: normal(seed, 4, 4) for seed, name in enumerate(("w", "v")) if f"{name})" in nodes}
    return write(parse(text, weights), folder)


@pytest.mark.parametrize(("case", "flag", "number"), CASES)
def test_as_onnxruntime_takes_it(tmp_path: Path, case: str, flag: str, number: int) -> None:
    output, nodes, _ = NODES[case]
    path = _written("float[4,4] x", output, nodes.replace("FLAG", f"{flag} = {number}"), tmp_path)
    model = load(path).model
    assert {node.attributes[flag].as_int() for node in model.graph if flag in node.attributes} <= {0, 1}
    save(model, tmp_path / "loaded.onnx")
    x = normal(2, 4, 4)
    before, after = (
        onnxruntime.InferenceSession(one, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for one in (path, tmp_path / "loaded.onnx")
    )
    np.testing.assert_array_equal(before, after)


def test_a_gradient_that_passes_a_square_weight(tmp_path: Path) -> None:
    # A rule that writes 1 - transB would make of 2 what is true again.
    found = []
    for number in (1, 2):
        nodes = f"h = Gemm <transB = 1> (x, w) t = Tanh(h) y = Gemm <transB = {number}> (t, v)"
        path = _written("float[4,4] x", "float[4,4] y", nodes, tmp_path)
        save(ckplan.build_training_graph(path, loss="mean").model, tmp_path / "step.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
        found.append(session.run(None, {"x": normal(3, 4, 4)}))
        (tmp_path / "step.onnx").unlink()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_gradient_of_what_is_reduced_whole(tmp_path: Path) -> None:
    # A rule that takes 2 for true would hand out one gradient for all elements.
    nodes = "h = MatMul(x, w) y = ReduceMax <noop_with_empty_axes = 2> (h)"
    path = _written("float[4,4] x", "float[r] y", nodes, tmp_path)
    save(ckplan.build_training_graph(path, loss="sum").model, tmp_path / "step.onnx")
    x = normal(3, 4, 4)
    _, gradient = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    row, column = np.unravel_index((x @ normal(0, 4, 4)).argmax(), (4, 4))
    expected = np.zeros((4, 4), np.float32)
    expected[:, column] = x[row]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_a_bound_below_zero_is_none(tmp_path: Path) -> None:
    nodes = "k = MatMul(x, w) y = Attention <q_num_heads = 1, kv_num_heads = 1BOUND> (x, k, k)"
    found = []
    for bound in ("", ", softcap = -2.0"):
        text = nodes.replace("BOUND", bound)
        text = f'<ir_version: 10, opset_import: ["" : 23]> g (float[1,4,4] x) => (float[1,4,4] y) {{ {text} }}'
        path = write(parse(text, {"w": normal(0, 4, 4)}), tmp_path)
        save(ckplan.build_training_graph(path, loss="mean").model, tmp_path / "step.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
        found.append(session.run(None, {"x": normal(3, 1, 4, 4)}))
        (tmp_path / "step.onnx").unlink()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("number", [0, 1, 2, -4])
def test_trained_tables_of_a_rotation_that_is_interleaved(tmp_path: Path, number: int) -> None:
    # Where tables are trained it is written out: any number but 0 was true there, and 1 alone is to onnxruntime.
    text = f"""<ir_version: 10, opset_import: ["" : 23]> g (float[1,2,4,4] x) => (float[1,2,4,4] y) {{
        y = RotaryEmbedding <interleaved = {number}> (x, w, v) }}"""
    path = write(parse(text, {"w": normal(0, 1, 4, 2), "v": normal(1, 1, 4, 2)}), tmp_path)
    x = normal(3, 1, 2, 4, 4)
    (expected,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    training = ckplan.build_training_graph(path, loss="mean", wrt=["w", "v"])
    save(training.model, tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    (loss,) = session.run([training.loss], {"x": x})
    np.testing.assert_allclose(loss, expected.mean(), rtol=1e-4, atol=1e-6)
