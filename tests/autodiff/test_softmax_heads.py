"""Losses with label smoothing, z-loss and the like: whole and in chunks, the gradients, the bits, what stays whole."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.errors import UsageError
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, reference, values
from tests.autodiff.softmax_heads import CLASSES, FEATURES, LABELS, LAYERS, LOSSES, SAMPLES, X, head

FEEDS = {"x": X, "labels": LABELS}
SINGLE = {"x": X.astype(np.float32), "labels": LABELS}
FIXED = {"smoothed_weighted": {"no_grad": ["classes", "row_of"]}}
"""Options of losses whose weights of classes look like parameters."""


def largest(training: TrainingGraph) -> int:
    """Elements of the largest value that a node makes, bodies included."""
    return max(
        math.prod(value.shape.numpy())
        for node in ir.traversal.RecursiveGraphIterator(training.model.graph)
        for value in node.outputs
        if value.shape is not None and value.shape.is_static()
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("chunks", ["off", "loss=3", "loss=3x2"])
def test_gradients_agree_with_finite_differences(loss: str, chunks: str) -> None:
    training = build_training_graph(head("gemm", loss), chunks=chunks, **FIXED.get(loss, {}))
    check_training_graph(training, FEEDS)
    assert any("in 3 pieces" in note for note in training.notes) == (chunks != "off")
    assert (largest(training) < SAMPLES * CLASSES) == (chunks != "off")


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("loss", ["both", "smoothed_weighted", "penalised_single"])
@pytest.mark.parametrize("chunks", ["off", "loss=2", "loss=2x2"])
def test_layers(layer: str, loss: str, chunks: str) -> None:
    check_training_graph(build_training_graph(head(layer, loss), chunks=chunks, **FIXED.get(loss, {})), FEEDS)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("passes", ["", "x2"])
def test_what_belongs_to_a_sample_is_equal_to_the_bit(layer: str, loss: str, passes: str) -> None:
    found = []
    for chunks in ("off", f"loss=3{passes}"):
        model = head(layer, loss, "float")
        training = build_training_graph(model, chunks=chunks, retain_grad=["h"], **FIXED.get(loss, {}))
        found.append(onnxruntime_run(training.model, SINGLE))
    whole, cut = found
    assert whole.keys() == cut.keys()
    for name in ("loss", "h_grad", "v_grad"):
        assert np.array_equal(whole[name], cut[name])
    for name in whole:
        np.testing.assert_allclose(whole[name], cut[name], rtol=2e-6, atol=5e-7)


@pytest.mark.parametrize("wrt", ["x", "w", "b"])
@pytest.mark.parametrize("chunks", ["off", "loss=2", "loss=2x2"])
def test_single_gradients(wrt: str, chunks: str) -> None:
    check_training_graph(build_training_graph(head("gemm", "both"), chunks=chunks, wrt=[wrt]), FEEDS)


@pytest.mark.parametrize("chunks", ["off", "loss=3", "loss=3x2"])
def test_what_losses_are_weighed_by_may_be_trained(chunks: str) -> None:
    training = build_training_graph(head("tied", "penalised_single"), chunks=chunks, wrt=["w", "share_of", "few"])
    assert set(training.gradients) == {"w", "share_of", "few"}
    check_training_graph(training, FEEDS)


@pytest.mark.parametrize("chunks", ["off", "loss=3", "loss=3x2"])
@pytest.mark.parametrize(("smoothing", "ignored", "weighted"), [(0.1, -100, False), (0.2, 4, False), (0.1, 4, True)])
def test_losses_are_those_of_torch(chunks: str, smoothing: float, ignored: int, weighted: bool) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    arrays = {"w": rng.standard_normal((CLASSES, FEATURES)), "b": rng.standard_normal(CLASSES)}
    classes = rng.uniform(0.5, 1.5, CLASSES) if weighted else np.ones(CLASSES)
    labels = LABELS.copy()
    if ignored < 0:
        labels[2] = ignored
    w, b, x = (torch.tensor(array, requires_grad=True) for array in (arrays["w"], arrays["b"], X))
    logits = x @ w.T + b
    fit = torch.nn.functional.cross_entropy(
        logits,
        torch.tensor(labels),
        torch.tensor(classes) if weighted else None,
        ignore_index=ignored,
        label_smoothing=smoothing,
    )
    loss = fit + 1e-2 * (torch.logsumexp(logits, -1) ** 2).mean()
    loss.backward()
    text = f"""
        g (double[{SAMPLES},{FEATURES}] x, int64[{SAMPLES}] labels) => (double[] loss) {{
            logits = Gemm<transB=1>(x, w, b) chances = LogSoftmax<axis=1>(logits)
            ignored = Equal(labels, ignore) counted = Not(ignored) safe = Where(counted, labels, first)
            column = Unsqueeze(safe, one) gathered = GatherElements<axis=1>(chances, column)
            picked = Squeeze(gathered, one) chosen = Gather(classes, safe) own = Where(counted, chosen, nothing)
            weighed = Mul(picked, own) count = ReduceSum<keepdims=0>(own) added = ReduceSum<keepdims=0>(weighed)
            row = Unsqueeze(classes, axis) products = Mul(chances, row) sums = ReduceSum<keepdims=0>(products, one)
            smooth = Where(ignored, nothing, sums) total = ReduceSum<keepdims=0>(smooth)
            large = Mul(added, many) small = Mul(total, few) both = Add(large, small) mean = Div(both, count)
            normaliser = ReduceLogSumExp<keepdims=0>(logits, one) squares = Mul(normaliser, normaliser)
            square = ReduceMean<keepdims=0>(squares) penalty = Mul(square, little) loss = Sub(penalty, mean)
        }}
    """
    numbers = {"many": 1 - smoothing, "few": smoothing / CLASSES, "little": 1e-2, "nothing": 0.0}
    indices = {"one": np.array([1]), "axis": np.array([0]), "ignore": np.asarray(ignored), "first": np.asarray(0)}
    model = parse(text, **arrays, classes=classes, **{k: np.asarray(v) for k, v in numbers.items()}, **indices)
    training = build_training_graph(model, chunks=chunks, wrt=["w", "b", "x"])
    found = reference(training.model, {"x": X, "labels": labels})
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-12)
    for name, expected in (("w", w), ("b", b), ("x", x)):
        np.testing.assert_allclose(found[f"{name}_grad"], expected.grad.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("chunks", ["loss=3", "loss=3x2"])
@pytest.mark.parametrize("scale", [8.0, "input"])
def test_a_scaled_loss_has_the_same_gradients(chunks: str, scale: float | str) -> None:
    plain = build_training_graph(head("tied", "both", "float"), chunks=chunks)
    scaled = build_training_graph(head("tied", "both", "float"), chunks=chunks, loss_scale=scale)
    given = {"loss_scale": np.asarray(8, np.float32)} if scale == "input" else {}
    expected, found = onnxruntime_run(plain.model, SINGLE), onnxruntime_run(scaled.model, {**SINGLE, **given})
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("chunks", ["off", "loss=3", "loss=3x2"])
@pytest.mark.parametrize("more", ["", "twice = Add(penalty, fit)", "twice = Mul(fit, fit)"])
def test_several_losses(chunks: str, more: str) -> None:
    """A fit and a penalty that are losses of their own, the fit being read further on."""
    text = LOSSES["penalised"].replace("loss = Add(fit, penalty)", more or "twice = Neg(fit)")
    model = parse(
        f"g (double[{SAMPLES},{FEATURES}] x, int64[{SAMPLES}] labels) => (double fit, double penalty, double twice) "
        f"{{ logits = MatMul(x, w) {text} }}",
        w=values(FEATURES, CLASSES, seed=2),
        last=np.array([-1]),
        two=np.asarray(2.0),
        few=np.asarray(0.25),
    )
    losses = ["fit", "penalty", *(["twice"] if more else [])]
    if "Mul" in more and chunks != "off":  # what the fit passes back depends on it
        with pytest.raises(UsageError, match="'logits' stays whole: what its samples pass back is known"):
            build_training_graph(model, loss=losses, chunks=chunks)
        return
    training = build_training_graph(model, loss=losses, chunks=chunks)
    names = [output.name for output in training.model.graph.outputs]
    assert names[: len(losses) + 1] == ["total_loss", *losses]
    found = reference(training.model, FEEDS)
    np.testing.assert_allclose(found["total_loss"], sum(found[name] for name in losses))
    check_training_graph(training, FEEDS)


@pytest.mark.parametrize("chunks", ["off", "loss=3", "loss=3x2"])
@pytest.mark.parametrize(
    "after", ["loss = Mul(mean, mean)", "aux = ReduceSumSquare<keepdims=0>(h) loss = Add(mean, aux)"]
)
def test_whatever_becomes_of_the_loss(chunks: str, after: str) -> None:
    text = LOSSES["both"].replace("loss = Add(fit, penalty)", f"mean = Add(fit, penalty) {after}")
    check_training_graph(build_training_graph(head("tied", text), chunks=chunks), FEEDS)


@pytest.mark.parametrize("chunks", ["off", "loss=3", "loss=3x2"])
def test_a_gradient_that_is_given(chunks: str) -> None:
    training = build_training_graph(head("gemm", "both"), chunks=chunks, grad_ys=["loss"])
    plain = reference(build_training_graph(head("gemm", "both")).model, FEEDS)
    found = reference(training.model, {**FEEDS, "loss_given_grad": np.asarray(3.0)})
    for name in training.gradients.values():
        np.testing.assert_allclose(found[name], 3 * plain[name], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("chunks", ["loss=3", "loss=3x2"])
def test_a_table_that_is_looked_up_as_well(chunks: str) -> None:
    model = parse(
        f"g (int64[{SAMPLES}] tokens, int64[{SAMPLES}] labels) => (double[] loss) "
        f"{{ h = Gather(w, tokens) t = Transpose<perm=[1,0]>(w) logits = MatMul(h, t) {LOSSES['both']} }}",
        w=values(CLASSES, 64, seed=2) / 8,
        last=np.array([-1]),
        many=np.asarray(0.75),
        few=np.asarray(0.25),
        two=np.asarray(2.0),
    )
    feeds = {"tokens": np.asarray([0, 4, 4, -1, 7, 0]), "labels": LABELS}
    whole = onnxruntime_run(build_training_graph(model).model, feeds)
    cut = onnxruntime_run(build_training_graph(model, chunks=chunks).model, feeds)
    for name in whole:
        np.testing.assert_allclose(cut[name], whole[name], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("chunks", ["off", "loss=3", "loss=3x2"])
def test_labels_that_are_no_class_pick_nothing(chunks: str) -> None:
    """A comparison with all classes finds none, and such a sample passes nothing back."""
    labels = np.asarray([0, 4, -1, CLASSES, 13, 3])
    training = build_training_graph(head("tied", "compared"), chunks=chunks, retain_grad=["h"])
    found = reference(training.model, {"x": X, "labels": labels})
    rows = found["h_grad"].any(axis=1)
    assert list(rows) == [True, True, False, False, True, True]
    check_training_graph(training, {"x": X, "labels": labels})


@pytest.mark.parametrize(
    "reader",
    [
        "powers = Exp(chances) entropy = ReduceSum<keepdims=0>(powers) loss = Add(mean, entropy)",
        "ones = ReduceSum(chances, zeros) more = ReduceSumSquare<keepdims=0>(ones) loss = Add(mean, more)",
    ],
)
def test_logits_of_which_more_is_read_stay_whole(reader: str) -> None:
    text = f"{LOSSES['smoothed'].replace('loss = ', 'mean = ')} {reader}"
    check_training_graph(build_training_graph(head("tied", text)), FEEDS)
    with pytest.raises(UsageError, match="nothing to cut"):
        build_training_graph(head("tied", text), chunks=3)


@pytest.mark.parametrize("option", ["retain_grad", "no_grad"])
def test_logarithms_that_are_asked_for_stay(option: str) -> None:
    kept = build_training_graph(head("gemm", "both"), **{option: ["chances"]})
    assert list(kept.retained) == (["chances"] if option == "retain_grad" else [])
    with pytest.raises(UsageError, match="nothing to cut"):
        build_training_graph(head("gemm", "both"), chunks=3, **{option: ["chances"]})


def test_gradients_of_what_is_read_of_a_row() -> None:
    training = build_training_graph(head("gemm", "both"), chunks=3, retain_grad=["squares"])
    np.testing.assert_allclose(reference(training.model, FEEDS)["squares_grad"], 0.25 / SAMPLES, rtol=1e-12)


def test_a_head_that_cannot_be_cut_says_why() -> None:
    text = LOSSES["penalised_single"].replace("weighed = Mul(both, share_of)", "weighed = Mul(both, both)")
    model = head("gemm", text)
    with pytest.raises(UsageError, match="the loss head of 'logits' stays whole"):
        build_training_graph(model, chunks="loss=3")
    whole = build_training_graph(model)
    assert not [region for region in whole.regions if region.kind == "loss"]
    check_training_graph(whole, FEEDS)


def test_a_head_is_as_lean_whole_as_a_plain_one() -> None:
    """The chances and the gradient of the logits are in the buffer of the logits: no other node makes as much."""
    training = build_training_graph(head("tied", "both"))
    makers = [node.op_type for node in training.model.graph for value in node.outputs if value.shape == (6, CLASSES)]
    assert sorted(makers) == ["LogSoftmax", "MatMul", "ScatterElements", "Softmax"]


def test_a_row_of_which_nothing_is_left_has_a_normaliser_of_minus_infinity() -> None:
    hidden = np.zeros((3, 40), bool)
    hidden[1], hidden[2, :20] = True, True
    model = parse(
        "g (float[3] x) => (float loss) { column = Unsqueeze(x, last) scores = Mul(w, column)"
        " z = Where(hidden, none, scores) normaliser = ReduceLogSumExp<keepdims=0>(z, last)"
        " chances = Exp(normaliser) loss = ReduceSum<keepdims=0>(chances) }",
        w=values(3, 40, seed=1).astype(np.float32),
        hidden=hidden,
        none=np.asarray(-np.inf, np.float32),
        last=np.asarray([1]),
    )
    training = build_training_graph(model, wrt=["w"])
    found = onnxruntime_run(training.model, {"x": np.ones(3, np.float32)})
    chances = np.where(hidden, 0, np.exp(values(3, 40, seed=1)))
    np.testing.assert_allclose(found["loss"], chances.sum(), rtol=1e-6)
    np.testing.assert_allclose(found["w_grad"], chances, rtol=1e-5)
