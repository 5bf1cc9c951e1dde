"""Attention in pieces of its queries or heads: the gradients, the bits, the memory, and what is left as it is."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

import ckplan
from ckplan.autodiff import build_training_graph
from ckplan.errors import UsageError
from ckplan.pipeline import write_plan
from ckplan.planner.order import best_order
from ckplan.planner.plan import make_plan
from tests.autodiff.gradcheck import check_same_results, check_training_graph, onnxruntime_run, parse, values

HEADS, QUERIES, KEYS, DEPTH = 2, 6, 5, 3
LOW = np.asarray(-1e4)
CAUSAL = np.tril(np.ones((QUERIES, KEYS), dtype=bool))

FORMS = {
    "plain": ("p = Softmax<axis=-1>(s)", {}),
    "scaled": ("m = Mul(s, scale) p = Softmax<axis=-1>(m)", {"scale": np.asarray(0.7)}),
    "divided": ("m = Div(s, scale) p = Softmax<axis=3>(m)", {"scale": np.asarray(1.7)}),
    "added": ("m = Add(s, mask) p = Softmax<axis=-1>(m)", {"mask": np.where(CAUSAL, 0.0, LOW)}),
    "padding": ("m = Add(mask, s) p = Softmax<axis=-1>(m)", {"mask": np.where(CAUSAL[3:4], 0.0, LOW)}),
    "of each head": (
        "m = Add(s, mask) p = Softmax<axis=-1>(m)",
        {"mask": np.where(np.stack([CAUSAL, ~CAUSAL | CAUSAL[:1]])[None], 0.0, LOW)},
    ),
    "chosen": ("m = Where(causal, s, low) p = Softmax<axis=-1>(m)", {"causal": CAUSAL, "low": LOW}),
    "without nan": (
        "m = Where(causal, s, low) r = Softmax<axis=-1>(m) n = IsNaN(r) p = Where(n, zero, r)",
        {"causal": CAUSAL, "low": LOW, "zero": np.asarray(0.0)},
    ),
    "capped": (
        "d = Div(s, cap) t = Tanh(d) u = Mul(t, cap) m = Add(u, mask) p = Softmax<axis=-1>(m)",
        {"cap": np.asarray(2.0), "mask": np.where(CAUSAL, 0.0, LOW)},
    ),
    "gated": ("t = Sigmoid(s) u = Sqrt(t) m = Mul(u, scale) p = Softmax<axis=-1>(m)", {"scale": np.asarray(3.0)}),
}
"""What stands between the products, as exporters write it."""

OF_A_BATCH = {
    "of each member": (
        "m = Add(s, mask) p = Softmax<axis=-1>(m)",
        {"mask": np.where(np.stack([CAUSAL, CAUSAL[::-1]])[:, None], 0.0, LOW)},
    ),
}
"""A mask that is another for each member of a batch of two."""

SHAPES = {
    "queries and keys": ((1, HEADS, QUERIES, DEPTH), (1, HEADS, DEPTH, KEYS), (1, HEADS, KEYS, 4)),
    "a batch": ((2, HEADS, QUERIES, DEPTH), (2, HEADS, DEPTH, KEYS), (2, HEADS, KEYS, 4)),
    "one head of keys": ((2, HEADS, QUERIES, DEPTH), (2, 1, DEPTH, KEYS), (2, 1, KEYS, 4)),
}

FROZEN = ("mask", "causal", "low", "scale", "cap", "zero")


def attention(form: str = "scaled", shapes: str = "queries and keys", dtype: type = np.float64) -> ir.Model:
    """An attention of parameters q, k and v; the loss weighs its results."""
    lines, constants = {**FORMS, **OF_A_BATCH}[form]
    kind = "double" if dtype is np.float64 else "float"
    numbers = {
        name: values(*shape, seed=seed) for seed, (name, shape) in enumerate(zip("qkv", SHAPES[shapes], strict=True))
    }
    numbers["weights"] = values(*SHAPES[shapes][0][:-1], 4, seed=7)
    arrays = {
        name: array if array.dtype == bool else array.astype(dtype) for name, array in {**numbers, **constants}.items()
    }
    return parse(
        f"g () => ({kind}[] loss) {{ s = MatMul(q, k) {lines} a = MatMul(p, v) b = Mul(a, weights) "
        "loss = ReduceSum<keepdims=0>(b) }",
        **arrays,
    )


def graph_of(model: ir.Model, chunks: int | str = "attention=3", **options: object) -> ckplan.autodiff.TrainingGraph:
    return build_training_graph(model, wrt=["q", "k", "v"], chunks=chunks, **options)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_agree_with_finite_differences(form: str, shapes: str) -> None:
    training = graph_of(attention(form, shapes))
    assert [node.op_type for node in training.model.graph].count("Scan") == 2
    assert training.notes[0].startswith(f"queries 0..{QUERIES - 1} in 3 pieces: '")
    same_as_whole(training, graph_of(attention(form, shapes), "off"))


def same_as_whole(cut: ckplan.autodiff.TrainingGraph, whole: ckplan.autodiff.TrainingGraph) -> None:
    """Hold the gradients without chunks against finite differences, and those with chunks against these."""
    check_training_graph(whole)
    check_same_results(cut, whole)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_heads_where_there_are_as_many(form: str, shapes: str) -> None:
    cut, whole = (graph_of(attention(form, shapes), chunks) for chunks in ("attention=2", "off"))
    apart = form != "of each head" and shapes != "one head of keys"
    assert cut.notes[0].startswith("heads 0.." if apart else "queries 0..5")
    same_as_whole(cut, whole)


@pytest.mark.parametrize(("pieces", "along"), [(2, "heads 0..3"), (4, "heads 0..3"), (3, "queries 0..5")])
def test_a_mask_for_each_member_of_the_batch(pieces: int, along: str) -> None:
    model = attention("of each member", "a batch")
    cut, whole = (graph_of(model, chunks) for chunks in (f"attention={pieces}", "off"))
    assert cut.notes[0].startswith(f"{along} in {pieces} pieces")
    same_as_whole(cut, whole)


@pytest.mark.parametrize("wrt", ["q", "k", "v"])
def test_single_gradients(wrt: str) -> None:
    cut, whole = (build_training_graph(attention("added"), wrt=[wrt], chunks=chunks) for chunks in (2, "off"))
    same_as_whole(cut, whole)


def test_nothing_of_queries_by_keys_exists_whole() -> None:
    graph = graph_of(attention("chosen")).model.graph
    sizes = [
        math.prod(value.shape.numpy())
        for node in ir.traversal.RecursiveGraphIterator(graph)
        for value in node.outputs
        if value.shape is not None and value.shape.is_static() and value.dtype == ir.DataType.DOUBLE
    ]
    assert max(sizes) < HEADS * QUERIES * KEYS


def self_attention(tokens: int) -> ir.Model:
    """One tensor that gives queries, keys and values; the keys by a view of the queries' own tensor."""
    return parse(
        f"g (float[2,{tokens},8] x) => (float[] loss) {{ h = MatMul(x, w) t = Transpose<perm=[0,2,1]>(h) "
        "s = MatMul(h, t) m = Mul(s, scale) p = Softmax<axis=-1>(m) a = MatMul(p, h) y = MatMul(a, o) "
        "loss = ReduceSumSquare<keepdims=0>(y) }",
        w=values(8, 8, seed=1).astype(np.float32),
        o=values(8, 8, seed=2).astype(np.float32),
        scale=np.asarray(0.3, np.float32),
    )


