"""Scales and shifts of normalised rows, taken into the weights that read them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.rewrites import normalised_inputs
from ckplan.model.traits import is_backward
from tests.autodiff.gradcheck import onnxruntime_run, parse, values

pytestmark = pytest.mark.usefixtures("few_rows")


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eighty rows are many beside two weights of six and four columns."""
    monkeypatch.setattr(normalised_inputs, "ROWS", 4)


NORM = "n = LayerNormalization(z, s, t)"
LINEAR = "h = MatMul(n, w) y = Add(h, b)"


def model_of(nodes: str) -> ir.Model:
    """80 rows of 4 numbers, weights of 6 columns."""
    text = f"g (float[8,10,4] x) => (float loss) {{ z = Exp(x) {nodes} q = Tanh(y) loss = ReduceSum<keepdims=0>(q) }}"
    arrays = {"w": values(4, 6), "v": values(6, 4, seed=1), "s": values(4, seed=2), "t": values(4, seed=3)}
    arrays |= {"b": values(6, seed=4), "c": values(6, seed=5), "d": values(10, 4, seed=6), "u": values(8, 6, seed=7)}
    arrays |= {"f": values(1, seed=9)}
    single = {name: array.astype(np.float32) for name, array in arrays.items()}
    return parse(text, **single, wide=np.asarray([8, 5, 8]))


def training_of(model: ir.Model, wrt: str, retained: tuple[str, ...] = ()) -> TrainingGraph:
    return build_training_graph(model, loss="loss", wrt=["x", *wrt], retain_grad=retained)


def norm_of(training: TrainingGraph) -> ir.Node:
    (norm,) = (node for node in training.model.graph if node.op_type == "LayerNormalization")
    return norm


def is_plain(norm: ir.Node) -> bool:
    """Whether rows are neither scaled nor shifted by what the file holds."""
    return len(norm.inputs) == 2 and str(norm.inputs[1] and norm.inputs[1].name).startswith("ckplan/")


def gradients_that_read_its_input(norm: ir.Node) -> int:
    assert norm.inputs[0] is not None
    return sum(map(is_backward, norm.inputs[0].consumers()))


TWO = f"{NORM} {LINEAR.replace('y =', 'e =')} k = Transpose<perm=[1,0]>(v) o = MatMul(n, k) p = Add(c, o) y = Mul(e, p)"


@pytest.mark.parametrize(
    ("nodes", "wrt"),
    [
        (f"{NORM} {LINEAR}", "wbst"),
        (f"{NORM} {LINEAR}", "b"),
        (f"n = LayerNormalization(z, s) {LINEAR}", "wbs"),
        (TWO, "wbvcst"),
    ],
    ids=["one", "frozen", "no-shift", "two"],
)
@pytest.mark.parametrize("many", [1, 10**6])
def test_weights_are_scaled(nodes, wrt, many, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ckplan.autodiff.rules.normalisation.layer_norm._MANY", many)
    training = training_of(model_of(nodes), wrt)
    assert is_plain(norm_of(training))
    # The gradient of Exp reads its result, too.
    assert gradients_that_read_its_input(norm_of(training)) == (1 if "w" in wrt else 2)
    monkeypatch.setattr(normalised_inputs, "ROWS", 10**6)
    plain = training_of(model_of(nodes), wrt)
    assert not is_plain(norm_of(plain))
    assert gradients_that_read_its_input(norm_of(plain)) == 2
    feeds = {"x": values(8, 10, 4, seed=8).astype(np.float32)}
    found = onnxruntime_run(training.model, feeds)
    for name, array in onnxruntime_run(plain.model, feeds).items():
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("nodes", "wrt"),
    [
        (f"{NORM} {LINEAR.replace('y =', 'e =')} m = ReduceMean<keepdims=0>(n) y = Mul(e, m)", "wbst"),
        (f"{NORM} y = MatMul(n, w)", "wst"),
        (f"{NORM} {LINEAR}", "bst"),
        (f"n = LayerNormalization<axis=1>(z, d, d) {LINEAR}", "wb"),
        (f"{NORM} r = Reshape(n, wide) h = MatMul(r, u) y = Add(h, b)", "wb"),
        (f"n = LayerNormalization(z, f, t) {LINEAR}", "wbft"),
        (f"n = LayerNormalization(z, s, d) {LINEAR}", "wbsd"),
    ],
    ids=["another-reader", "no-bias", "frozen-weight", "two-axes", "another-row", "one-number", "row-by-row"],
)
def test_others_are_left_alone(nodes, wrt):
    assert not is_plain(norm_of(training_of(model_of(nodes), wrt)))


def test_few_rows_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(normalised_inputs, "ROWS", 14)
    assert not is_plain(norm_of(training_of(model_of(f"{NORM} {LINEAR}"), "wbst")))


def test_what_a_gradient_is_asked_for_stays():
    assert not is_plain(norm_of(training_of(model_of(f"{NORM} {LINEAR}"), "wbst", ("n",))))
