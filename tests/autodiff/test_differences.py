"""The difference of a product and what it is compared with: one buffer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.reading import shape_of
from ckplan.runtime.executing.executed import expected_timeline
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, values

FEEDS = {"x": values(2, 8, 4), "target": values(2, 8, 50, seed=1)}
"""Of float64; the result is compared with 800 numbers."""

HEADS = {
    "a matrix": ("y = MatMul(x, w)", values(4, 50)),
    "a transposed matrix": ("t = Transpose <perm = [1, 0]> (w) y = MatMul(x, t)", values(50, 4)),
    "a view of a Gemm": ("f = Flatten <axis = 2> (x) g = Gemm <alpha = 0.5> (f, w) y = Reshape(g, s)", values(4, 50)),
}


def trained(head: str, weight: np.ndarray, dtype: type = np.float64, **options: object) -> TrainingGraph:
    kind = "double" if dtype is np.float64 else "float"
    text = f"g ({kind}[2,8,4] x) => ({kind}[2,8,50] y) {{ {head} }}"
    return build_training_graph(
        parse(text, w=weight.astype(dtype), s=np.asarray([2, 8, 50])), loss="mse", wrt=["w"], **options
    )


def differences(training: TrainingGraph) -> int:
    return sum(node.op_type == "Sub" and math.prod(shape_of(node.outputs[0])) == 800 for node in training.model.graph)


@pytest.mark.parametrize("head", HEADS)
def test_a_product_subtracts_the_target_itself(head: str) -> None:
    training = trained(*HEADS[head])
    assert differences(training) == 0
    check_training_graph(training, FEEDS)
    single = trained(*HEADS[head], np.float32)
    assert expected_timeline(single.model).peak_activations < 1.4 * 4 * 800
    feeds = {name: array.astype(np.float32) for name, array in FEEDS.items()}
    exact = onnxruntime_run(training.model, FEEDS)
    for name, found in onnxruntime_run(single.model, feeds).items():
        np.testing.assert_allclose(found, exact[name], rtol=1e-5, atol=1e-6)


def test_a_result_that_the_file_returns_stays() -> None:
    training = trained(*HEADS["a matrix"], grad_ys=["y"])
    assert differences(training) == 1
    check_training_graph(trained(*HEADS["a matrix"], retain_grad=["y"]), FEEDS)


def test_what_is_computed_is_not_subtracted_in_a_product() -> None:
    text = "g (double[2,4] x, double[2,3] z) => (double[2,3] d) { y = MatMul(x, w) t = Exp(z) d = Sub(y, t) }"
    training = build_training_graph(parse(text, w=values(4, 3)), loss="sum-of-squares", wrt=["w"])
    assert any(node.op_type == "Sub" for node in training.model.graph)
    check_training_graph(training, {"x": values(2, 4), "z": values(2, 3)})
