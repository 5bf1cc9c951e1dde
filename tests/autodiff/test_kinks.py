"""What docs/kinks.md promises where a function has no derivative."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import infer, node_model, parse, reference


def slopes(op_type: str, x: list[float], *rest: np.ndarray, **attributes: object) -> np.ndarray:
    """The derivative of each element by itself."""
    model = node_model(op_type, np.asarray(x), *rest, **attributes)
    training = build_training_graph(infer(model), loss="loss", wrt=["p0"])
    weight = np.random.default_rng(1).uniform(0.5, 1.5, np.shape(x))
    with np.errstate(divide="ignore"):
        return reference(training.model)["p0_grad"] / weight


@pytest.mark.parametrize(
    ("op_type", "attributes", "places", "expected"),
    [
        ("Relu", {}, [0], [0]),
        ("Elu", {"alpha": 0.5}, [0], [0.5]),
        ("LeakyRelu", {"alpha": 0.25}, [0], [0.25]),
        ("HardSigmoid", {}, [-2.5, 2.5], [0, 0]),
        ("HardSwish", {}, [-3, 3], [0, 1]),
        ("Shrink", {}, [-0.5, 0.5], [0, 0]),
        ("ThresholdedRelu", {}, [1], [0]),
        ("Abs", {}, [0], [0]),
        ("Sqrt", {}, [0], [np.inf]),
        ("Log", {}, [0], [np.inf]),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_functions_of_one_number(op_type, attributes, places, expected):
    np.testing.assert_allclose(slopes(op_type, [float(place) for place in places], **attributes), expected)


@pytest.mark.parametrize("cut", ["Relu(x)", "Clip(x, zero)"])
def test_a_root_of_what_is_cut_off_at_zero_has_no_slope_there(cut):
    model = parse(
        f"g (double[3] x) => (double loss) {{ c = {cut} r = Sqrt(c) loss = ReduceSum <keepdims = 0> (r) }}",
        **({"zero": np.asarray(0.0)} if "zero" in cut else {}),
    )
    training = build_training_graph(model, loss="loss", wrt=["x"])
    found = reference(training.model, {"x": np.asarray([-1.0, 0.0, 4.0])})
    np.testing.assert_array_equal(found["x_grad"], [0, 0, 0.25])


@pytest.mark.parametrize("root", ["Sqrt(s)", "Pow(s, half)", "Pow(s, third)"])
@pytest.mark.parametrize(
    "squares",
    [
        "t = Pow(d, two) s = ReduceSum(t, last)",
        "t = Mul(d, d) u = ReduceMean(t, last) v = Mul(u, two) s = Div(v, half)",
        "t = ReduceSumSquare(d, last) s = Squeeze(t)",
        "t = ReduceSumSquare(d, last) s = Max(zero, t)",
        "t = Abs(d) u = Pow(t, three) v = Pow(d, two) s = Add(u, v)",
    ],
)
def test_a_root_of_a_sum_of_squares_has_no_slope_where_all_are_zero(squares, root):
    named = {"two": 2.0, "three": 3.0, "half": 0.5, "third": 1 / 3, "zero": 0.0}
    text = f"{squares} r = {root}"
    model = parse(
        f"g (double[3, 2] x, double[3, 2] y) => (double l) {{ d = Sub(x, y) {text} l = ReduceSum<keepdims=0>(r) }}",
        **{name: np.asarray(number) for name, number in named.items() if name in text},
        **({"last": np.asarray([1])} if "last" in text else {}),
    )
    training = build_training_graph(model, loss="l", wrt=["x"])
    y, apart = np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), np.asarray([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    found = reference(training.model, {"x": y + apart, "y": y})["x_grad"]
    np.testing.assert_array_equal(found[[0, 2]], 0)
    assert np.isfinite(found).all()
    assert (found[1] > 0).all()


def test_a_root_of_what_may_be_negative_is_differentiated_as_ever():
    model = parse(
        "g (double[3] x) => (double l) { s = Pow(x, three) t = Add(s, x) r = Sqrt(t) l = ReduceSum<keepdims=0>(r) }",
        three=np.asarray(3.0),
    )
    training = build_training_graph(model, loss="l", wrt=["x"])
    assert "Where" not in {node.op_type for node in training.model.graph}


def test_an_angle_has_slopes_on_the_axis_and_none_at_the_origin():
    """As exporters write torch's atan2."""
    nodes = """
        q = Div(y, x) a = Atan(q) above = Greater(y, zero) more = Add(a, pi) less = Sub(a, pi)
        turned = Where(above, more, less) behind = Less(x, zero) whole = Where(behind, turned, a)
        none = IsNaN(whole) angle = Where(none, zero, whole) l = ReduceSum <keepdims = 0> (angle)
    """
    model = parse(
        f"g (double[6] y, double[6] x) => (double l) {{ {nodes} }}", zero=np.asarray(0.0), pi=np.asarray(np.pi)
    )
    training = build_training_graph(model, loss="l", wrt=["y", "x"])
    y, x = np.asarray([0.0, 2.0, -2.0, 0.0, 3.0, 1.0]), np.asarray([0.0, 0.0, 0.0, 4.0, 4.0, -1.0])
    with np.errstate(invalid="ignore", divide="ignore"):
        found = reference(training.model, {"y": y, "x": x})
    assert found["l"] == pytest.approx(np.arctan2(y, x).sum())
    square = np.where(x**2 + y**2, x**2 + y**2, 1)
    np.testing.assert_allclose(found["y_grad"], x / square)
    np.testing.assert_allclose(found["x_grad"], -y / square)


