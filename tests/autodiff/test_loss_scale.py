"""Loss scaling: gradients of half precision that would vanish come out whole, and in float32."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import UsageError
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, reference, values
from tests.autodiff.test_engine import FEEDS, MLP, WEIGHTS

SMALL = """
g (float16[16,8] x) => (float16[16,4] y) {
    a = MatMul(x, w1)
    h = Tanh(a)
    y = MatMul(h, w2)
}
"""


def half(*shape: int, seed: int, size: float = 1.0) -> np.ndarray:
    return (values(*shape, seed=seed) * size).astype(np.float16)


def small(**options):
    """A network whose gradients are below what float16 can hold: its second weight is tiny."""
    weights = {"w1": half(8, 4, seed=1, size=0.25), "w2": half(4, 4, seed=2, size=1e-4)}
    return build_training_graph(parse(SMALL, **weights), **{"loss": "mse", **options}), weights


def small_feeds() -> dict[str, np.ndarray]:
    return {"x": half(16, 8, seed=3), "target": half(16, 4, seed=4, size=1e-3)}


def expected_gradients(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    feeds = {name: array.astype(np.float64) for name, array in small_feeds().items()}
    w1, w2 = (weights[name].astype(np.float64) for name in ("w1", "w2"))
    h = np.tanh(feeds["x"] @ w1)
    dy = 2 * (h @ w2 - feeds["target"]) / 64
    return {"w1": feeds["x"].T @ (dy @ w2.T * (1 - h * h)), "w2": h.T @ dy}


def test_gradients_that_vanish_in_half_precision_are_saved():
    plain, weights = small()
    scaled, _ = small(loss_scale=8192)
    expected = expected_gradients(weights)
    without, found = onnxruntime_run(plain.model, small_feeds()), onnxruntime_run(scaled.model, small_feeds())
    assert without["w1_grad"].dtype == np.float16
    assert found["w1_grad"].dtype == np.float32
    np.testing.assert_array_equal(found["loss"], without["loss"])
    size = np.abs(expected["w1"]).max()
    assert np.abs(without["w1_grad"] - expected["w1"]).max() > 0.2 * size
    np.testing.assert_allclose(found["w1_grad"], expected["w1"], rtol=0, atol=0.02 * size)


def test_a_fed_scale_gives_what_the_constant_gives():
    constant, weights = small(loss_scale="8192")
    fed, _ = small(loss_scale="input")
    assert (constant.loss_scale, fed.loss_scale) == ("8192", "loss_scale")
    assert fed.model.metadata_props["pkg.ckplan.loss_scale"] == "loss_scale"
    expected = expected_gradients(weights)
    for scale in (2048.0, 8192.0):
        found = onnxruntime_run(fed.model, {**small_feeds(), "loss_scale": np.asarray(scale, np.float32)})
        for name in ("w1", "w2"):
            size = np.abs(expected[name]).max()
            np.testing.assert_allclose(found[f"{name}_grad"], expected[name], rtol=0, atol=0.02 * size)


@pytest.mark.parametrize("loss", ["loss", "cross-entropy:c", "mse:c", "mean:c"])
@pytest.mark.parametrize("scale", [1024, 3.0, "input"])
def test_gradients_come_out_unscaled(loss, scale):
    text = MLP.replace("(double loss)", "(double loss, double[6,2] c)")
    training = build_training_graph(parse(text, **WEIGHTS), loss=loss, loss_scale=scale, retain_grad=["h", "x"])
    onnx.checker.check_model(ir.to_proto(training.model), full_check=True)
    feeds = {
        **FEEDS,
        "labels": np.arange(6) % 2,
        "target": values(6, 2, seed=9),
        "loss_scale": np.asarray(64, np.float32),
    }
    feeds = {value.name: feeds[value.name] for value in training.model.graph.inputs if value.name in feeds}
    check_training_graph(training, feeds)
    plain = build_training_graph(parse(text, **WEIGHTS), loss=loss, retain_grad=["h", "x"])
    feeds.pop("loss_scale", None)
    expected = reference(plain.model, feeds)
    found = reference(
        training.model, {**feeds, **({"loss_scale": np.asarray(64, np.float32)} if scale == "input" else {})}
    )
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, err_msg=name)


def test_given_gradients_are_scaled_as_well():
    training = build_training_graph(parse(MLP, **WEIGHTS), grad_ys=["c"], loss_scale="input")
    plain = build_training_graph(parse(MLP, **WEIGHTS), grad_ys=["c"])
    feeds = {**FEEDS, "c_given_grad": values(6, 2, seed=9)}
    expected = reference(plain.model, feeds)
    found = reference(training.model, {**feeds, "loss_scale": np.asarray(64, np.float32)})
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, err_msg=name)


def test_each_gradient_is_divided_as_soon_as_it_is_there():
    training = build_training_graph(parse(MLP, **WEIGHTS), loss_scale="input")
    kinds = [(node.op_type, node.outputs[0].name) for node in training.model.graph]
    assert kinds.index(("Div", "w2_grad")) < kinds.index(("Div", "b1_grad")) < kinds.index(("Div", "w1_grad"))
    assert kinds.index(("Div", "w2_grad")) < len(kinds) - 4


def test_zeros_have_the_element_type_of_the_other_gradients():
    weights = {"w1": half(8, 4, seed=1), "w2": half(4, 4, seed=2), "idle": half(3, seed=5)}
    training = build_training_graph(parse(SMALL, **weights), loss="mse", loss_scale=64, unused="zero")
    found = onnxruntime_run(training.model, small_feeds())
    assert found["idle_grad"].dtype == found["w1_grad"].dtype == np.float32


def test_too_large_a_scale_shows_in_the_gradients():
    # The reference evaluator rounds each result to float16; onnxruntime does not on a CPU.
    training, _ = small(loss_scale="input", loss="sum")
    feeds = {"x": half(16, 8, seed=3), "loss_scale": np.asarray(65504, np.float32)}
    with np.errstate(all="ignore"):
        found = reference(training.model, feeds)
    assert np.isfinite(found["loss"])
    assert not np.isfinite(found["w2_grad"]).all()


@pytest.mark.parametrize("scale", [2.0**-6, 65504])
def test_factors_that_half_precision_cannot_hold_are_applied_in_steps(scale):
    # The error's factor is 2 / 1 times the scale, above the largest float16; of 4096 elements, below the smallest.
    size = 1 if scale > 1 else 4096
    text = f"g (float16[{size}] x) => (float16[{size}] y) {{ h = Mul(x, w) y = Tanh(h) }}"
    training = build_training_graph(parse(text, w=np.full(size, 0.25, np.float16)), loss="mse", loss_scale=scale)
    feeds = {"x": np.ones(size, np.float16), "target": np.full(size, 0.2, np.float16)}
    found = reference(training.model, feeds)["w_grad"].astype(np.float64)
    y = np.tanh(0.25)
    np.testing.assert_allclose(found, 2 / size * (y - 0.2) * (1 - y * y), rtol=0.2)


@pytest.mark.parametrize("scale", ["0", "-2", "inf", "nan", "big", 0])
def test_scales_that_cannot_be_meant(scale):
    with pytest.raises(UsageError, match="is not a positive number; give a number such as 1024, or `input`"):
        build_training_graph(parse(MLP, **WEIGHTS), loss_scale=scale)


def test_a_scale_that_the_loss_cannot_hold():
    with pytest.raises(UsageError, match="`--loss-scale 131072` is more than float16 can hold"):
        small(loss_scale=131072)


@pytest.mark.parametrize(
    ("scale", "said"), [(1e60, "more than float32 .*; scale by 8.5"), (1e-60, "less than float32 .*; scale by 1.1")]
)
def test_a_scale_that_single_precision_cannot_hold(scale, said):
    with pytest.raises(UsageError, match=f"{scale:g}` is {said}".replace("+", "[+]")):
        build_training_graph(parse(MLP, **WEIGHTS), loss_scale=scale)


def test_a_scale_that_vanishes_in_half_precision():
    with pytest.raises(UsageError, match="is less than float16 can hold"):
        small(loss_scale=1e-7)
