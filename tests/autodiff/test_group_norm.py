"""Group normalisations in four nodes are differentiated as one: what is between them is not kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.keys import PHASE
from tests.autodiff.gradcheck import check_gradient, check_training_graph, infer, values

SAMPLES, CHANNELS, HEIGHT, WIDTH = 2, 6, 3, 2
FORWARD = "r = Reshape(n, whole) s = Mul(r, p1) y = Add(s, p2)"
TURNED = "r = Reshape(n, whole) s = Mul(p1, r) y = Add(p2, s)"


def group_norm(
    groups: int = 3,
    behind: str = FORWARD,
    by: tuple[int, ...] = (CHANNELS, 1, 1),
    ones: float = 1.0,
    zeros: float = 0.0,
    whole: tuple[int, ...] = (SAMPLES, CHANNELS, HEIGHT, WIDTH),
) -> onnx.ModelProto:
    """A normalisation of tangents by groups, as torch writes it, weighed."""
    text = f"x = Tanh(p0) g = Reshape(x, groups) n = InstanceNormalization(g, ones, zeros) {behind}"
    text += " z = Mul(y, weights) loss = ReduceSum<keepdims = 0>(z)"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g () => (double loss) {{ {text} }}')
    arrays = {
        "p0": values(SAMPLES, CHANNELS, HEIGHT, WIDTH),
        "p1": values(*by, seed=1),
        "p2": values(*by, seed=2),
        "weights": values(*whole, seed=3),
        "ones": np.full(groups, ones),
        "zeros": np.full(groups, zeros),
        "groups": np.array([SAMPLES, groups, -1]),
        "whole": np.array(whole),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def kept(model: onnx.ModelProto) -> set[str]:
    """What the backward pass reads of the forward pass, parameters apart."""
    graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
    phases = {value.name: node.metadata_props.get(PHASE) for node in graph for value in node.outputs}
    read = {
        value.name for node in graph if node.metadata_props.get(PHASE) == "backward" for value in node.inputs if value
    }
    return {name for name in read if phases.get(name) == "forward"}


JOINED = {
    "three groups": {},
    "one group": {"groups": 1},
    "a group a channel": {"groups": CHANNELS},
    "operands turned": {"behind": TURNED},
    "parameters of full rank": {"by": (1, CHANNELS, 1, 1)},
    "of one axis": {"by": (CHANNELS, 1), "whole": (SAMPLES, CHANNELS, HEIGHT * WIDTH)},
}
APART = {
    "a scale within": {"ones": 2.0},
    "a shift within": {"zeros": 0.5},
    "something reads between": {"behind": "r = Reshape(n, whole) s = Mul(r, p1) a = Add(s, p2) y = Add(a, r)"},
    "parameters along a row": {"by": (HEIGHT, 1)},
    "another shape behind": {"whole": (1, 2 * CHANNELS, HEIGHT, WIDTH), "by": (2 * CHANNELS, 1, 1)},
    "scaled twice": {"behind": "r = Reshape(n, whole) s = Mul(r, p1) y = Mul(s, p2)"},
    "shifted by the whole": {"behind": "r = Reshape(n, whole) s = Mul(r, p1) t = Mul(x, p2) y = Add(s, t)"},
}


@pytest.mark.parametrize("options", JOINED.values(), ids=JOINED)
def test_a_group_normalisation_keeps_what_it_reads_alone(options):
    model = group_norm(**options)
    check_gradient(model)
    assert kept(model) <= {"x", "g", "loss"}


@pytest.mark.parametrize("options", APART.values(), ids=APART)
def test_what_looks_like_one_is_differentiated_node_by_node(options):
    model = group_norm(**options)
    check_gradient(model)
    assert kept(model) & {"n", "r"}


def test_a_value_within_that_a_gradient_is_asked_for_stays():
    model = group_norm()
    made = build_training_graph(infer(model), loss="loss", wrt=["p*"], retain_grad=["s"])
    assert set(made.retained) == {"s"}


@pytest.mark.parametrize("trained", ["ones", "zeros"])
def test_ones_or_zeros_that_are_trained_have_gradients(trained):
    model = group_norm()
    made = build_training_graph(infer(model), loss="loss", wrt=["p*", trained])
    assert trained in made.gradients
    check_training_graph(made)
