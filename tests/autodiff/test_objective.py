"""What is differentiated: one loss, several, and tensors whose gradients are given."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import UsageError
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, reference, values

TWO_HEADS = """
g (double[6,3] x) => (double[6,4] h, double[6,2] y, double loss) {
    a = MatMul(x, w1)
    h = Tanh(a)
    y = MatMul(h, w2)
    q = Mul(y, y)
    loss = ReduceSum <keepdims = 0> (q)
}
"""
WEIGHTS = {"w1": values(3, 4), "w2": values(4, 2, seed=2)}
FEEDS = {"x": values(6, 3, seed=8)}


def model() -> ir.Model:
    return parse(TWO_HEADS, **WEIGHTS)


def outputs(training) -> list[str]:
    return [value.name for value in training.model.graph.outputs]


def test_several_losses_are_summed_and_each_is_an_output():
    training = build_training_graph(model(), loss=["loss", "mean:h", "sum-of-squares:y"])
    assert outputs(training) == ["total_loss", "loss", "loss_h", "loss_y", "w1_grad", "w2_grad"]
    assert training.loss == "total_loss"
    assert training.description == "the total of the model's output 'loss'; mean of 'h'; sum-of-squares of 'y'"
    check_training_graph(training, FEEDS)
    found = reference(training.model, FEEDS)
    assert found["total_loss"] == pytest.approx(found["loss"] + found["loss_h"] + found["loss_y"])
    single = [build_training_graph(model(), loss=spec) for spec in ("loss", "mean:h", "sum-of-squares:y")]
    apart = [reference(one.model, FEEDS)["w1_grad"] for one in single]
    np.testing.assert_allclose(found["w1_grad"], sum(apart), rtol=1e-12)


def test_losses_with_targets_of_their_own():
    training = build_training_graph(model(), loss=["mse:y", "mse:h", "cross-entropy:y"])
    names = [value.name for value in training.model.graph.inputs]
    assert names == ["x", "target", "target_0", "labels", "w1", "w2"]
    feeds = {**FEEDS, "target": values(6, 2), "target_0": values(6, 4), "labels": np.arange(6) % 2}
    check_training_graph(training, feeds)


def test_a_loss_that_another_loss_reads():
    text = TWO_HEADS.replace("double loss)", "double loss, double twice)").replace("(q)\n", "(q)\n twice = Exp(loss)\n")
    small = {name: array / 8 for name, array in WEIGHTS.items()}
    training = build_training_graph(parse(text, **small), loss=["twice", "loss"])
    check_training_graph(training, FEEDS)


def test_losses_of_different_element_types():
    text = """g (float[3] x) => (float[1] a, double b) {
        h = Mul(x, w)
        a = ReduceSum <keepdims = 1> (h)
        d = Cast <to = 11> (h)
        e = Mul(d, d)
        b = ReduceSum <keepdims = 0> (e)
    }"""
    weight = values(3).astype(np.float32)
    training = build_training_graph(parse(text, w=weight), loss=["a", "b"])
    x = np.float32([1, -2, 3])
    for run in (reference, onnxruntime_run):
        found = run(training.model, {"x": x})
        assert found["total_loss"].dtype == np.float64
        assert found["total_loss"].shape == ()
        np.testing.assert_allclose(found["w_grad"], x + 2 * x * x * weight, rtol=1e-5)


def test_given_gradients_of_tensors_of_any_shape():
    training = build_training_graph(model(), grad_ys=["y", "a"])
    assert outputs(training) == ["y", "a", "w1_grad", "w2_grad"]
    assert training.loss == "y"
    names = [value.name for value in training.model.graph.inputs]
    assert names == ["x", "y_given_grad", "a_given_grad", "w1", "w2"]
    dy, da = values(6, 2, seed=3), values(6, 4, seed=4)
    found = reference(training.model, {**FEEDS, "y_given_grad": dy, "a_given_grad": da})
    h = np.tanh(FEEDS["x"] @ WEIGHTS["w1"])
    np.testing.assert_allclose(found["w2_grad"], h.T @ dy)
    np.testing.assert_allclose(found["w1_grad"], FEEDS["x"].T @ (dy @ WEIGHTS["w2"].T * (1 - h * h) + da))


def test_a_given_gradient_beside_a_loss():
    training = build_training_graph(model(), loss="loss", grad_ys=["h"])
    assert outputs(training) == ["loss", "h", "w1_grad", "w2_grad"]
    ones = reference(training.model, {**FEEDS, "h_given_grad": np.ones((6, 4))})
    both = reference(build_training_graph(model(), loss=["loss", "sum:h"]).model, FEEDS)
    np.testing.assert_allclose(ones["w1_grad"], both["w1_grad"])


def test_the_given_gradient_is_itself_the_gradient_asked_for():
    training = build_training_graph(model(), grad_ys=["y"], wrt=["y", "h"])
    dy = values(6, 2, seed=3)
    found = reference(training.model, {**FEEDS, "y_given_grad": dy})
    np.testing.assert_array_equal(found[training.retained["y"]], dy)
    np.testing.assert_allclose(found[training.retained["h"]], dy @ WEIGHTS["w2"].T)
    onnx.checker.check_model(ir.to_proto(training.model), full_check=True)


def test_a_loss_that_is_the_body_of_a_function():
    text = (
        "g (double[3] x) => (double loss) { h = Mul(x, w) n = ReduceSumSquare <keepdims = 0> (h) loss = Softplus(n) }"
    )
    training = build_training_graph(parse(text, w=values(3) / 4))
    assert training.loss == "loss"
    check_training_graph(training, {"x": values(3, seed=1)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": ["loss", "loss"]}, "`loss` is given twice"),
        ({"loss": ["loss", "nonsense"]}, "`nonsense` is neither a loss nor an output"),
        ({"loss": "mse:"}, "the model has no output ``"),
        ({"grad_ys": ["z"]}, "`--grad-ys z` is not a tensor that a node of the model makes; the model's outputs are `"),
        ({"loss": "loss", "grad_ys": ["loss"]}, "`loss` is differentiated twice"),
        ({"grad_ys": ["y", "y"]}, "`y` is differentiated twice"),
    ],
)
def test_objectives_that_cannot_be_meant(options, message):
    with pytest.raises(UsageError, match=message):
        build_training_graph(model(), **options)
