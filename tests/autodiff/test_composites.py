"""Composites are nodes like any other: whatever replaces a value that they read replaces it for them too."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import DOMAIN, inline_composites, is_composite, outline
from ckplan.autodiff.training_mode import enter_training
from ckplan.errors import ModelError
from tests.autodiff.gradcheck import check_training_graph, infer, onnxruntime_run, parse, reference, values

LINEAR = "g (double[3,4] x) => (double[3,5] z) { z = MatMul(x, w) }"
WEIGHTS = {"w": values(4, 5, seed=1)}
FEEDS = {"x": values(3, 4), "labels": np.array([4, 0, 2]), "target": values(3, 5, seed=2)}


def parse_at(opset: int, text: str, **initializers: np.ndarray) -> ir.Model:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in initializers.items())
    return infer(model)


def inputs_of(training: TrainingGraph) -> list[str | None]:
    return [value.name for value in training.model.graph.inputs if not value.is_initializer()]


def chances(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
def test_no_gradient_passes_logits_that_are_detached(loss):
    with pytest.raises(ModelError, match="only through what is detached"):
        build_training_graph(parse(LINEAR, **WEIGHTS), loss=loss, no_grad=["z"])


def test_a_detached_value_leaves_the_other_loss_its_gradient():
    text = "g (double[3,4] x) => (double[3,5] z, double l) { y = MatMul(x, w) z = Tanh(y) l = ReduceSumSquare(y) }"
    model = parse(text.replace("(y) }", "<keepdims = 0> (y) }"), **WEIGHTS)
    training = build_training_graph(model, loss=["cross-entropy:z", "l"], no_grad=["z"])
    found = reference(training.model, {name: FEEDS[name] for name in ("x", "labels")})
    np.testing.assert_allclose(found["w_grad"], FEEDS["x"].T @ (2 * FEEDS["x"] @ WEIGHTS["w"]), rtol=1e-12)


def test_a_retained_gradient_has_the_part_of_the_cross_entropy():
    training = build_training_graph(
        parse(LINEAR, **WEIGHTS), loss=["cross-entropy", "sum-of-squares"], retain_grad=["z"]
    )
    found = reference(training.model, {name: FEEDS[name] for name in ("x", "labels")})
    z = FEEDS["x"] @ WEIGHTS["w"]
    expected = (chances(z) - np.eye(5)[FEEDS["labels"]]) / 3 + 2 * z
    np.testing.assert_allclose(found["z_grad"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["w_grad"], FEEDS["x"].T @ expected, rtol=1e-12)


@pytest.mark.parametrize("unused", ["absent", "zero"])
def test_a_retained_gradient_of_the_logits_alone(unused):
    training = build_training_graph(parse(LINEAR, **WEIGHTS), loss="cross-entropy", retain_grad=["z"], unused=unused)
    assert training.notes == ()
    found = reference(training.model, {name: FEEDS[name] for name in ("x", "labels")})
    expected = (chances(FEEDS["x"] @ WEIGHTS["w"]) - np.eye(5)[FEEDS["labels"]]) / 3
    np.testing.assert_allclose(found["z_grad"], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "node",
    [
        'loss = SoftmaxCrossEntropyLoss <reduction = "mean"> (x, t)',
        'loss = NegativeLogLikelihoodLoss <reduction = "sum"> (x, t)',
        "n = BatchNormalization(x, s, b, m, v) e = Mul(n, q) loss = ReduceSum <keepdims = 0> (e)",
    ],
)
def test_an_input_of_the_model_that_a_composite_reads(node):
    model = parse(
        f"g (double[3,5] x) => (double loss) {{ {node} }}",
        t=np.array([4, 0, 2]),
        q=values(3, 5),
        **{name: values(5, seed=3, low=0.5, high=1.5) for name in "sbmv"},
    )
    training = build_training_graph(model, wrt=["x"], training=True)
    copy = parse(
        f"g () => (double loss) {{ {node} }}",
        t=np.array([4, 0, 2]),
        x=values(3, 5, seed=4),
        q=values(3, 5),
        **{name: values(5, seed=3, low=0.5, high=1.5) for name in "sbmv"},
    )
    by_parameter = build_training_graph(copy, wrt=["x"], training=True)
    check_training_graph(by_parameter)
    x_grad = reference(training.model, {"x": values(3, 5, seed=4)})["x_grad"]
    np.testing.assert_allclose(x_grad, reference(by_parameter.model)["x_grad"], rtol=1e-12)


def test_attention_that_a_dropout_reads():
    text = """
    g (int64[2,5] ids) => (double[2,5,6] logits) {
        x = Gather(e, ids) q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)
        a = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)
        d = Dropout(a, ratio)
        y = Add(x, d)
        logits = MatMul(y, wo)
    }
    """
    weights = {name: values(8, 8, seed=seed, low=-0.8, high=0.8) for seed, name in enumerate(("wq", "wk", "wv"))}
    weights |= {"e": values(7, 8, seed=5), "wo": values(8, 6, seed=6), "ratio": np.float32(0.3)}
    model = parse_at(23, text, **weights)
    training = build_training_graph(model, loss="cross-entropy", training=True)
    assert set(training.gradients) == {"wq", "wk", "wv", "e", "wo"}
    ids = np.arange(10).reshape(2, 5) % 7
    check_training_graph(training, {"ids": ids, "labels": ids % 6})


@pytest.mark.parametrize("options", [{"loss": ["mse:a", "l"]}, {"loss": ["mse:a"], "grad_ys": ["a"]}])
def test_attention_that_a_loss_reads(options):
    text = """
    g (double[1,1,3,4] x) => (double[1,1,3,4] a, double l) {
        h = MatMul(x, w) a = Attention(h, h, h) l = ReduceSumSquare <keepdims = 0> (a)
    }
    """
    weights = {"w": values(4, 4, seed=1)}
    training = build_training_graph(parse_at(23, text, **weights), **options)
    feeds = {"x": values(1, 1, 3, 4), "target": values(1, 1, 3, 4, seed=2)}
    if "grad_ys" not in options:
        check_training_graph(training, feeds)
        return
    # <g, a> is a loss too.
    given = values(1, 1, 3, 4, seed=3)
    found = reference(training.model, {**feeds, "a_given_grad": given})
    text = text.replace("l = ReduceSumSquare <keepdims = 0> (a)", "p = Mul(a, g) l = ReduceSum <keepdims = 0> (p)")
    twin = build_training_graph(parse_at(23, text, g=given, **weights), loss=["mse:a", "l"], wrt=["w"])
    check_training_graph(twin, feeds)
    np.testing.assert_allclose(found["w_grad"], reference(twin.model, feeds)["w_grad"], rtol=1e-12)


def test_a_convolution_behind_a_function():
    text = """
    g (double[1,3,6,6] x) => (double[1,4,3,3] y) {
        h = Mul(x, gamma)
        cropped = CenterCropPad <axes = [2, 3]> (h, size)
        c = Conv(cropped, w)
        y = BatchNormalization(c, s, b, m, v)
    }
    """
    weights = {"gamma": values(1, 3, 1, 1, seed=2), "w": values(4, 3, 3, 3, seed=1), "size": np.array([5, 5])}
    weights |= {name: values(4, seed=seed, low=0.5, high=1.5) for seed, name in enumerate("sbmv")}
    training = build_training_graph(parse(text, **weights), loss="sum-of-squares")
    assert set(training.gradients) == {"gamma", "w", "s", "b"}
    single = build_training_graph(
        parse(
            text.replace("double", "float"),
            **{name: a.astype(np.float32) if a.dtype == np.float64 else a for name, a in weights.items()},
        ),
        loss="sum-of-squares",
    )
    feeds = {"x": values(1, 3, 6, 6).astype(np.float32)}
    found, expected = onnxruntime_run(single.model, feeds), reference(training.model, {"x": feeds["x"].astype(float)})
    for name in training.gradients.values():
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-4)
    check_training_graph(training, {"x": values(1, 3, 6, 6)})


@pytest.mark.parametrize("options", [{"retain_grad": ["v"]}, {"no_grad": ["v"]}, {"wrt": ["w", "v"]}])
def test_an_input_that_the_loss_does_not_depend_on_keeps_its_name(options):
    text = "g (double[3,4] x, double[4] v) => (double[3,5] y, double[4] u) { y = MatMul(x, w) u = Mul(v, v) }"
    training = build_training_graph(parse(text, **WEIGHTS), loss="sum:y", **options)
    assert inputs_of(training) == ["x", "v"]
    assert reference(training.model, {"x": FEEDS["x"], "v": values(4)})["w_grad"].shape == (4, 5)


@pytest.mark.parametrize("losses", [["l", "mean:lp"], ["mean:lp"], ["l", "lp"]])
def test_the_logarithms_of_a_cross_entropy_keep_their_name(losses):
    text = """
    g (double[3,4] x) => (double l, double[3,5] lp) {
        z = MatMul(x, w) l, lp = SoftmaxCrossEntropyLoss <reduction = "mean"> (z, t)
    }
    """
    options = {"loss": losses} if losses[-1] != "lp" else {"loss": losses[:1], "grad_ys": ["lp"]}
    training = build_training_graph(parse(text, t=FEEDS["labels"], **WEIGHTS), **options)
    if "grad_ys" in options:
        assert inputs_of(training) == ["x", "lp_given_grad"]
    else:
        check_training_graph(training, {"x": FEEDS["x"]})


def test_several_losses_of_one_output_are_numbered():
    model = parse(LINEAR, **WEIGHTS)
    training = build_training_graph(model, loss=["cross-entropy", "mse", "sum-of-squares:z"])
    names = [value.name for value in training.model.graph.outputs]
    assert names == ["total_loss", "loss_z_0", "loss_z_1", "loss_z_2", "w_grad"]
    check_training_graph(training, FEEDS)


def test_a_graph_with_composites_is_a_valid_model_that_computes_the_same():
    text = """
    g (float[2,3,6,6] x) => (float[2,4,6,6] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        n = BatchNormalization(c, s, b, m, v)
        y = Relu(n)
    }
    """
    weights = {"w": values(4, 3, 3, 3).astype(np.float32)}
    weights |= {name: values(4, seed=i, low=0.5, high=1.5).astype(np.float32) for i, name in enumerate("sbmv")}
    feeds = {"x": values(2, 3, 6, 6).astype(np.float32)}
    model = parse(text, **weights)
    op = Builder(model.graph, model.opset_imports, functions=model.functions)
    enter_training(op)
    assert [node.op_type for node in model.graph if is_composite(node)] == ["TrainingBatchNormalization"]
    composed = onnxruntime_run(model, feeds)
    inline_composites(op)
    assert not any(is_composite(node) for node in model.graph)
    assert DOMAIN not in model.opset_imports
    assert not model.functions
    np.testing.assert_array_equal(onnxruntime_run(model, feeds)["y"], composed["y"])


def test_what_others_read_of_the_nodes_is_an_output():
    model = parse("g (double[3] x) => (double[3] y, double[3] b) { a = Exp(x) b = Neg(a) y = Mul(a, b) z = Abs(a) }")
    graph, nodes = model.graph, list(model.graph)
    op = Builder(graph, model.opset_imports, functions=model.functions)
    outline(op, "Anything", nodes[:3], [graph.inputs[0]], [nodes[2].outputs[0]])
    assert [node.op_type for node in graph] == ["Anything", "Abs"]
    composite = graph[0]
    assert [value.name for value in composite.outputs] == ["y", "a", "b"]
    assert graph[1].inputs[0] is composite.outputs[1]
    assert list(graph.outputs) == [composite.outputs[0], composite.outputs[2]]
    assert [value.name for value in composite.inputs if value is not None] == ["x"]
    inline_composites(op)
    assert [node.op_type for node in graph] == ["Exp", "Neg", "Mul", "Abs"]
    x = values(3)
    np.testing.assert_array_equal(reference(model, {"x": x})["y"], np.exp(x) * -np.exp(x))


def test_a_model_that_brings_nodes_of_the_own_domain_is_refused():
    model = parse(LINEAR, **WEIGHTS)
    model.graph[0].domain, model.graph[0].op_type = DOMAIN, "CrossEntropy"
    with pytest.raises(ModelError, match=r"is of the domain `pkg\.ckplan`"):
        build_training_graph(model, loss="sum")


@pytest.mark.parametrize("shared", [False, True])
def test_a_loss_of_running_statistics(shared):
    second = "u, rm2, rv2 = BatchNormalization <training_mode = 1> (t, s, b, m, v)" if shared else "u = Identity(t)"
    text = f"""
    g (double[2,3,4] x) => (double loss) {{
        z = Mul(x, w)
        y, rm, rv = BatchNormalization <training_mode = 1> (z, s, b, m, v)
        t = Tanh(y)
        {second}
        p1 = Mul(u, q)
        p2 = Mul({"rm2" if shared else "rm"}, s)
        p3 = Mul({"rv2" if shared else "rv"}, rv)
        l1 = ReduceSum <keepdims = 0> (p1)
        l2 = ReduceSum <keepdims = 0> (p2)
        l3 = ReduceSum <keepdims = 0> (p3)
        loss = Sum(l1, l2, l3)
    }}
    """
    vectors = {name: values(3, seed=i, low=0.5, high=1.5) for i, name in enumerate("sbmv")}
    model = parse(text, w=values(1, 3, 1, seed=8), q=values(2, 3, 4, seed=9), **vectors)
    training = build_training_graph(model, loss="loss", wrt=["w", "s", "b"], training=True)
    assert len(training.updates) == 2
    check_training_graph(training, {"x": values(2, 3, 4)})
