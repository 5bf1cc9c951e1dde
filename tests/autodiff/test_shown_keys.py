"""Attentions whose masks hide keys from blocks of queries: what is computed, what is kept, and what stays whole."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import ckplan
from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.attention import shown_keys
from ckplan.autodiff.attention.shown_keys import Block, blocks_of
from ckplan.keys import PHASE
from tests.autodiff.gradcheck import check_same_results, check_training_graph, onnxruntime_run, parse, values

TOKENS, DEPTH = 6, 3
CAUSAL = np.tril(np.ones((TOKENS, TOKENS), dtype=bool))
WINDOW = CAUSAL & ~np.tril(CAUSAL, -2)
LOW, LOWEST = np.asarray(-1e4), np.asarray(np.finfo(np.float64).min)
LARGE = np.where(CAUSAL, 0.0, -1e9)

FORMS = {
    "added": ("m = Add(s, mask) p = Softmax<axis=-1>(m)", {"mask": LARGE}),
    "in front": ("m = Add(mask, s) p = Softmax<axis=3>(m)", {"mask": LARGE[None, None]}),
    "a window": ("m = Add(s, mask) p = Softmax<axis=-1>(m)", {"mask": np.where(WINDOW, 0.0, LOW)}),
    "of each head": ("m = Add(s, mask) p = Softmax<axis=-1>(m)", {"mask": np.stack([LARGE, np.where(WINDOW, 0, LOW)])}),
    "of keys as well": (
        "n = Add(s, last) m = Add(n, mask) p = Softmax<axis=-1>(m)",
        {"mask": LARGE, "last": np.where(np.arange(TOKENS) == TOKENS - 1, LOW, 0)},
    ),
    "chosen": ("m = Where(causal, s, low) p = Softmax<axis=-1>(m)", {"causal": CAUSAL, "low": LOW}),
    "not chosen": ("m = Where(future, low, s) p = Softmax<axis=-1>(m)", {"future": ~CAUSAL, "low": LOWEST}),
    "computed": (
        "i = LessOrEqual(column, row) e = Expand(i, square) z = Where(e, zero, low) m = Add(s, z) "
        "p = Softmax<axis=-1>(m)",
        {
            "column": np.arange(TOKENS)[None],
            "row": np.arange(TOKENS)[:, None],
            "square": np.asarray([2, 1, TOKENS, TOKENS]),
            "zero": np.asarray(0.0),
            "low": np.asarray(-np.inf),
        },
    ),
    "one of a pile": (
        "one = Slice(pile, second, third, first) m = Add(s, one) p = Softmax<axis=-1>(m)",
        {"pile": np.stack([LARGE, LARGE]), **{n: np.asarray([i]) for i, n in enumerate(("first", "second", "third"))}},
    ),
    "without nan": (
        "m = Where(causal, s, low) r = Softmax<axis=-1>(m) n = IsNaN(r) p = Where(n, zero, r)",
        {"causal": CAUSAL, "low": np.asarray(-np.inf), "zero": np.asarray(0.0)},
    ),
    "nothing for half of the queries": (
        "z = Where(causal, zero, low) m = Add(s, z) r = Softmax<axis=-1>(m) n = IsNaN(r) p = Where(n, zero, r)",
        {"causal": np.tri(TOKENS, k=-3, dtype=bool), "low": np.asarray(-np.inf), "zero": np.asarray(0.0)},
    ),
    "capped": (
        "d = Div(s, cap) t = Tanh(d) u = Mul(t, cap) a0 = Add(u, mask) m = Max(a0, lowest) p = Softmax<axis=-1>(m)",
        {"cap": np.asarray(2.0), "mask": LARGE, "lowest": LOWEST},
    ),
}
"""What stands between the products, as files write it."""

WHOLE = {
    "nothing is hidden": ("m = Mul(s, mask) p = Softmax<axis=-1>(m)", {"mask": np.asarray(0.5)}),
    "too little is hidden": ("m = Add(s, mask) p = Softmax<axis=-1>(m)", {"mask": np.where(CAUSAL, 0.0, -100.0)}),
    "a query is shown nothing": (
        "m = Add(s, mask) p = Softmax<axis=-1>(m)",
        {"mask": np.where(np.tril(CAUSAL, -1), 0.0, LOW)},
    ),
    "hidden in one head only": (
        "m = Add(s, mask) p = Softmax<axis=-1>(m)",
        {"mask": np.stack([LARGE, np.zeros_like(LARGE)])},
    ),
    "what is subtracted may hide": (
        "n = Sub(s, more) m = Add(n, mask) p = Softmax<axis=-1>(m)",
        {"mask": LARGE, "more": -LARGE[:, ::-1]},
    ),
    "counted over a pile": (
        "n = ReduceSum<keepdims=0>(pile, first) e = Equal(n, one) m = Where(e, low, s) p = Softmax<axis=-1>(m)",
        {
            "pile": np.stack([np.tril(CAUSAL, -1) * 1.0] * 2),
            "first": np.asarray([0]),
            "one": np.asarray(1.0),
            "low": LOW,
        },
    ),
    "hidden before a function": ("m = Add(s, mask) t = Tanh(m) p = Softmax<axis=-1>(t)", {"mask": LARGE}),
    "zeros do not stay": (
        "m = Add(s, mask) r = Softmax<axis=-1>(m) p = Add(r, more)",
        {"mask": LARGE, "more": np.asarray(0.1)},
    ),
}
"""What leaves an attention whole."""

ARRAYS = {
    "q": values(2, 2, TOKENS, DEPTH, seed=1),
    "k": values(2, 2, DEPTH, TOKENS, seed=2),
    "v": values(2, 2, TOKENS, 4, seed=3),
    "weights": values(2, 2, TOKENS, 4, seed=4),
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_keys, "_LEAST_QUERIES", 1)
    monkeypatch.setattr(shown_keys, "_LEAST_LEFT_OUT", 0.1)


def graph_of(nodes: str, inputs: str = "", **arrays: np.ndarray) -> TrainingGraph:
    """The training graph of an attention of parameters q, k and v; the loss weighs its results."""
    text = f"s = MatMul(q, k) {nodes} a = MatMul(p, v) b = Mul(a, weights) loss = ReduceSum<keepdims=0>(b)"
    model = parse(f"g ({inputs}) => (double[] loss) {{ {text} }}", **(ARRAYS | arrays))
    return build_training_graph(model, wrt=["q", "k", "v"])


def scores_of(training: TrainingGraph) -> list[tuple[int, ...]]:
    """Queries and keys of each softmax."""
    return [tuple(node.outputs[0].shape or ())[-2:] for node in training.model.graph if node.op_type == "Softmax"]


@pytest.mark.parametrize("form", FORMS)
def test_gradients_and_values_are_those_of_the_whole(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, constants = FORMS[form]
    blocks = graph_of(nodes, **constants)
    monkeypatch.setattr(shown_keys, "_LEAST_LEFT_OUT", TOKENS)
    whole = graph_of(nodes, **constants)
    assert scores_of(whole) == [(TOKENS, TOKENS)]
    assert len(scores_of(blocks)) > 1
    assert sum(queries * keys for queries, keys in scores_of(blocks)) < 0.8 * TOKENS**2
    check_training_graph(blocks)
    check_same_results(blocks, whole)


@pytest.mark.parametrize("form", WHOLE)
def test_what_stays_whole(form: str) -> None:
    nodes, constants = WHOLE[form]
    assert scores_of(graph_of(nodes, **constants)) == [(TOKENS, TOKENS)]


@pytest.mark.parametrize("low", [-np.inf, np.finfo(np.float64).min])
def test_a_mask_of_which_the_file_fixes_a_part(low: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a mask for padding it hides what it hides, where a query that is shown nothing has a result of zeros."""
    nodes = (
        "c = And(causal, seen) z = Where(c, zero, low) m = Add(s, z) r = Softmax<axis=-1>(m) n = IsNaN(r) "
        "p = Where(n, zero, r)"
    )
    fed = f"bool[2,1,1,{TOKENS}] seen"
    arrays = {"causal": CAUSAL, "zero": np.zeros(()), "low": np.asarray(low)}
    blocks = graph_of(nodes, fed, **arrays)
    monkeypatch.setattr(shown_keys, "_LEAST_LEFT_OUT", TOKENS)
    whole = graph_of(nodes, fed, **arrays)
    assert (len(scores_of(blocks)) > 1) == (low == -np.inf)
    seen = np.ones((2, 1, 1, TOKENS), dtype=bool)
    seen[0, 0, 0, :2], seen[1, 0, 0, 4:] = False, False  # padding before one, behind the other
    if low == -np.inf:
        check_training_graph(blocks, {"seen": seen})
    check_same_results(blocks, whole, {"seen": seen})


