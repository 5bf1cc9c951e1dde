"""What gradients are asked for, and where they stop: parameters, inputs, activations."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan import keys
from ckplan.autodiff import build_training_graph
from ckplan.errors import UsageError
from ckplan.model.loading import normalise
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, reference, slope, values
from tests.autodiff.test_engine import FEEDS, MLP, WEIGHTS

SHARED = """
g (double[4,4] x) => (double loss) {
    a = MatMul(x, w)
    b = Tanh(a)
    c = MatMul(b, w)
    d = Add(c, b)
    e = Mul(d, d)
    loss = ReduceSum <keepdims = 0> (e)
}
"""


def test_gradient_of_an_input():
    training = build_training_graph(parse(MLP, **WEIGHTS), wrt=["x"])
    assert training.gradients == {}
    assert training.retained == {"x": "x_grad"}
    assert [value.name for value in training.model.graph.inputs] == ["x"]
    assert json.loads(training.model.metadata_props["pkg.ckplan.retained_gradients"]) == {"x": "x_grad"}
    gradient = reference(training.model, FEEDS)["x_grad"]
    direction = values(6, 3, seed=5)

    def loss(t: float) -> float:
        return float(reference(training.model, {"x": FEEDS["x"] + t * direction})["loss"])

    np.testing.assert_allclose(np.sum(gradient * direction), slope(loss), rtol=1e-8)


def test_a_model_without_parameters_is_differentiated_by_its_input():
    model = parse("g (double[3] x) => (double loss) { s = Mul(x, x) loss = ReduceSum <keepdims = 0> (s) }")
    training = build_training_graph(model, wrt=["x"])
    np.testing.assert_allclose(reference(training.model, {"x": values(3)})["x_grad"], 2 * values(3))


def test_retained_gradients_of_activations_stand_beside_those_of_parameters():
    training = build_training_graph(parse(MLP, **WEIGHTS), retain_grad=["h", "s", "x"])
    names = [value.name for value in training.model.graph.outputs]
    assert names == ["loss", "w1_grad", "b1_grad", "w2_grad", "h_grad", "s_grad", "x_grad"]
    assert list(training.gradients) == ["w1", "b1", "w2"]
    check_training_graph(training, FEEDS)
    found = reference(training.model, FEEDS)
    h = np.tanh(FEEDS["x"] @ WEIGHTS["w1"] + WEIGHTS["b1"])
    np.testing.assert_array_equal(found["s_grad"], np.ones((6, 2)))
    np.testing.assert_allclose(found["h_grad"], 2 * h @ WEIGHTS["w2"] @ WEIGHTS["w2"].T)
    plain = reference(build_training_graph(parse(MLP, **WEIGHTS)).model, FEEDS)
    for name in ("w1_grad", "b1_grad", "w2_grad"):
        np.testing.assert_array_equal(found[name], plain[name])
    assert not [node for node in training.model.graph if node.op_type == "Identity"]


def test_gradient_of_a_value_with_several_readers_is_whole():
    training = build_training_graph(parse(SHARED, w=values(4, 4) / 2), wrt=["b"])
    assert list(training.retained) == ["b"]
    x, w = values(4, 4, seed=1), values(4, 4) / 2
    b = np.tanh(x @ w)
    d = b @ w + b
    np.testing.assert_allclose(reference(training.model, {"x": x})["b_grad"], 2 * d @ w.T + 2 * d)


def test_gradients_inside_of_what_is_differentiated_as_one():
    text = """g (float[2,3,5,5] x) => (float loss) {
        c = Conv <pads = [1,1,1,1]> (x, w)
        n = BatchNormalization(c, scale, offset, mean, variance)
        t = Tanh(n)
        loss = ReduceSum <keepdims = 0> (t)
    }"""
    vectors = {
        name: values(4, seed=i, low=0.5, high=1.5) for i, name in enumerate(("scale", "offset", "mean", "variance"))
    }
    weights = {name: array.astype(np.float32) for name, array in (("w", values(4, 3, 3, 3)), *vectors.items())}
    feeds = {"x": values(2, 3, 5, 5).astype(np.float32)}
    plain = build_training_graph(parse(text, **weights))
    training = build_training_graph(parse(text, **weights), retain_grad=["c"])
    expected, found = onnxruntime_run(plain.model, feeds), onnxruntime_run(training.model, feeds)
    for name in plain.gradients.values():
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-4)
    # dL/dc summed over all but the channels is the slope along the offset, times scale over deviation.
    per_channel = weights["scale"] / np.sqrt(weights["variance"] + 1e-5)
    np.testing.assert_allclose(found["c_grad"].sum(axis=(0, 2, 3)), expected["offset_grad"] * per_channel, rtol=1e-4)


def test_gradient_of_a_value_that_a_function_makes():
    text = """g (double[3] x) => (double loss) {
        h = Mul(x, w)
        m = Mish(h)
        s = Mul(m, m)
        loss = ReduceSum <keepdims = 0> (s)
    }"""
    model = parse(text, w=values(3))
    training = build_training_graph(model, retain_grad=["m", "h"])
    check_training_graph(training, {"x": values(3, seed=1)})
    found = reference(training.model, {"x": values(3, seed=1)})
    product = values(3, seed=1) * values(3)
    np.testing.assert_allclose(found["m_grad"], 2 * product * np.tanh(np.log1p(np.exp(product))))
    np.testing.assert_allclose(found["w_grad"], found["h_grad"] * values(3, seed=1))


@pytest.mark.parametrize("name", ["b", "h"])
def test_gradients_stop_at_a_detached_activation(name):
    training = build_training_graph(parse(MLP, **WEIGHTS), no_grad=[name])
    assert list(training.gradients) == ["w2"]
    plain = reference(build_training_graph(parse(MLP, **WEIGHTS)).model, FEEDS)
    np.testing.assert_array_equal(reference(training.model, FEEDS)["w2_grad"], plain["w2_grad"])
    assert "Identity" not in [node.op_type for node in training.model.graph]


def test_a_detached_path_beside_another():
    # d = c + stop(b), as in torch's b.detach(): only what goes through c is left.
    text = SHARED.replace("d = Add(c, b)", "stopped = Identity(b) d = Add(c, stopped)")
    x, w = values(4, 4, seed=1), values(4, 4) / 2
    training = build_training_graph(parse(text, w=w), no_grad=["stopped"])
    b = np.tanh(x @ w)
    dc = 2 * (b @ w + b)
    expected = b.T @ dc + x.T @ (dc @ w.T * (1 - b * b))
    np.testing.assert_allclose(reference(training.model, {"x": x})["w_grad"], expected)


def test_a_detached_input_gets_no_gradient():
    training = build_training_graph(parse(MLP, **WEIGHTS), wrt=["x", "w2"], no_grad=["x"])
    assert (list(training.gradients), training.retained) == (["w2"], {})


def test_a_pattern_that_names_parameters_does_not_cut_off_activations():
    # The activation bears the name of the layer, as exporters have it.
    text = MLP.replace("h = ", "w1_out = ").replace("(h,", "(w1_out,")
    assert list(build_training_graph(parse(text, **WEIGHTS), no_grad=["w1*"]).gradients) == ["b1", "w2"]
    assert list(build_training_graph(parse(text, **WEIGHTS), no_grad=["w1_*"]).gradients) == ["w2"]


def test_names_with_characters_of_patterns():
    text = "g (double[3] x) => (double loss) { a = Mul(x, w) loss = ReduceSum <keepdims = 0> (a) }"
    model = parse(text, w=values(3))
    model.graph.initializers["w"].name = "w[0]"
    assert list(build_training_graph(model, wrt=["w[0]"]).gradients) == ["w[0]"]


def test_parameters_shared_between_places():
    training = build_training_graph(parse(SHARED, w=values(4, 4) / 2))
    assert list(training.gradients) == ["w"]
    check_training_graph(training, {"x": values(4, 4, seed=1)})


def test_one_value_read_twice_by_one_node_needs_no_sum():
    text = "g (double[3] x) => (double loss) { h = Mul(x, w) s = Add(h, h) loss = ReduceSum <keepdims = 0> (s) }"
    training = build_training_graph(parse(text, w=values(3)))
    assert "Add" not in [node.op_type for node in training.model.graph][3:]
    np.testing.assert_allclose(reference(training.model, {"x": values(3, seed=1)})["w_grad"], 2 * values(3, seed=1))


UNUSED = """
g (double[3] x) => (double loss, double[3] other) {
    h = Mul(x, w)
    other = Mul(h, idle)
    loss = ReduceSum <keepdims = 0> (h)
}
"""


def test_unused_parameters_have_no_gradient_or_zeros():
    model = parse(UNUSED, w=values(3), idle=values(3, seed=1), lonely=values(2, 2))
    absent = build_training_graph(model)
    assert list(absent.gradients) == ["w"]
    assert any("get no gradient" in note and "'idle'" in note for note in absent.notes)
    training = build_training_graph(model, unused="zero")
    assert list(training.gradients) == ["w", "idle", "lonely"]
    assert [value.name for value in training.model.graph.inputs] == ["x", "w", "idle", "lonely"]
    onnx.checker.check_model(ir.to_proto(training.model), full_check=True)
    for run in (reference, onnxruntime_run):
        found = run(training.model, {"x": values(3, seed=2)})
        np.testing.assert_array_equal(found["idle_grad"], np.zeros(3))
        np.testing.assert_array_equal(found["lonely_grad"], np.zeros((2, 2)))


def test_a_tensor_behind_the_loss_has_no_gradient_or_zeros():
    model = parse(UNUSED, w=values(3), idle=values(3, seed=1))
    assert build_training_graph(model, retain_grad=["other"], loss="loss").retained == {}
    training = build_training_graph(model, retain_grad=["other"], loss="loss", unused="zero")
    np.testing.assert_array_equal(reference(training.model, {"x": values(3)})["other_grad"], np.zeros(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retain_grad": ["w1"]}, "`--retain-grad w1` matches no floating-point input or activation"),
        ({"wrt": ["nothing*"]}, r"`--wrt nothing\*` matches no floating-point parameter, input or activation"),
        ({"wrt": ["h"], "no_grad": ["h"]}, "no parameter is left to train"),
        ({"unused": "gone"}, "the gradient of unused parameters is 'gone'; choose one of absent, zero"),
    ],
)
def test_what_cannot_be_meant(options, message):
    with pytest.raises(UsageError, match=message):
        build_training_graph(parse(MLP, **WEIGHTS), **options)


@pytest.mark.parametrize(("option", "pattern"), [("wrt", "lonely"), ("no_grad", "lone*")])
def test_a_parameter_that_no_output_depends_on(option: str, pattern: str):
    text = """g (float[3] x) => (float[3] y, float[3] other) {
        y = Mul(x, w) t = Mul(x, lonely) dead = Exp(t) other = Mul(x, idle)
    }"""
    weights = {"w": values(3), "idle": values(3), "lonely": values(3)}
    model = parse(text, **{name: array.astype("float32") for name, array in weights.items()})
    model = normalise(model).model
    message = (
        f"`--{option.replace('_', '-')} {re.escape(pattern)}` names 'lonely', which no output of the model depends"
    )
    with pytest.raises(UsageError, match=message):
        build_training_graph(model, loss="mean:y", **{option: [pattern]})
    # What another output depends on is there, and the file says nothing of what is not.
    training = build_training_graph(model, loss="mean:y", no_grad=["idle"])
    assert list(training.gradients) == ["w"]
    assert keys.UNREAD not in training.model.metadata_props


def test_what_no_output_depends_on_whatever_inputs_are_set_to():
    text = "g (float[3] x, float c) => (float[3] y) { y = Mul(x, w) u = Mul(x, lonely) z = Mul(u, c) }"
    weights = {name: values(3).astype("float32") for name in ("w", "lonely")}
    model = normalise(parse(text, **weights), fixed={"c": 2.0}).model
    with pytest.raises(UsageError, match="depends on; leave it out: such a parameter gets no gradient"):
        build_training_graph(model, wrt=["lonely"])
    training = build_training_graph(model)
    assert keys.RULED_OUT not in training.model.metadata_props


@pytest.mark.parametrize("pattern", ["v", "b", "v*"])
def test_a_parameter_of_a_branch_that_is_ruled_out(pattern: str):
    text = """g (float[3] x, bool c) => (float[3] y) {
        z = If (c) <
            then_branch = one () => (float[3] t) { t = Mul(x, w) },
            else_branch = two () => (float[3] e) <float[3] b = {1, 2, 3}> { s = Mul(x, v)  e = Add(s, b) }>
        y = Tanh(z)
    }"""
    model = parse(text, w=values(3).astype("float32"), v=values(3).astype("float32"))
    model = normalise(model, fixed={"c": True}).model
    said = rf"`--wrt {re.escape(pattern)}` names '[vb]', which no output of the model depends on as `--set` sets its"
    with pytest.raises(UsageError, match=said):
        build_training_graph(model, wrt=[pattern])
    assert list(build_training_graph(model).gradients) == ["w"]


def test_callbacks_are_told_the_nodes_of_each_forward_node():
    told: list[tuple[str, list[str]]] = []

    def remember(forward: ir.Node, appended) -> None:
        told.append((forward.op_type, [node.op_type for node in appended]))
        for node in appended:
            node.metadata_props["owner"] = forward.name

    training = build_training_graph(parse(MLP, **WEIGHTS), callbacks=[remember])
    assert [kind for kind, _ in told] == ["ReduceSum", "Mul", "MatMul", "Tanh", "Add", "MatMul"]
    assert dict(told)["Tanh"] == ["Mul", "Sub", "Mul"]
    backward = [n for n in training.model.graph if n.metadata_props["pkg.ckplan.phase"] == "backward"]
    assert sum(len(appended) for _, appended in told) == len(backward)
    assert all(node.metadata_props["owner"] for node in backward)


def test_a_list_names_the_parameters():
    model = parse(MLP, **WEIGHTS)
    training = build_training_graph(model, params=["w1", "b1", "running_mean"])
    assert list(training.gradients) == ["w1", "b1"]
    assert training.notes == ("1 name(s) of --params are not in the model: 'running_mean'",)


def test_a_list_names_what_exporters_renamed():
    model = parse(MLP, **WEIGHTS)
    model.graph.initializers["w2"].name = "network.w2"
    model.graph.initializers["w1"].metadata_props["pkg.ckplan.stands_for"] = "layer.weight"
    training = build_training_graph(model, params=["w2", "layer.weight"])
    assert list(training.gradients) == ["w1", "network.w2"]
    assert training.notes == ()


def test_a_list_may_name_constants_and_what_has_no_gradient():
    text = """g (double[2,3,4,4] x) => (double loss) {
        n = BatchNormalization(x, scale, shift, mean, var)
        m = Mul(n, zeros)
        loss = ReduceSum <keepdims = 0> (m)
    }"""
    vectors = dict.fromkeys(("scale", "shift", "mean", "var"), np.ones(3))
    training = build_training_graph(parse(text, **vectors, zeros=np.zeros((4, 4))), params=[*vectors, "zeros"])
    assert list(training.gradients) == ["scale", "shift", "zeros"]
    assert training.notes == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"params": ["other"]}, "names none of the model's 3 floating-point initializers; there are, for example"),
        ({"params": ["w1"], "wrt": ["w1"]}, "`--params` and `--wrt` both say"),
    ],
)
def test_lists_that_cannot_be_meant(options, message):
    with pytest.raises(UsageError, match=message):
        build_training_graph(parse(MLP, **WEIGHTS), **options)
