"""The losses that can be put behind an output."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan.autodiff import build_training_graph
from ckplan.errors import ModelError, UsageError
from ckplan.runtime.executing.executed import expected_timeline
from tests.autodiff.gradcheck import (
    check_training_graph,
    onnxruntime_run,
    parse,
    reference,
    to_dtype,
    values,
)

LINEAR = "g (double[6,3] x) => (double[6,5] y) { y = MatMul(x, w) }"
X = values(6, 3, seed=8)
W = values(3, 5, seed=9)
Y = X @ W
LABELS = np.asarray([0, 4, 2, 2, 1, 3])


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def cross_entropy(logits: np.ndarray, labels: np.ndarray, axis: int) -> float:
    chosen = np.take_along_axis(log_softmax(logits, axis), np.expand_dims(labels, axis), axis)
    return float(-chosen.mean())


def test_scalar_output_is_the_default():
    training = build_training_graph(
        parse("g (double[6,3] x) => (double[6,5] y, double s) { y = MatMul(x, w) s = ReduceMax<keepdims=0>(y) }", w=W)
    )
    assert training.loss == "s"
    assert training.description == "the model's output 's'"
    assert check_training_graph(training, {"x": X}) == pytest.approx((X @ W).max())


@pytest.mark.parametrize(
    "scalar",
    [
        pytest.param("s = Exp(temperature)", id="a temperature, which no input reaches"),
        pytest.param("s = ReduceMax<keepdims=0>(x)", id="a measure of the input, which no parameter reaches"),
        pytest.param("i = ArgMax(y) f = Cast<to = 11>(i) s = ReduceMean<keepdims=0>(f)", id="an accuracy"),
    ],
)
def test_a_scalar_that_learns_nothing_from_data_is_not_the_default(scalar):
    text = f"g (double[6,3] x) => (double[6,5] y, double s) {{ y = MatMul(x, w) {scalar} }}"
    training = build_training_graph(parse(text, w=W, temperature=np.array(2.0)))
    assert training.description.startswith("cross-entropy of 'y'")
    assert list(training.gradients) == ["w"]
    check_training_graph(training, {"x": X, "labels": LABELS})


def test_numbers_in_a_formula_teach_nothing():
    """A perplexity of what was chosen, beside the loss of a codebook, as in VQ-VAEs."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[6,3] x) => (float cost, float perplexity) {
        y = MatMul(x, w) cost = ReduceSumSquare<keepdims=0>(y)
        i = ArgMax(y) f = Cast<to = 1>(i) m = ReduceMean<keepdims=0>(f)
        tiny = Constant<value_float = 1e-10>() a = Add(m, tiny) b = Log(a) perplexity = Exp(b)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(W.astype(np.float32), "w"))
    assert ckplan.open_model(model).training.loss == "cost"


def test_the_one_scalar_that_learns_from_data_is_the_default():
    text = """g (double[6,3] x) => (double[6,5] y, double s, double t) {
        y = MatMul(x, w)
        s = Exp(temperature)
        t = ReduceMax<keepdims=0>(y)
    }"""
    assert build_training_graph(parse(text, w=W, temperature=np.array(2.0))).loss == "t"


@pytest.mark.parametrize(
    ("nodes", "is_loss"),
    [
        ("t = ReduceMean<keepdims=0>(y) out = Reshape(t, one)", True),  # as Paddle writes it
        ("r = Reshape(y, all) out = ReduceSum<keepdims=1>(r)", True),
        ("r = Reshape(y, all) out = ReduceSum<keepdims=1>(r, zero)", False),
    ],
)
def test_one_number_made_of_all_elements_is_a_loss_also_in_a_vector(nodes, is_loss):
    """A prediction for a graph or a sequence has one element as well, and is made of some by name."""
    arrays = {"one": [1], "all": [30], "zero": [0]}
    read = {name: np.array(array) for name, array in arrays.items() if f"{name})" in nodes}
    text = f"g (double[6,3] x) => (double[1] out) {{ y = MatMul(x, w) {nodes} }}"
    training = build_training_graph(parse(text, w=W, **read))
    assert (training.description == "the model's output 'out'") is is_loss


