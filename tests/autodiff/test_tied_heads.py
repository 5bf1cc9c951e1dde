"""Loss heads of tied tables in parts: gradients, exactness, memory, and what is left whole."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.losses import tied_heads
from ckplan.autodiff.reading import shape_of
from ckplan.pipeline.step import step_of
from ckplan.planner.strategies.memory import Memory
from ckplan.runtime.executing.executed import expected_timeline
from ckplan.writer.emit import emit
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, values

WORDS, WIDTH, SAMPLES = 42, 6, 8
TOKENS = np.asarray([[3, 41, 3, 7], [0, -1, 17, 9]])
LABELS = np.asarray([[1, 29, 13, 7], [0, 41, 28, 13]])

LOSSES = {
    "mean": "",
    "sum": '<reduction="sum">',
    "ignoring": "<ignore_index=13>",
    "weighted": "<ignore_index=7>",
}


@pytest.fixture(autouse=True)
def _small_tables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tied_heads, "_SMALLEST", 1)


def network(
    loss: str, dtype: type = np.float64, scale: float = 2.0, shape: tuple[int, int] = (WORDS, WIDTH)
) -> ir.Model:
    """A table of words that is read by tokens and multiplied by, and a loss behind."""
    kind = "double" if dtype is np.float64 else "float"
    numbers = {"p0": values(*shape, high=scale, low=-scale).astype(dtype)}
    result, end = f"({kind}[2,4,{shape[0]}] y)", "y = MatMul(h, t)"
    if loss in LOSSES:
        result = f"({kind}[] loss)"
        reads = f"{LOSSES[loss]} (flat, k{', classes' if loss == 'weighted' else ''})"
        end = (
            "logits = MatMul(h, t) flat = Reshape(logits, f) l = Flatten<axis=0>(labels) k = Reshape(l, m) "
            f"loss = SoftmaxCrossEntropyLoss {reads}"
        )
        numbers |= {"f": np.asarray([SAMPLES, shape[0]]), "m": np.asarray([SAMPLES])}
        if loss == "weighted":
            numbers["classes"] = values(shape[0], low=0.5, high=1.5).astype(dtype)
    labels = "int64[2,4] labels, " if loss in LOSSES else ""
    text = (
        f"g ({labels}int64[2,4] ids) => {result} {{ e = Gather(p0, ids) h = Tanh(e) "
        f"t = Transpose<perm=[1,0]>(p0) {end} }}"
    )
    return parse(text, **numbers)


def trained(loss: str, *arguments: object, **options: object) -> TrainingGraph:
    asked = None if loss in LOSSES else loss
    return build_training_graph(network(loss, *arguments), loss=asked, wrt=["p0"], **options)


def feeds(loss: str, words: int = WORDS, dtype: type = np.float64) -> dict[str, np.ndarray]:
    given = {"ids": TOKENS}
    return given | ({"target": values(2, 4, words, seed=4).astype(dtype)} if loss == "mse" else {"labels": LABELS})


def parts(training: TrainingGraph) -> int:
    """How many parts of logits there are: 0 if they are whole."""
    words = training.model.graph.initializers["p0"].shape[0]
    products = [
        n for n in training.model.graph if n.op_type == "Gemm" and n.metadata_props["pkg.ckplan.phase"] == "forward"
    ]
    return sum(math.prod(shape_of(node.outputs[0])) < SAMPLES * words for node in products)


@pytest.mark.parametrize("loss", [*LOSSES, "cross-entropy", "mse"])
def test_gradients_in_parts_are_those_of_the_whole(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = trained(loss)
    assert parts(training) == tied_heads.PARTS
    check_training_graph(training, feeds(loss))
    monkeypatch.setattr(tied_heads, "_SMALLEST", 2**30)
    whole = trained(loss)
    assert parts(whole) == 0
    expected = onnxruntime_run(whole.model, feeds(loss))
    for name, found in onnxruntime_run(training.model, feeds(loss)).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
@pytest.mark.parametrize("options", [{"loss_scale": "1024"}, {"loss_scale": "input"}, {"retain_grad": ["h"]}])
def test_options_of_the_gradient(loss: str, options: dict[str, object]) -> None:
    training = trained(loss, **options)
    assert parts(training) == tied_heads.PARTS
    given = feeds(loss)
    if training.loss_scale == "loss_scale":
        given["loss_scale"] = np.asarray(512, dtype=np.float32)
    found = onnxruntime_run(training.model, given)["p0_grad"]
    np.testing.assert_allclose(found, onnxruntime_run(trained(loss).model, feeds(loss))["p0_grad"], rtol=1e-10)


def test_large_logits_are_as_exact_as_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = 4000.0  # logits up to 2e4, and labels whose part has no share in the sum that a number could hold
    exact = onnxruntime_run(trained("mean", np.float64, scale).model, feeds("mean"))
    found = onnxruntime_run(trained("mean", np.float32, scale).model, feeds("mean"))
    monkeypatch.setattr(tied_heads, "_SMALLEST", 2**30)
    whole = onnxruntime_run(trained("mean", np.float32, scale).model, feeds("mean"))
    assert exact["loss"] > 1e3
    for name, value in exact.items():
        error, before = (np.abs(run[name] - value).max() for run in (found, whole))
        assert error <= 2 * before + 1e-6 * np.abs(value).max()


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
def test_the_table_never_stands_beside_all_logits(loss: str) -> None:
    shape = (4000, 8)  # logits are as large as the table
    training = trained(loss, np.float32, 2.0, shape)
    size = 4 * shape[0] * shape[1]
    assert expected_timeline(training.model).peak_activations < 1.8 * size
    step = step_of(training)
    plan = Memory().solve(step.problem)
    assert plan.predicted.peak_activations < 1.6 * size  # 2 of the whole: logits and table
    file = emit(step.fused, plan)
    given = feeds(loss, shape[0], np.float32)
    planned, plain = onnxruntime_run(file, given), onnxruntime_run(step.model, given)
    for name, found in planned.items():
        np.testing.assert_array_equal(found, plain[name])


def test_what_is_left_whole() -> None:
    untied = parse(
        "g (int64[2,4] ids) => (double[2,4,42] y) { e = Gather(p0, ids) h = Tanh(e) y = MatMul(h, p1) }",
        p0=values(WORDS, WIDTH),
        p1=values(WIDTH, WORDS),
    )
    training = build_training_graph(untied, loss="cross-entropy", wrt=["p*"])
    assert not any("Slice" in str(node.op_type) for node in training.model.graph)
    frozen = build_training_graph(network("cross-entropy"), loss="cross-entropy", wrt=["h"])
    assert parts(frozen) == 0
    wide = trained("cross-entropy", np.float64, 2.0, (WORDS, 3 * SAMPLES + 1))
    assert parts(wide) == 0  # comes of one product


def test_second_derivatives() -> None:
    first = trained("cross-entropy", retain_grad=["h"])
    training = build_training_graph(first.model, loss="sum-of-squares:h_grad", wrt=["p0"])
    check_training_graph(training, feeds("cross-entropy"), rtol=1e-6)