def test_the_file_takes_what_was_promised() -> None:
    planned = ckplan.rewrite(self_attention(256), strategy="memory", chunks="attention=4")
    found = ckplan.measure(planned)
    assert found.peak_activations == planned.after.peak_activations
    assert found.heap is not None
    assert found.heap.activations == pytest.approx(planned.after.peak_activations, abs=2**15)


def test_memory_grows_with_the_tokens() -> None:
    peaks = [
        ckplan.rewrite(
            self_attention(tokens), strategy="memory", chunks=f"attention={tokens // 16}"
        ).after.peak_activations
        for tokens in (256, 512, 1024)
    ]
    assert peaks[1] < 2.2 * peaks[0]
    assert peaks[2] < 2.2 * peaks[1]


def test_what_belongs_to_a_query_is_equal_to_the_bit() -> None:
    feeds = {"x": values(2, 64, 8, seed=3).astype(np.float32)}
    whole, cut = (
        onnxruntime_run(build_training_graph(self_attention(64), retain_grad=["a"], chunks=chunks).model, feeds)
        for chunks in ("off", "attention=4")
    )
    for name in ("loss", "o_grad", "a_grad"):
        assert np.array_equal(whole[name], cut[name])
    np.testing.assert_allclose(cut["w_grad"], whole["w_grad"], rtol=0, atol=1e-6 * np.abs(whole["w_grad"]).max())