def test_a_sequence_is_no_loss_and_a_tensor_beside_it_is():
    text = """g (double[6,3] x) => (seq(double[6,1]) parts, double[6,5] z) {
        y = MatMul(x, w)
        parts = SplitToSequence<axis = 1>(y)
        z = Tanh(y)
    }"""
    training = build_training_graph(parse(text, w=W))
    assert training.description.startswith("mean squared error of 'z'")
    check_training_graph(training, {"x": X, "target": Y})
    with pytest.raises(ModelError, match=r"no floating-point output.*cut the model before its sequences"):
        build_training_graph(parse(text.replace(", double[6,5] z", ""), w=W))


@pytest.mark.parametrize(
    ("first", "second", "expected", "said"),
    [
        ("other", "the_loss", Y.min(), "the model's output 'the_loss'"),
        ("total_loss", "loss", Y.min(), "the model's output 'loss'"),
        ("loss_box", "Total_loss", Y.min(), "the model's output 'Total_loss'"),
        ("loss1", "loss2", Y.max() + Y.min(), "the total of the model's output 'loss1'; the model's output 'loss2'"),
    ],
)
def test_what_is_called_a_loss_is_the_default(first, second, expected, said):
    text = """g (double[6,3] x) => (double[6,5] y, double first, double second) {
        y = MatMul(x, w)
        first = ReduceMax <keepdims = 0> (y)
        second = ReduceMin <keepdims = 0> (y)
    }"""
    training = build_training_graph(parse(text.replace("first", first).replace("second", second), w=W))
    assert training.description == said
    assert check_training_graph(training, {"x": X}) == pytest.approx(expected)


@pytest.mark.parametrize("loss", [None, "cross-entropy", "mse", "mean:y"])
def test_a_loss_of_nothing_is_refused(loss):
    """Its mean is no number, and labels of no samples were taken for labels of a free batch."""
    with pytest.raises(UsageError, match=r"output `y` of shape 0x5 has no elements.*at least 1 with --dim or --shape"):
        build_training_graph(parse(LINEAR.replace("6,", "0,"), w=W), loss=loss)


def test_a_loss_for_each_sample_is_averaged():
    text = "g (double[6,3] x) => (double[6,5] y, double[6,5] loss) { y = MatMul(x, w) loss = Mul(y, y) }"
    training = build_training_graph(parse(text, w=W))
    assert training.description == "mean of 'loss'"
    assert check_training_graph(training, {"x": X}) == pytest.approx(np.square(Y).mean())


def test_the_default_is_put_behind_an_output_that_depends_on_weights():
    text = "g (double[6,5] x) => (double[6,5] x, double[6,5] z, double[6,3] y) { z = Tanh(x) y = MatMul(x, w) }"
    assert "cross-entropy of 'y'" in build_training_graph(parse(text, w=values(5, 3))).description


@pytest.mark.parametrize(
    ("spec", "expected"), [("sum", (X @ W).sum()), ("mean", (X @ W).mean()), ("mean:y", (X @ W).mean())]
)
def test_sum_and_mean(spec, expected):
    training = build_training_graph(parse(LINEAR, w=W), loss=spec)
    assert check_training_graph(training, {"x": X}) == pytest.approx(expected)
    assert training.description == f"{spec.partition(':')[0]} of 'y'"


@pytest.mark.parametrize("spec", ["mse", "mse:y"])
def test_mean_squared_error(spec):
    training = build_training_graph(parse(LINEAR, w=W), loss=spec)
    target = values(6, 5, seed=3)
    loss = check_training_graph(training, {"x": X, "target": target})
    assert loss == pytest.approx(((X @ W - target) ** 2).mean())
    assert training.description == "mean squared error of 'y' against input 'target'"


