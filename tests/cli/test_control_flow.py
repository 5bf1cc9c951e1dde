"""Models with control flow through the commands: branches in branches with weights inside, and a loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from tests.cli.test_commands import failure, run

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[batch, 8] x, bool train, bool deep) => (float[batch, 4] scores) {
    a = MatMul(x, W0)
    h = If (train) <
        then_branch = t () => (float[N, M] p) {
            b = MatMul(a, W1)
            p = If (deep) <
                then_branch = d () => (float[N, M] q) { c = MatMul(b, W2) q = Tanh(c) },
                else_branch = s () => (float[N, M] r) { r = Sigmoid(b) }
            >
        },
        else_branch = e () => (float[N, M] u) { u = Relu(a) }
    >
    trips = Constant<value_int = 9>()
    true = Constant<value = bool {1}>()
    last = Loop <body = l (int64 i, bool on, float[N, M] k) => (bool goes, float[N, M] n) {
        goes = Identity(on)
        m = MatMul(k, W3)
        n = Tanh(m)
    }> (trips, true, h)
    scores = MatMul(last, W4)
}"""

INSIDE = {"g": ["W0", "W3", "W4"], "t": ["W1"], "d": ["W2"]}
WEIGHTS = {"W0": (8, 8), "W1": (8, 8), "W2": (8, 8), "W3": (8, 8), "W4": (8, 4)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)

    def fill(graph: onnx.GraphProto) -> None:
        graph.initializer.extend(weight(name) for name in INSIDE.get(graph.name, ()))
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    fill(attribute.g)

    def weight(name: str) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(rng.normal(size=WEIGHTS[name]).astype(np.float32) / 3, name)

    fill(proto.graph)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    return path


def gradients(path: Path, train: bool, deep: bool) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = {"x": rng.normal(size=(4, 8)), "target": rng.normal(size=(4, 4))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    results = session.run(None, {**feeds, "train": np.array(train), "deep": np.array(deep)})
    return dict(zip([value.name for value in session.get_outputs()], results, strict=True))


def test_all_commands(model: Path, tmp_path: Path) -> None:
    options = ("--dim", "batch=4", "--loss", "mse")
    result = run("analyze", model, *options)
    assert result.exit_code == 0, result.stderr
    assert "trained  5 parameters" in result.stdout
    plain, planned, chunked = (tmp_path / f"{name}.onnx" for name in ("plain", "planned", "chunked"))
    for command in (
        ("grad", model, "-o", plain, *options, "--store", "none"),
        ("rewrite", model, "-o", planned, *options),
        ("rewrite", model, "-o", chunked, *options, "--time-checkpoints", "3"),
    ):
        result = run(*command)
        assert result.exit_code == 0, result.stderr
    for train, deep in ((True, True), (True, False), (False, True)):
        expected = gradients(plain, train, deep)
        assert set(expected) == {"loss", *(f"{name}_grad" for name in WEIGHTS)}
        assert expected["W1_grad"].any() == train
        assert expected["W2_grad"].any() == (train and deep)
        for path in (planned, chunked):
            for name, array in gradients(path, train, deep).items():
                np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_bad_options(model: Path, tmp_path: Path) -> None:
    said = failure(run("grad", model, "-o", tmp_path / "out.onnx", "--dim", "batch=4", "--store", "gates"))
    assert "`--store gates` matches no value of a step" in said
    said = failure(run("grad", model, "-o", tmp_path / "out.onnx", "--time-checkpoints", "none"))
    assert "'none' is not a whole number of at least 1" in said
