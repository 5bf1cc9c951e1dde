"""What a Loop takes, beside what onnxruntime's counters say: states of two steps, rows, and outputs made at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ckplan

STATE = 16 * 64
"""Elements of the carried value."""


def write(path: Path, body: str, loss: str, outputs: str = "", rows: str = "") -> Path:
    """A model whose Loop runs five times, until a sum of its state is no longer below a large number."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 21]> g (float[16,64] x) => (float loss) {{
        h = MatMul (x, w)
        a{rows} = Loop (n, yes, h) <body = l (int64 i, bool k, float[16,64] z) => (bool k2, float[16,64] z2{outputs}) {{
            q = ReduceSum <keepdims = 0> (z)
            k2 = Less (q, large)
            {body}
        }}>
        {loss}
    }}""")
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
    arrays = {"w": weight, "r": weight[::-1], "n": np.array(5), "yes": np.array(True), "large": np.float32(1e9)}
    read = {name for node in model.graph.node for name in (*node.input, *body.replace(",", " ").split())}
    kept = {name: array for name, array in arrays.items() if name in read or name == "large" or f"{name})" in body}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in kept.items())
    onnx.save(model, path)
    return path


def promised_and_measured(path: Path, **options: object) -> tuple[int, int]:
    step = ckplan.open_model(path, **options)
    return step.baseline.peak_activations, ckplan.measure(step.ordered, runs=1).peak_activations


@pytest.mark.parametrize("store", [(), ("none",)], ids=["stored", "recomputed"])
def test_gradients_that_are_outputs_of_the_file_are_states_until_the_loop_ends(store: tuple[str, ...], tmp_path: Path):
    body = "y = MatMul (z, r) t = Tanh (y) s = Sigmoid (y) z2 = Mul (t, s)"
    path = write(tmp_path / "model.onnx", body, "loss = ReduceSumSquare <keepdims = 0> (a)")
    promised, measured = promised_and_measured(path, store=store)
    assert measured <= promised <= measured + 8


def test_what_the_last_step_read_is_there_when_outputs_are_made(tmp_path: Path):
    path = write(
        tmp_path / "model.onnx",
        "z2 = Tanh (z) row = Identity (q)",
        "b = ReduceSum <keepdims = 0> (rows) c = ReduceSumSquare <keepdims = 0> (a) loss = Add (b, c)",
        outputs=", float row",
        rows=", rows",
    )
    promised, measured = promised_and_measured(path, inference=True)
    assert promised > 4 * 4 * STATE
    assert measured <= promised <= measured + 512