def test_mean_squared_error_of_a_scalar():
    model = parse("g (double[6,3] x) => (double s) { y = MatMul(x, w) s = ReduceSum<keepdims=0>(y) }", w=W)
    loss = check_training_graph(build_training_graph(model, loss="mse"), {"x": X, "target": np.asarray(2.0)})
    assert loss == pytest.approx(((X @ W).sum() - 2) ** 2)


@pytest.mark.parametrize("spec", ["cross-entropy", "cross-entropy:y"])
def test_cross_entropy(spec):
    training = build_training_graph(parse(LINEAR, w=W), loss=spec)
    loss = check_training_graph(training, {"x": X, "labels": LABELS})
    assert loss == pytest.approx(cross_entropy(X @ W, LABELS, 1))
    assert training.description == "cross-entropy of 'y' against input 'labels'"
    assert [value.name for value in training.model.graph.inputs] == ["x", "labels", "w"]


@pytest.mark.parametrize(
    ("shape", "classes", "labels"),
    [
        ([5], 0, []),
        ([2, 5], 1, [2]),
        ([2, 3, 5], 2, [2, 3]),
        ([2, 5, 1, 1], 1, [2]),
        ([2, 5, 2, 3], 1, [2, 2, 3]),
        ([2, 5, 3, 1], 1, [2, 3]),
    ],
)
def test_cross_entropy_finds_the_classes(shape, classes, labels):
    dims = ",".join(map(str, shape))
    model = parse(f"g (double[{dims}] x) => (double[{dims}] y) {{ y = Mul(x, w) }}", w=values(*shape, seed=1))
    training = build_training_graph(model, loss="cross-entropy")
    given = np.random.default_rng(0).integers(0, 5, labels)
    x = values(*shape, seed=2)
    loss = check_training_graph(training, {"x": x, "labels": given})
    whole = np.delete(shape, classes)
    assert loss == pytest.approx(cross_entropy(x * values(*shape, seed=1), given.reshape(whole), classes))


@pytest.mark.parametrize("loss", [None, "cross-entropy"])
@pytest.mark.parametrize("name", ["y", "logits"])
@pytest.mark.parametrize(
    ("behind", "shape", "classes"),
    [
        ("Transpose <perm = [0, 2, 3, 1]> (h)", (2, 4, 4, 5), 3),
        ("Reshape(h, whole)", (2, 5, 16), 1),
        ("Mul(h, half)", (2, 5, 4, 4), 1),
    ],
)
def test_the_classes_are_where_the_last_layer_makes_them(behind, shape, classes, name, loss):
    text = (
        f"g (double[2,3,4,4] x) => (double[{','.join(map(str, shape))}] {name}) {{ h = Conv(x, w) {name} = {behind} }}"
    )
    x, w = values(2, 3, 4, 4), values(5, 3, 1, 1, seed=1)
    training = build_training_graph(parse(text, w=w, whole=np.array([2, 5, 16]), half=np.array(0.5)), loss=loss)
    given = np.random.default_rng(0).integers(0, 5, np.delete(shape, classes))
    found = check_training_graph(training, {"x": x, "labels": given})
    scores = np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0]) * (0.5 if "half" in behind else 1)
    whole = (scores.transpose(0, 2, 3, 1) if classes == 3 else scores).reshape(shape)
    assert found == pytest.approx(cross_entropy(whole, given, classes))


