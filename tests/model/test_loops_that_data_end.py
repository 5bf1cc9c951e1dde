"""Loops that run until the data say so: as many rows come out as the probe's run happened to make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ckplan
from ckplan.errors import ModelError

LOOP = """<ir_version: 8, opset_import: ["": 21]> g (float[2,3] x) => (float loss) {{
    s = ReduceMean <keepdims = 0> (x)
    begin = {begin}
    a, rows = Loop (n, yes, begin) <body = l (int64 i, bool k, float z) => (bool k2, float z2, int64 row) {{
        z2 = {step}
        k2 = Greater (z2, {limit})
        row = Identity (i)
    }}>
    counted = Cast <to = 1> (rows)
    weighed = Mul (counted, w)
    t = Mul (s, weighed)
    loss = ReduceMean <keepdims = 0> (t)
}}"""


def load(folder: Path, **parts: str) -> ckplan.ForwardModel:
    model = onnx.parser.parse_model(LOOP.format(**parts))
    arrays = {"n": np.array(6), "yes": np.array(True), "w": np.array([1.5], np.float32), "one": np.float32(1)}
    for name, array in {**arrays, "zero": np.float32(0), "three": np.float32(3)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    onnx.save(model, folder / "model.onnx")
    return ckplan.load(folder / "model.onnx")


@pytest.mark.parametrize(
    "parts",
    [
        {"begin": "ReduceSum <keepdims = 0> (x)", "step": "Sub (z, one)", "limit": "zero"},
        {"begin": "Identity (three)", "step": "Sub (z, one)", "limit": "s"},
        {"begin": "Identity (three)", "step": "Sub (z, s)", "limit": "zero"},
    ],
    ids=["by what it begins with", "by a limit", "by what a step takes away"],
)
def test_the_gradient_for_the_number_of_rows_of_one_run_is_refused(parts: dict[str, str], tmp_path: Path) -> None:
    forward = load(tmp_path, **parts)
    assert any("the data decide how many results 1 node(s) have (Loop '" in note for note in forward.notes)
    with pytest.raises(ModelError, match=r"depends on what Loop '.*' finds in the data.*fixed number of times"):
        ckplan.build_training_graph(forward.model, loss="loss", wrt=["w"])


def test_a_loop_that_no_data_end_has_as_many_rows_in_every_run(tmp_path: Path) -> None:
    forward = load(tmp_path, begin="Identity (three)", step="Sub (z, one)", limit="zero")
    assert not any("the data decide" in note for note in forward.notes)
    assert list(ckplan.build_training_graph(forward.model, loss="loss", wrt=["w"]).gradients) == ["w"]


def test_a_loop_without_a_condition_or_states_stays_one(tmp_path: Path) -> None:
    # Its second input may have no name, and may not be missing.
    text = """<ir_version: 8, opset_import: ["" : 21]> g (int64 n) => (float loss) <float[3] w = {1, 2, 3}> {
        y = Loop (n, ) <body = b (int64 i, bool c) => (bool d, float[3] e) { d = Identity (c) e = Mul (w, w) }>
        loss = ReduceMean <keepdims = 0> (y) }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    forward = ckplan.load(path)
    (loop,) = (node for node in forward.model.graph if node.op_type == "Loop")
    assert len(loop.inputs) == 2
