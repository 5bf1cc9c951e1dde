"""Attentions whose products are written as Einsum are products of matrices."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.keys import PHASE
from tests.autodiff.gradcheck import check_gradient, infer, onnxruntime_run, values

BATCH, HEADS, TOKENS, DEPTH = 2, 3, 5, 4
LAYOUTS = {
    "heads before tokens": ("bhqd", "bhqd,bhkd->bhqk", "bhqk,bhkd->bhqd"),
    "tokens before heads": ("bqhd", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd"),
    "channels before places": ("bhdq", "bhdq,bhdk->bhqk", "bhqk,bhdk->bhqd"),
    "values first": ("bhqd", "bhqd,bhkd->bhqk", "bhkd,bhqk->bhqd"),
    "keys first": ("bhqd", "bhkd,bhqd->bhqk", "bhqk,bhkd->bhqd"),
    "dots": ("bhqd", "...qd,...kd->...qk", "...qk,...kd->...qd"),
}
LEFT_ALONE = {
    "scores that are turned": ("bhqd", "bhqd,bhkd->bhkq", "bhkq,bhkd->bhqd"),
    "an operand summed over": ("bhqd", "bhqd,bgkd->bhqk", "bhqk,bhkd->bhqd"),
    "heads summed over": ("bhqd", "bhqd,bhkd->bhqk", "bhqk,bhkd->bqd"),
}
SIZES = {"b": BATCH, "h": HEADS, "q": TOKENS, "d": DEPTH}


SCALED = "m = Mul(s, scale) p = Softmax <axis = -1> (m)"
MASKED = "a = Mul(s, scale) m = Add(mask, a) p = Softmax <axis = -1> (m)"


def attention(layout: str, scores: str, result: str, between: str = SCALED) -> onnx.ModelProto:
    """A layer of attention of tangents of three parameters; `between` goes from the scores s to the weights p."""
    shape = tuple(SIZES[letter] for letter in layout)
    arrays = {f"p{number}": values(*shape, seed=number) for number in range(3)}
    arrays |= {"scale": np.asarray(0.5), "mask": np.where(np.tri(TOKENS) > 0, 0.0, -50.0)}
    first = "k, q" if scores.index("k") < scores.index("q") else "q, k"
    last = "v, p" if result.index("k") < result.index("q") else "p, v"
    text = f"""
        q = Tanh(p0) k = Tanh(p1) v = Tanh(p2) s = Einsum <equation = "{scores}"> ({first})
        {between} y = Einsum <equation = "{result}"> ({last}) z = Sin(y) loss = ReduceSum <keepdims = 0> (z)
    """
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g () => (double loss) {{ {text} }}')
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used)
    return model


def operators(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each operator the forward pass has."""
    graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
    return Counter(node.op_type for node in graph if node.metadata_props.get(PHASE) == "forward")


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("between", [SCALED, MASKED], ids=["scaled", "masked"])
def test_einsums_of_an_attention_are_products_of_matrices(layout, between):
    model = attention(*layout, between)
    check_gradient(model, wrt=["p*"])
    found = operators(model)
    assert found["Einsum"] == 0
    assert found["MatMul"] == 2


@pytest.mark.parametrize("layout", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_other_einsums_stay(layout):
    model = attention(*layout)
    check_gradient(model, wrt=["p*"])
    assert operators(model)["Einsum"]


def test_einsums_without_a_softmax_stay():
    assert operators(attention(*LAYOUTS["heads before tokens"], "p = Tanh(s)"))["Einsum"] == 2


def test_what_was_turned_before_is_turned_once():
    model = attention(*LAYOUTS["heads before tokens"])
    model.graph.node[1].CopyFrom(onnx.helper.make_node("Transpose", ["p1"], ["k"], perm=[1, 0, 2, 3]))
    del model.graph.initializer[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(values(HEADS, BATCH, TOKENS, DEPTH), "p1"))
    check_gradient(model, wrt=["p*"])
    assert operators(model)["Transpose"] == 1


def test_such_an_attention_runs_in_pieces():
    model = attention(*LAYOUTS["tokens before heads"])
    whole, cut = (
        build_training_graph(infer(model), loss="loss", wrt=["p*"], chunks=chunks) for chunks in ("off", "attention=5")
    )
    assert [region.pieces for region in cut.regions] == [5]
    expected, found = onnxruntime_run(whole.model, {}), onnxruntime_run(cut.model, {})
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12)