@pytest.mark.parametrize(
    "tail",
    [
        "p = Softmax(y)",
        "p = Softmax <axis = 1> (y)",
        "p = LogSoftmax(y)",
        "q = Softmax(y) p = Reshape(q, back)",
        "f = Flatten(y) q = Softmax(f) p = Reshape(q, back)",
    ],
)
def test_a_trailing_softmax_makes_cross_entropy_of_its_logits_the_default(tail):
    shape = "6,5,1,1" if "back" in tail else "6,5"
    model = parse(
        f"g (double[6,3] x) => (double[{shape}] p) {{ y = MatMul(x, w) {tail} }}", w=W, back=np.asarray([6, 5, 1, 1])
    )
    training = build_training_graph(model)
    loss = check_training_graph(training, {"x": X, "labels": LABELS})
    assert loss == pytest.approx(cross_entropy(X @ W, LABELS, 1))
    assert "of output 'p' against input 'labels'" in training.description
    forward = [n.op_type for n in training.model.graph if n.metadata_props["pkg.ckplan.phase"] == "forward"]
    assert forward.count("LogSoftmax") == 1  # the one of the loss
    assert "Softmax" not in forward


def test_softmax_over_the_channels_of_an_image():
    model = parse(
        "g (double[2,4,5] x) => (double[2,4,5] p) { y = Mul(x, w) p = Softmax <axis = 1> (y) }", w=values(2, 4, 5)
    )
    training = build_training_graph(model)
    labels = np.random.default_rng(0).integers(0, 4, (2, 5))
    x = values(2, 4, 5, seed=2)
    loss = check_training_graph(training, {"x": x, "labels": labels})
    assert loss == pytest.approx(cross_entropy(x * values(2, 4, 5), labels, 1))


def test_cross_entropy_keeps_one_tensor_of_the_logits_size():
    training = build_training_graph(parse(LINEAR, w=W), loss="cross-entropy")
    forward = [n for n in training.model.graph if n.metadata_props["pkg.ckplan.phase"] == "forward"]
    large = [n.op_type for n in forward if n.outputs[0].shape == [6, 5]]
    assert large == ["MatMul", "LogSoftmax"]  # computed in the buffer of the product, which nothing else reads
    (logits,) = (n.outputs[0] for n in forward if n.op_type == "MatMul")
    assert len(logits.uses()) == 1


def test_gradient_of_cross_entropy_is_made_in_the_buffer_of_the_logits():
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {LINEAR.replace("double", "float")}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(W.astype(np.float32), "w"))
    training = build_training_graph(ir.from_proto(model), loss="cross-entropy")
    backward = [n for n in training.model.graph if n.metadata_props["pkg.ckplan.phase"] == "backward"]
    # Softmax and ScatterElements work in place; the factor 1/6 of the mean is left to the product.
    assert [n.op_type for n in backward if n.outputs[0].shape == [6, 5]] == ["Softmax", "ScatterElements"]
    (product,) = (n for n in backward if n.op_type == "Gemm")
    assert product.attributes.get_float("alpha", 1.0) == pytest.approx(1 / 6)


def test_a_factor_left_over_reaches_parameters_and_sums():
    text = """g (double[6,3] x) => (double[6,5] y) {
        a = MatMul(x, w)
        b = Add(a, bias)
        c = Reshape(b, shape)
        d = Add(c, offset)
        e = Mul(d, d)
        s = Add(d, e)
        y = Reshape(s, back)
    }"""
    given = {"bias": values(5, seed=1), "offset": values(5, 6, seed=2)}
    shapes = {"shape": np.asarray([5, 6]), "back": np.asarray([6, 5])}
    for loss, feed in (("mse", {"target": values(6, 5, seed=3)}), ("cross-entropy", {"labels": LABELS})):
        training = build_training_graph(parse(text, w=W, **given, **shapes), loss=loss)
        assert set(training.gradients) == {"w", "bias", "offset"}
        check_training_graph(training, {"x": X, **feed})


def test_cross_entropy_of_large_logits_is_exact():
    training = build_training_graph(parse(LINEAR, w=W * 1000), loss="cross-entropy")
    loss = check_training_graph(training, {"x": X, "labels": LABELS}, rtol=1e-6)
    assert np.isfinite(loss)
    assert loss > 100


