"""A value times its own sigmoid, differentiated as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import check_second_derivatives, check_training_graph, parse, values

WEIGHTS = {"w": values(3, 4), "v": values(4, 2, seed=2)}
TAIL = "z = MatMul(y, v) q = Mul(z, z) loss = ReduceSum <keepdims = 0> (q)"


def model(nodes: str, outputs: str = "double loss"):
    return parse(f"g (double[6,3] x) => ({outputs}) {{ h = MatMul(x, w) {nodes} {TAIL} }}", **WEIGHTS)


def kept(nodes: str, outputs: str = "double loss") -> list[str]:
    """The operators of the forward pass whose results the backward pass reads."""
    training = build_training_graph(model(nodes, outputs), loss="loss")
    check_training_graph(training, {"x": values(6, 3, seed=8)})
    phases = {node: node.metadata_props["pkg.ckplan.phase"] for node in training.model.graph}
    read = {v for node, phase in phases.items() if phase == "backward" for v in node.inputs if v is not None}
    return [node.op_type for node, phase in phases.items() if phase == "forward" and not read.isdisjoint(node.outputs)]


@pytest.mark.parametrize("product", ["Mul(h, s)", "Mul(s, h)"])
def test_the_input_is_kept_for_nothing(product):
    assert kept(f"s = Sigmoid(h) y = {product}")[:2] == ["Sigmoid", "Mul"]


def test_the_gradient_takes_four_passes():
    graph = build_training_graph(model("s = Sigmoid(h) y = Mul(h, s)"), loss="loss", wrt=["w"]).model.graph
    made = [node.op_type for node in graph if (node.name or "").startswith("Mul_2/grad")]
    assert made == ["Sub", "Mul", "Add", "Mul"]


SLOPED = "k = Mul(h, slope) s = Sigmoid(k)"
"""A sigmoid of a multiple."""


@pytest.mark.parametrize(
    "nodes",
    [
        f"{SLOPED} y = Mul(h, s)",
        "k = Mul(slope, h) s = Sigmoid(k) y = Mul(s, h)",
        f"{SLOPED} t = Mul(h, s) u = MatMul(x, e) y = Mul(t, u)",
    ],
    ids=["alone", "the other way round", "with a gate"],
)
def test_with_a_slope_before_the_sigmoid_the_input_is_kept_for_nothing_too(nodes, monkeypatch):
    assert "h" not in read_in_the_backward_pass(nodes, monkeypatch)


@pytest.mark.parametrize(
    ("nodes", "options"),
    [
        ("k = Mul(h, slopes) s = Sigmoid(k) y = Mul(h, s)", {}),
        (f"{SLOPED} y = Mul(h, s)", {"wrt": ["*"]}),
        (f"{SLOPED} y = Mul(h, s)", {"retain_grad": ["k"]}),
        (f"{SLOPED} t = Mul(h, s) y = Add(t, k)", {}),
    ],
    ids=["a slope for each column", "a slope that is trained", "a gradient inside", "read twice"],
)
def test_other_slopes_are_differentiated_node_by_node(nodes, options, monkeypatch):
    assert "h" in read_in_the_backward_pass(nodes, monkeypatch, **options)


def read_in_the_backward_pass(nodes: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> set[str | None]:
    """Names of what the backward pass of nodes reads, whose gradients are held against differences."""
    for name, array in {"slope": np.asarray(1.702), "slopes": values(4, seed=6), "e": values(3, 4, seed=5)}.items():
        if name in nodes:
            monkeypatch.setitem(WEIGHTS, name, array)
    trained = [name for name in WEIGHTS if not name.startswith("slope")]
    training = build_training_graph(model(nodes), **{"loss": "loss", "wrt": trained, **options})
    check_training_graph(training, {"x": values(6, 3, seed=8)})
    backward = [node for node in training.model.graph if node.metadata_props["pkg.ckplan.phase"] == "backward"]
    return {value.name for node in backward for value in node.inputs if value is not None}


GATED = "s = Sigmoid(h) t = Mul(h, s) u = MatMul(x, e)"
"""A gate beside a value times its own sigmoid."""


@pytest.mark.parametrize("product", ["Mul(t, u)", "Mul(u, t)"])
def test_a_gate_has_its_gradient_made_once_and_is_differentiated_with_the_sigmoid(product, monkeypatch):
    monkeypatch.setitem(WEIGHTS, "e", values(3, 4, seed=5))
    training = build_training_graph(model(f"{GATED} y = {product}"), loss="loss")
    check_training_graph(training, {"x": values(6, 3, seed=8)})
    made = [node.op_type for node in training.model.graph if (node.name or "").startswith("Mul_4/grad")]
    assert made == ["Mul", "Sub", "Mul", "Add", "Mul"]


@pytest.mark.parametrize(
    "gate",
    ["r = ReduceSum <keepdims = 1> (u) y = Mul(t, r)", "y = Mul(t, t)", "r = Mul(t, u) y = Add(r, t)"],
    ids=["of another shape", "by itself", "read twice"],
)
def test_other_products_of_it_are_differentiated_alone(gate, monkeypatch):
    monkeypatch.setitem(WEIGHTS, "e", values(3, 4, seed=5))
    training = build_training_graph(model(f"{GATED} {gate}"), loss="loss")
    check_training_graph(training, {"x": values(6, 3, seed=8)})
    made = [node.op_type for node in training.model.graph if (node.name or "").startswith("Mul_2/grad")]
    assert made == ["Sub", "Mul", "Add", "Mul"]


@pytest.mark.parametrize("asked", ["t", "s"])
def test_what_is_inside_has_a_gradient_where_it_is_wanted(asked, monkeypatch):
    monkeypatch.setitem(WEIGHTS, "e", values(3, 4, seed=5))
    training = build_training_graph(model(f"{GATED} y = Mul(t, u)"), loss="loss", retain_grad=[asked])
    check_training_graph(training, {"x": values(6, 3, seed=8)})
    assert list(training.retained) == [asked]


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ("s = Sigmoid(h) t = Mul(s, h) y = Add(t, s)", "double loss"),
        ("s = Sigmoid(h) y = Mul(s, h)", "double[6,4] s, double loss"),
        ("t = Tanh(h) s = Sigmoid(h) y = Mul(s, t)", "double loss"),
    ],
)
def test_a_sigmoid_that_something_else_reads_is_left_alone(nodes, outputs):
    assert "MatMul" in kept(nodes, outputs) or "Tanh" in kept(nodes, outputs)


def test_second_derivatives():
    text = "g () => (double loss) { h = MatMul(p0, p1) s = Sigmoid(h) y = Mul(h, s) loss = ReduceSum<keepdims=0>(y) }"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for name, array in (("p0", values(2, 3)), ("p1", values(3, 4, seed=1))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    check_second_derivatives(proto)
