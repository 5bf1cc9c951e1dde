"""Scales of a layer's channels, taken into the weight before them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.rewrites import layer_scales
from tests.autodiff.gradcheck import check_same_results, check_training_graph, parse, values

FEEDS = {"x": values(2, 5, 3, 4, seed=8)}
LINEAR = "h = MatMul(x, w) a = Add(h, b)"
PLANES = "t = Transpose <perm = [0, 3, 1, 2]> (a)"
"""30 rows of 4 numbers become 6 channels."""


def model_of(nodes: str) -> ir.Model:
    text = f"g (double[2,5,3,4] x) => (double loss) {{ {nodes} q = Mul(y, y) loss = ReduceSum <keepdims=0> (q) }}"
    arrays = {"w": values(4, 6), "v": values(6, 4), "b": values(6, seed=1), "s": values(6, seed=2)}
    arrays |= {"r": values(6, 1, 1, seed=3), "one": values(1, seed=4), "rows": values(3, 1, seed=5)}
    return parse(text, **arrays, shape=np.asarray([1, 6, 1, 1]), axes=np.asarray([1, 2]))


def training_of(model: ir.Model, wrt: str, retained: tuple[str, ...] = ()) -> TrainingGraph:
    return build_training_graph(model, loss="loss", wrt=list(wrt), retain_grad=retained)


def scaled(training: TrainingGraph) -> list[tuple[int, ...]]:
    """The shapes of what forward nodes multiply before the squares."""
    nodes = [node for node in training.model.graph if node.metadata_props["pkg.ckplan.phase"] == "forward"]
    found = [node for node in nodes if node.op_type == "Mul" and node.inputs[0] is not node.inputs[1]]
    return [shape_of(node.outputs[0]) for node in found]


@pytest.mark.parametrize(
    ("nodes", "wrt", "shapes"),
    [
        (f"{LINEAR} y = Mul(a, s)", "wbs", [(4, 6), (6,)]),
        (f"{LINEAR} y = Mul(s, a)", "ws", [(4, 6), (6,)]),
        (f"{LINEAR} y = Mul(s, a)", "b", [(4, 6), (6,)]),
        ("h = MatMul(x, w) a = Add(b, h) y = Mul(a, s)", "wbs", [(4, 6), (6,)]),
        ("h = MatMul(x, w) y = Mul(h, s)", "ws", [(4, 6)]),
        ("t = Transpose <perm = [1, 0]> (v) h = MatMul(x, t) y = Mul(h, s)", "vs", [(4, 6)]),
        (f"{LINEAR} {PLANES} y = Mul(t, r)", "wbr", [(4, 6), (6,)]),
        (f"{LINEAR} {PLANES} g = Reshape(s, shape) y = Mul(t, g)", "wbs", [(4, 6), (6,)]),
        (f"{LINEAR} {PLANES} g = Unsqueeze(s, axes) y = Mul(g, t)", "wbs", [(4, 6), (6,)]),
    ],
)
def test_the_weight_is_scaled(nodes, wrt, shapes, monkeypatch: pytest.MonkeyPatch):
    training = training_of(model_of(nodes), wrt)
    assert scaled(training) == shapes
    check_training_graph(training, FEEDS)
    monkeypatch.setattr(layer_scales, "ROWS", 100)
    plain = training_of(model_of(nodes), wrt)
    assert scaled(plain) == [shape_of(next(node for node in plain.model.graph if node.op_type == "Mul").outputs[0])]
    check_same_results(training, plain, FEEDS)


@pytest.mark.parametrize(
    ("nodes", "wrt"),
    [
        (f"{LINEAR} m = Mul(a, s) n = Tanh(a) y = Add(m, n)", "wbs"),
        (f"{LINEAR} y = Mul(a, s)", "bs"),
        (f"{LINEAR} y = Mul(a, one)", "w"),
        (f"{LINEAR} y = Mul(a, rows)", "w"),
        (f"{LINEAR} e = Tanh(a) y = Mul(e, s)", "wbs"),
        ("h = MatMul(x, w) g = Tanh(s) y = Mul(h, g)", "ws"),
    ],
    ids=["another-reader", "frozen-weight", "a-number", "of-rows", "of-an-activation", "computed-scale"],
)
def test_what_else_is_scaled_is_left_alone(nodes, wrt):
    training = training_of(model_of(nodes), wrt)
    assert all(len(shape) == 4 for shape in scaled(training))
    check_training_graph(training, FEEDS)


def test_what_a_gradient_is_asked_for_stays():
    training = training_of(model_of(f"{LINEAR} y = Mul(a, s)"), "wbs", ("a",))
    assert scaled(training) == [(2, 5, 3, 6)]