def test_names_of_new_inputs_are_unique():
    model = parse(
        "g (double[6,3] labels, double[6,3] loss) => (double[6,5] y) { z = Add(labels, loss) y = MatMul(z, w) }", w=W
    )
    training = build_training_graph(model, loss="cross-entropy")
    assert [value.name for value in training.model.graph.inputs] == ["labels", "loss", "labels_0", "w"]
    assert training.loss == "loss_0"
    feeds = {"labels": X, "loss": X, "labels_0": LABELS}
    assert check_training_graph(training, feeds) == pytest.approx(cross_entropy(2 * X @ W, LABELS, 1))


@pytest.mark.parametrize("kind", ["cross-entropy", "mse", "sum", "mean"])
def test_onnxruntime_agrees(kind):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {LINEAR}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    double = build_training_graph(ir.from_proto(model), loss=kind)
    single = build_training_graph(ir.from_proto(to_dtype(model, np.float32)), loss=kind)
    feeds = {"x": X, "labels": LABELS, "target": values(6, 5, seed=3)}
    feeds = {value.name: feeds[value.name] for value in double.model.graph.inputs if value.name != "w"}
    check_training_graph(double, feeds)
    expected = reference(double.model, feeds)
    ran = onnxruntime_run(
        single.model, {name: a.astype(np.float32) if a.dtype == np.float64 else a for name, a in feeds.items()}
    )
    for name, array in expected.items():
        np.testing.assert_allclose(ran[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("crossentropy", "did you mean `cross-entropy`?"),
        ("cross-entropy:z", "no output `z`"),
        ("nonsense", "choose one of cross-entropy, mse, sum, mean, sum-of-squares, or of the outputs `y`"),
        ("y", "reduce it with --loss mean:y"),
    ],
)
def test_a_loss_that_does_not_exist(spec, message):
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        build_training_graph(parse(LINEAR, w=W), loss=spec)


def test_integer_outputs_cannot_be_a_loss():
    text = "g (double[6,3] x) => (double[6,5] y, int64[6,1] i) { y = MatMul(x, w) i = ArgMax <axis = 1> (y) }"
    with pytest.raises(UsageError, match="`i` is not floating point"):
        build_training_graph(parse(text, w=W), loss="mean:i")
    only = "g (double[6,3] x) => (bool[6,5] i) { y = MatMul(x, w) i = Less(y, zero) }"
    with pytest.raises(ModelError, match="no floating-point output"):
        build_training_graph(parse(only, w=W, zero=np.zeros(1)))


def test_a_model_that_gives_out_quantised_numbers_is_to_be_trained_as_it_was_before():
    text = """g (float[6,3] x) => (uint8[6,5] i) <float step = {0.1}, uint8 zero = {0}> {
        y = MatMul(x, w)
        i = QuantizeLinear(y, step, zero)
    }"""
    with pytest.raises(ModelError, match="train the model as it was before quantisation"):
        build_training_graph(parse(text, w=W.astype(np.float32)))


@pytest.mark.parametrize("loss", [None, "cross-entropy"])
@pytest.mark.parametrize(
    ("nodes", "logits"),
    [
        ("i = ArgMax <axis = 1> (y)", "y"),
        ("p = Softmax <axis = 1> (y) i = ArgMax <axis = 1> (p)", "y"),
        ("p = Softmax(y) m = ReduceMax(p, one) c = Less(m, tenth) a = ArgMax <axis = 1> (p) i = Where(c, one, a)", "y"),
    ],
    ids=["scores", "softmax", "a choice that may be none"],
)
def test_scores_that_the_one_output_is_chosen_from(nodes, logits, loss):
    text = f"g (double[6,3] x) => (int64[6,1] i) {{ y = MatMul(x, w) {nodes} }}"
    training = build_training_graph(parse(text, w=W, one=np.array([1]), tenth=np.array([0.1])), loss=loss)
    assert training.description.startswith("cross-entropy of ")
    assert f"'{logits}'" in training.description
    assert "chooses one of 5" in training.description
    check_training_graph(training, {"x": values(6, 3, seed=8), "labels": np.array([0, 1, 2, 3, 4, 0])})