def test_a_mask_that_is_fed_hides_nothing_for_certain() -> None:
    nodes = "m = Add(s, mask) n = Add(m, fed) p = Softmax<axis=-1>(n)"
    training = graph_of(nodes, f"double[{TOKENS},{TOKENS}] fed", mask=LARGE)
    assert scores_of(training) == [(TOKENS, TOKENS)]


def test_a_mask_that_is_trained_hides_nothing() -> None:
    arrays = ARRAYS | {"mask": LARGE}
    text = "s = MatMul(q, k) m = Add(s, mask) p = Softmax<axis=-1>(m) a = MatMul(p, v) loss = ReduceSum<keepdims=0>(a)"
    model = parse(f"g () => (double[] loss) {{ {text} }}", **{n: a for n, a in arrays.items() if n != "weights"})
    training = build_training_graph(model, wrt=["q", "mask"])
    assert scores_of(training) == [(TOKENS, TOKENS)]


def test_as_many_blocks_as_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def blocks_behind(tokens: int, window: int) -> list[Block]:
        behind = np.subtract.outer(np.arange(tokens), np.arange(tokens))
        return blocks_of((behind < 0) | (behind >= window))

    assert [len(blocks_behind(tokens, tokens)) for tokens in (64, 128, 256, 512, 2048)] == [1, 2, 2, 4, 8]
    assert [block.keys for block in blocks_behind(512, 512)] == [(0, 128), (0, 256), (0, 384), (0, 512)]
    assert [block.keys for block in blocks_behind(512, 128)] == [(0, 128), (1, 256), (129, 384), (257, 512)]
    assert len(blocks_of(np.zeros((512, 512), dtype=bool))) == 1
    assert len(blocks_of(np.zeros((1, 3), dtype=bool))) == 1