@pytest.mark.parametrize(("limit", "selections"), [(0.0, 1), (-1.0, 1), (0.25, 0)])
def test_a_root_of_what_stays_above_zero_is_differentiated_as_ever(limit, selections):
    model = parse(
        "g (double[3] x) => (double loss) { c = Clip(x, limit) r = Sqrt(c) loss = ReduceSum <keepdims = 0> (r) }",
        limit=np.asarray(limit),
    )
    training = build_training_graph(model, loss="loss", wrt=["x"])
    assert [node.op_type for node in training.model.graph].count("Where") == selections


@pytest.mark.parametrize("op_type", ["Max", "Min"])
@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_equal_infinities_share_as_equal_numbers_do(op_type, infinity):
    # As where two scores are masked, of which a softmax makes nothing.
    found = slopes(op_type, [infinity, 1.0, 2.0], np.asarray([infinity, 1.0, 5.0]))
    np.testing.assert_allclose(found, [0.5, 0.5, float(op_type == "Min")])


def test_the_slope_of_prelu_counts_at_zero():
    np.testing.assert_allclose(slopes("PRelu", [0.0], np.asarray([0.3])), [0.3])


@pytest.mark.parametrize(("attributes", "expected"), [({}, [1, 1, 0]), ({"largest": 0}, [1, 1, 0])])
def test_equal_elements_in_top_k_are_those_it_reports(attributes, expected):
    model = node_model("TopK", np.ones(3), np.asarray([2]), outputs=2, **attributes)
    training = build_training_graph(infer(model), loss="loss", wrt=["p0"])
    np.testing.assert_array_equal(reference(training.model)["p0_grad"] != 0, np.asarray(expected, bool))


def test_samples_at_whole_numbers_lean_to_one_side():
    x, grid = np.asarray([[[[1.0, 3.0, 7.0]]]]), np.zeros((1, 1, 1, 2))
    model = node_model("GridSample", x, grid, align_corners=1)
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    weight = np.random.default_rng(1).uniform(0.5, 1.5)
    found = reference(training.model)["p1_grad"].reshape(-1) / weight
    np.testing.assert_allclose(found[0], 4.0)