def test_default_loss_behind_a_softmax_of_one_sample():
    """Its axis is 0, which is an axis nevertheless."""
    model = "g (double[3] x) => (double[5] y) { z = MatMul(x, w) y = Softmax(z) }"
    training = build_training_graph(parse(model, w=W))
    said = "cross-entropy of the logits 'z' of output 'y' against input 'labels', since it ends in a softmax"
    assert training.description == said
    found = check_training_graph(training, {"x": X[0], "labels": np.asarray(3)})
    assert found == pytest.approx(-log_softmax(X[0] @ W, 0)[3])


@pytest.mark.parametrize("spec", ["cross-entropy", "mse", "mean", "sum", "sum-of-squares"])
@pytest.mark.parametrize("samples", [2**17, 50_021])
def test_a_long_loss_is_as_exact_as_its_type(spec, samples):
    """Numbers are nearly equal at the beginning of a training: added up one after the other they are 1e-4 off."""
    text = f"g (float[{samples},1] x) => (float[{samples},3] y) {{ y = MatMul(x, w) }}"
    w = np.asarray([[3.3, 3.31, 3.299]], np.float32)
    training = build_training_graph(parse(text, w=w), loss=spec)
    x = np.ones((samples, 1), np.float32)
    labels = np.zeros(samples, np.int64)
    feeds = {"x": x, "labels": labels, "target": np.zeros((samples, 3), np.float32)}
    found = onnxruntime_run(
        training.model, {value.name: feeds[value.name] for value in training.model.graph.inputs if value.name in feeds}
    )
    y = (w * np.ones((samples, 1))).astype(np.float64)
    expected = {
        "cross-entropy": lambda: cross_entropy(y, labels, 1),
        "mse": lambda: (y**2).mean(),
        "mean": lambda: y.mean(),
        "sum": lambda: y.sum(),
        "sum-of-squares": lambda: (y**2).sum(),
    }[spec]()
    assert float(found[training.loss]) == pytest.approx(expected, rel=1e-6)


def test_cross_entropy_of_large_logits_over_another_axis():
    """1e4 in all of them changes nothing: neither loss nor gradient goes through a difference of such numbers."""
    logits = (values(2, 40, 9, low=-6, high=6) + 1e4).astype(np.float32)
    text = "g (float[2,40,9] zero, int64[2,9] t) => (float l) { z = Add(zero, w) l = SoftmaxCrossEntropyLoss(z, t) }"
    training = build_training_graph(parse(text, w=logits), loss="l")
    labels = np.random.default_rng(0).integers(0, 40, (2, 9))
    found = onnxruntime_run(training.model, {"zero": np.zeros_like(logits), "t": labels})
    exact = logits.astype(np.float64) - 1e4
    assert float(found["l"]) == pytest.approx(cross_entropy(exact, labels, 1), rel=3e-7)
    chances = np.exp(log_softmax(exact, 1))
    np.put_along_axis(chances, labels[:, None], np.take_along_axis(chances, labels[:, None], 1) - 1, 1)
    np.testing.assert_allclose(found["w_grad"], chances / 18, rtol=3e-6, atol=1e-9)


def test_large_logits_have_one_buffer_in_a_file_without_a_plan() -> None:
    samples, classes = 64, 4096
    text = f"g (float[{samples},4] x) => (float[{samples},{classes}] y) {{ y = MatMul(x, w) }}"
    model = parse(text, w=values(4, classes).astype(np.float32))
    training = build_training_graph(model, loss="cross-entropy", wrt=["w"])
    assert expected_timeline(training.model).peak_activations < 1.1 * 4 * samples * classes