def test_recomputed_chunks_are_equal_to_the_bit() -> None:
    feeds = {"x": values(2, 64, 8, seed=3).astype(np.float32)}
    step = ckplan.open_model(self_attention(64), chunks="attention=4")
    scan = next(op for op, node in enumerate(step.fused.graph) if node.op_type == "Scan")
    order = list(best_order(step.problem))
    last = len(order) - 1 - next(i for i, op in enumerate(reversed(order)) if "Scan" in step.problem.ops[op].name)
    plan = make_plan(step.problem, "twice", [*order[:last], scan, *order[last:]])
    written = write_plan(step, plan)
    assert written.plan.recomputed == 1
    plain, repeated = onnxruntime_run(step.ordered, feeds), onnxruntime_run(written.model, feeds)
    for name in plain:
        assert np.array_equal(plain[name], repeated[name])


@pytest.mark.parametrize(
    ("text", "arrays"),
    [
        ("p = Softmax<axis=-1>(s) a = MatMul(p, v) c = ReduceMax<keepdims=0>(p) d = ReduceSum<keepdims=0>(a) "
         "loss = Add(c, d)", {}),
        ("p = Softmax<axis=2>(s) a = MatMul(p, v) loss = ReduceSum<keepdims=0>(a)", {}),
        ("p = Sigmoid(s) a = MatMul(p, v) loss = ReduceSum<keepdims=0>(a)", {}),
        ("m = Add(s, bias) p = Softmax<axis=-1>(m) a = MatMul(p, v) loss = ReduceSum<keepdims=0>(a)",
         {"bias": values(QUERIES, KEYS, seed=5)}),
    ],
)  # fmt: skip
def test_what_is_left_whole(text: str, arrays: dict[str, np.ndarray]) -> None:
    numbers = {name: values(*shape) for name, shape in zip("qkv", SHAPES["queries and keys"], strict=True)}
    model = parse(f"g () => (double[] loss) {{ s = MatMul(q, k) {text} }}", **numbers, **arrays)
    with pytest.raises(UsageError, match="nothing to cut"):
        build_training_graph(model, loss="loss", chunks="attention=3")
    assert build_training_graph(model, loss="loss").regions == ()


def test_scores_whose_gradient_is_asked_for_stay_whole() -> None:
    with pytest.raises(UsageError, match="nothing to cut"):
        build_training_graph(attention(), retain_grad=["p"], chunks="attention=3")


def test_a_dropout_keeps_its_attention_whole() -> None:
    numbers = {name: values(*shape) for name, shape in zip("qkv", SHAPES["queries and keys"], strict=True)}
    model = parse(
        "g (int64[4] t) => (double[] loss) { s = MatMul(q, k) r = Softmax<axis=-1>(s) p = Dropout(r, ratio) "
        "a = MatMul(p, v) b = Reshape(a, rows) l = MatMul(b, w) loss = SoftmaxCrossEntropyLoss(l, t) }",
        **numbers,
        w=values(12, 7),
        rows=np.asarray([4, 12]),
        ratio=np.asarray(0.4, np.float32),
    )
    training = build_training_graph(model, training=True, chunks=2)
    assert any("a Dropout in it draws one mask" in note for note in training.notes)
    assert {region.kind for region in training.regions} == {"loss"}


@pytest.mark.parametrize("pieces", [2, 3, 4])
def test_masks_are_computed_in_the_pieces(pieces: int) -> None:
    """Of a table that the file fixes and a row of tokens for each member, there is no mask of queries and keys."""
    seen = np.asarray([[True, True, True, False, True], [True, False, True, True, True]])
    nodes = (
        "s = MatMul(q, k) both = And(causal, seen) m = Where(both, zero, low) x = Add(s, m) "
        "p = Softmax<axis=-1>(x) a = MatMul(p, v) b = Mul(a, a) loss = ReduceSum<keepdims=0>(b)"
    )
    shapes = SHAPES["a batch"]
    arrays = {name: values(*shape, seed=seed) for seed, (name, shape) in enumerate(zip("qkv", shapes, strict=True))}
    arrays |= {"causal": CAUSAL | (np.arange(KEYS) == 0), "zero": np.zeros(()), "low": LOW}
    model = parse(f"g (bool[2, 1, 1, {KEYS}] seen) => (double[] loss) {{ {nodes} }}", **arrays)
    feeds = {"seen": seen[:, None, None]}
    cut, whole = (graph_of(model.clone(), chunks) for chunks in (f"attention={pieces}", "off"))
    check_training_graph(whole, feeds)
    check_same_results(cut, whole, feeds)
    shapes_made = [tuple(value.shape or ()) for node in cut.model.graph for value in node.outputs]
    assert not [shape for shape in shapes_made if shape[-2:] == (QUERIES, KEYS)]