def self_attention(tokens: int, groups: int) -> ir.Model:
    """Two heads of queries, and keys and values of ``groups`` heads, of one tensor; behind a causal mask."""
    shared = "u{0} = Unsqueeze(t{0}, two) e{0} = Expand(u{0}, many) r{0} = Reshape(e{0}, heads) "
    return parse(
        f"g (float[2,{tokens},8] x) => (float[] loss) {{ "
        "a = MatMul(x, wq) b = Reshape(a, split) q = Transpose<perm=[0,2,1,3]>(b) "
        "c1 = MatMul(x, wk) d1 = Reshape(c1, some) t1 = Transpose<perm=[0,2,1,3]>(d1) "
        "c2 = MatMul(x, wv) d2 = Reshape(c2, some) t2 = Transpose<perm=[0,2,1,3]>(d2) "
        f"{shared.format(1)} {shared.format(2)} k = Transpose<perm=[0,1,3,2]>(r1) "
        "s = MatMul(q, k) m = Mul(s, scale) n = Add(m, mask) p = Softmax<axis=-1>(n) o = MatMul(p, r2) "
        "f = Transpose<perm=[0,2,1,3]>(o) y = Reshape(f, whole) loss = ReduceSumSquare<keepdims=0>(y) }",
        **{
            name: values(8, 8 if name == "wq" else 4 * groups, seed=i).astype("f")
            for i, name in enumerate(["wq", "wk", "wv"])
        },
        scale=np.asarray(0.3, np.float32),
        mask=np.where(np.tri(tokens, dtype=bool), 0, np.finfo(np.float32).min).astype(np.float32),
        split=np.asarray([2, tokens, 2, 4]),
        some=np.asarray([2, tokens, groups, 4]),
        two=np.asarray([2]),
        many=np.asarray([2, groups, 2 // groups, tokens, 4]),
        heads=np.asarray([2, 2, tokens, 4]),
        whole=np.asarray([2, tokens, 8]),
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_no_copies_for_heads_or_for_the_backward_pass(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    training = build_training_graph(self_attention(16, groups))
    nodes = list(training.model.graph)
    blocks = len(scores_of(training))
    assert blocks > 2
    assert groups == 2 or "Expand" not in {node.op_type for node in nodes}
    cut = [node for node in nodes if node.op_type == "Slice" and node.metadata_props[PHASE] == "forward"]
    assert len(cut) == 2 * (blocks - 1)  # keys and values of all blocks but the last
    behind = {use.node for node in cut for use in node.outputs[0].uses()}
    behind |= {
        use.node for node in behind if node.op_type in ("Reshape", "Transpose") for use in node.outputs[0].uses()
    }
    assert {node.metadata_props[PHASE] for node in behind} == {"forward"}
    monkeypatch.setattr(shown_keys, "_LEAST_LEFT_OUT", TOKENS)
    feeds = {"x": values(2, 16, 8, seed=5).astype(np.float32)}
    whole = onnxruntime_run(build_training_graph(self_attention(16, groups)).model, feeds)
    for name, array in onnxruntime_run(training.model, feeds).items():
        np.testing.assert_allclose(array, whole[name], rtol=1e-4, atol=1e-5 * np.abs(whole[name]).max(), err_msg=name)


def test_a_step_takes_less_than_with_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = []
    for least in (0.1, 1e9):
        monkeypatch.setattr(shown_keys, "_LEAST_LEFT_OUT", least)
        planned = ckplan.rewrite(self_attention(128, 2), strategy="memory")
        peaks.append((planned.before.peak_activations, planned.after.peak_activations))
        found = ckplan.measure(planned)
        assert found.peak_activations == planned.after.peak_activations
    assert peaks[0][0] < 0.8 * peaks[1][0]
    assert peaks[0][1] < 0.8 * peaks[1][1]


def test_probabilities_whose_gradient_is_asked_for_stay_whole() -> None:
    text = "s = MatMul(q, k) m = Add(s, mask) p = Softmax<axis=-1>(m) a = MatMul(p, v) loss = ReduceSum<keepdims=0>(a)"
    model = parse(f"g () => (double[] loss) {{ {text} }}", **{name: ARRAYS[name] for name in "qkv"}, mask=LARGE)
    assert len(scores_of(build_training_graph(model, wrt=["q"]))) > 1
    assert scores_of(build_training_graph(model, wrt=["q"], retain_grad=["p"])) == [(TOKENS, TOKENS)]
