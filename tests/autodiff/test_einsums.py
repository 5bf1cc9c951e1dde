"""Einsums that are products of matrices are written as such."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.keys import PHASE
from tests.autodiff.gradcheck import check_gradient, infer, node_model, onnxruntime_run, values

BATCH, HEADS, TOKENS, DEPTH = 2, 3, 5, 4
LAYOUTS = {
    "heads before tokens": ("bhqd", "bhqd,bhkd->bhqk", "bhqk,bhkd->bhqd"),
    "tokens before heads": ("bqhd", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd"),
    "channels before places": ("bhdq", "bhdq,bhdk->bhqk", "bhqk,bhdk->bhqd"),
    "values first": ("bhqd", "bhqd,bhkd->bhqk", "bhkd,bhqk->bhqd"),
    "keys first": ("bhqd", "bhkd,bhqd->bhqk", "bhqk,bhkd->bhqd"),
    "dots": ("bhqd", "...qd,...kd->...qk", "...qk,...kd->...qd"),
}
PRODUCTS = {
    "matrices": ("ij,jk->ik", (3, 4), (4, 5)),
    "turned": ("ji,kj->ki", (4, 3), (5, 4)),
    "a dense layer of two axes": ("bnd,dhk->bnhk", (2, 5, 6), (6, 3, 4)),
    "one with heads before tokens": ("bnd,dhk->bhnk", (2, 5, 6), (6, 3, 4)),
    "one over two axes": ("bnhk,hkd->bnd", (2, 5, 3, 4), (3, 4, 6)),
    "one over two axes in another order": ("bnhk,khd->bnd", (2, 5, 3, 4), (4, 3, 6)),
    "the weight first": ("oi,bin->bon", (3, 4), (2, 4, 5)),
    "experts": ("bec,bed->ecd", (5, 2, 3), (5, 2, 4)),
    "what is sent to experts": ("bnec,bnd->ebcd", (2, 5, 3, 4), (2, 5, 6)),
    "what comes back": ("bnec,ebcd->bnd", (2, 5, 3, 4), (3, 2, 4, 6)),
    "triangles": ("bikd,bjkd->bijd", (2, 3, 4, 5), (2, 6, 4, 5)),
    "contexts": ("bhde,bhdn->bhen", (2, 3, 4, 5), (2, 3, 4, 6)),
    "scores that are turned": ("bqd,bkd->bkq", (2, 3, 4), (2, 5, 4)),
    "no arrow": ("ij,jk", (3, 4), (4, 5)),
}
OTHERS = {
    "by elements": ("ij,ij->ij", (3, 4), (3, 4)),
    "an outer product": ("bi,bj->bij", (2, 3), (2, 4)),
    "a vector": ("bnm,bm->bn", (2, 3, 4), (2, 4)),
    "an axis of one operand summed over": ("ij,jkl->ik", (3, 4), (4, 5, 2)),
    "a diagonal": ("iij,jk->ik", (3, 3, 4), (4, 5)),
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


@pytest.mark.parametrize(("equation", "one", "other"), PRODUCTS.values(), ids=PRODUCTS)
def test_einsums_that_are_products_of_matrices(equation, one, other):
    model = node_model("Einsum", values(*one), values(*other, seed=1), equation=equation)
    check_gradient(model)
    made = [node.op_type for node in build_training_graph(infer(model)).model.graph]
    assert "Einsum" not in made
    assert made.count("MatMul") + made.count("Gemm") == 3


@pytest.mark.parametrize(("equation", "one", "other"), OTHERS.values(), ids=OTHERS)
def test_other_einsums_stay(equation, one, other):
    model = node_model("Einsum", values(*one), values(*other, seed=1), equation=equation)
    check_gradient(model)
    assert "Einsum" in [node.op_type for node in build_training_graph(infer(model)).model.graph]


@pytest.mark.parametrize("equation", [value[0] for value in PRODUCTS.values()], ids=PRODUCTS)
def test_no_axis_need_have_more_than_one_element(equation):
    shapes = [(1,) * len(term) for term in equation.split("->")[0].split(",")]
    check_gradient(node_model("Einsum", values(*shapes[0]), values(*shapes[1], seed=1), equation=equation))


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
