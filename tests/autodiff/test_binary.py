"""Elementwise functions of several inputs, with broadcasting."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autodiff.gradcheck import (
    build_training_graph,
    check_gradient,
    node_model,
    parse,
    reference,
    to_overridable,
    values,
)

SHAPES = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((4,), (3, 4)),
    ((3, 1), (1, 4)),
    ((2, 3, 4), ()),
    ((), ()),
    ((1,), (2, 1, 3)),
]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_gradient(op_type, shapes):
    check_gradient(node_model(op_type, values(*shapes[0]), values(*shapes[1], seed=5)))


@pytest.mark.parametrize("shapes", SHAPES)
def test_power(shapes):
    base, exponent = values(*shapes[0], low=0.3), values(*shapes[1], seed=5)
    check_gradient(node_model("Pow", base, exponent))


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
def test_power_with_a_constant_exponent(exponent):
    model = node_model("Pow", values(3, 4, low=0.3), np.float64(exponent))
    check_gradient(model, wrt=["p0"], idle=["p1"])


@pytest.mark.parametrize("exponent", [2, 3, [1, 2, 3, 0]])
def test_power_with_an_integer_exponent(exponent):
    check_gradient(node_model("Pow", values(3, 4), np.asarray(exponent, dtype=np.int64)))


def test_power_at_zero():
    model = node_model("Pow", np.zeros(4), np.array([0.0, 1.0, 2.0, 3.0]))
    gradients = check_gradient(model, differences=False, torch=False)
    assert gradients["p0"][[0, 2, 3]].tolist() == [0, 0, 0]
    assert gradients["p0"][1] > 0
    assert gradients["p1"].tolist() == [0, 0, 0, 0]


def test_power_at_zero_with_a_negative_exponent():
    model = node_model("Pow", np.asarray([0.0, 2.0]), np.asarray([-1.0, -1.0]))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = check_gradient(model, differences=False, torch=False)
    assert found["p1"][0] == 0
    assert np.isfinite(found["p1"]).all()


@pytest.mark.parametrize("op_type", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("shapes", [[(2, 3)], [(2, 3), (3,), (2, 1)], [(2, 3), (2, 1), (1, 3), ()]])
def test_variadic(op_type, shapes):
    check_gradient(node_model(op_type, *(values(*shape, seed=seed) for seed, shape in enumerate(shapes))))


@pytest.mark.parametrize("op_type", ["Max", "Min"])
@pytest.mark.parametrize("count", [2, 3])
def test_equal_elements_share_the_gradient(op_type, count):
    gradients = check_gradient(node_model(op_type, *[np.ones((2, 2))] * count), differences=False, torch=False)
    total = sum(gradients.values())
    for gradient in gradients.values():
        np.testing.assert_allclose(gradient, total / count)


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max"])
def test_one_value_read_twice(op_type):
    model = node_model(op_type, values(3, 4), values(3, 4))
    model.graph.node[0].input[1] = "p0"
    del model.graph.initializer[1]
    assert to_overridable(model).graph.input[0].name == "p0"
    check_gradient(model, differences=op_type != "Max")


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4), (3, 4)), ((4,), (3, 1), ()), ((3, 1), (3, 4), (1, 4))])
def test_where(shapes):
    condition = np.random.default_rng(0).random(shapes[0]) > 0.5
    check_gradient(node_model("Where", condition, values(*shapes[1]), values(*shapes[2], seed=5)))


def test_where_chooses_among_infinite_gradients():
    """At zero the square root's derivative is infinite, and infinity times zero is no number."""
    model = parse(
        """g (bool[3] c, double[3] zeros) => (double loss) {
            y = Where(c, w, zeros) r = Sqrt(y) loss = ReduceSum <keepdims = 0> (r)
        }""",
        w=np.asarray([1.0, 4.0, 9.0]),
    )
    training = build_training_graph(model)
    with np.errstate(divide="ignore"):
        found = reference(training.model, {"c": np.asarray([True, False, True]), "zeros": np.zeros(3)})
    np.testing.assert_allclose(found["w_grad"], [1 / 2, 0, 1 / 6])


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((4,), (3, 1)), ((3, 4), ())])
def test_remainder(shapes):
    a, b = values(*shapes[0], low=-9, high=9), values(*shapes[1], seed=5)
    check_gradient(node_model("Mod", a, b, fmod=1), step=1e-5)
    check_gradient(node_model("Mod", a, b, opset=28), step=1e-5, runtime=False)
