"""Layer normalisations that are written out in arithmetic are one node again, however they are written."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from ckplan.autodiff import TrainingGraph
from tests.autodiff.gradcheck import onnxruntime_run, values
from tests.autodiff.written_formulas import between_products, forward_operators, results_of

FED = (2, 3, 4)
TENSORS = {"gain": values(5, seed=3) + 1.5, "offset": values(5, seed=4), "wide_gain": values(1, 1, 5, seed=5) + 1.5}
NUMBERS = {"/eps": np.array(1e-3), "/one": np.array(1.0), "/two": np.array(2.0), "/zero": np.array(0.0)}
SHAPES = {"last": np.array([-1]), "kept": np.array([2, 3, 1]), "whole": np.array([2, 3, 5]), "first": np.array([0])}

CENTRED = 'm = ReduceMean(h, last) d = Sub(h, m) p = Pow(d, "/two") v = ReduceMean(p, last) '
WRITTEN = {
    "torch": CENTRED + 'e = Add(v, "/eps") s = Sqrt(e) n = Div(d, s) g = Mul(n, gain) y = Add(g, offset)',
    "without a shift": CENTRED + 'e = Add(v, "/eps") s = Sqrt(e) n = Div(d, s) y = Mul(gain, n)',
    "without parameters": CENTRED + 'e = Add(v, "/eps") s = Sqrt(e) y = Div(d, s)',
    "keras": 'm = ReduceMean(h, last) d = Sub(h, m) p = Mul(d, d) v = ReduceMean(p, last) e = Add(v, "/eps") '
    "s = Sqrt(e) r = Reciprocal(s) i = Mul(r, wide_gain) a = Mul(h, i) b = Mul(m, i) c = Sub(offset, b) y = Add(a, c)",
    "flax": "m = ReduceMean<keepdims = 0>(h, last) p = Mul(h, h) q = ReduceMean<keepdims = 0>(p, last) f = Mul(m, m) "
    'v = Sub(q, f) z = Max("/zero", v) u = Reshape(m, kept) k = Unsqueeze(z, last) d = Sub(h, u) e = Add(k, "/eps") '
    "s = Sqrt(e) r = Reciprocal(s) i = Mul(r, wide_gain) o = Expand(i, whole) n = Mul(d, o) y = Add(n, offset)",
}
SQUARED = 'p = Pow(h, "/two") v = ReduceMean(p, last) e = Add(v, "/eps") s = Sqrt(e) '
WITHOUT_A_MEAN = {
    "torch": SQUARED + "r = Reciprocal(s) n = Mul(h, r) y = Mul(gain, n)",
    "a quotient": SQUARED + "n = Div(h, s) y = Mul(n, wide_gain)",
    "scaled first": SQUARED + "r = Reciprocal(s) i = Mul(r, gain) y = Mul(h, i)",
    "what is learnt and one": SQUARED + 'r = Reciprocal(s) n = Mul(h, r) a = Add(gain, "/one") y = Mul(n, a)',
    "one and what is learnt, at once": SQUARED + 'a = Add("/one", wide_gain) i = Div(a, s) y = Mul(i, h)',
    "without parameters": SQUARED + "y = Div(h, s)",
    "of what is centred otherwise": CENTRED.replace("m = ReduceMean(h, last)", "m = ReduceMean(h, first)")
    + 'e = Add(v, "/eps") s = Sqrt(e) y = Div(d, s)',
}
LEFT_ALONE = {
    "another mean": WRITTEN["torch"].replace("m = ReduceMean(h, last)", "m = ReduceMean(h, first)"),
    "another axis": WRITTEN["torch"].replace("ReduceMean(p, last)", "ReduceMean(p, first)"),
    "a sum": WRITTEN["torch"].replace("v = ReduceMean", "v = ReduceSum"),
    "twice the deviation": WRITTEN["torch"].replace("n = Div(d, s)", "t = Add(d, d) n = Div(t, s)"),
    "the deviation is read elsewhere": WRITTEN["without parameters"].replace("y =", "c =") + " y = Add(c, d)",
}


def graph(nodes: str, dtype: str = "double", outputs: str = "", extra: Any = (), **options: Any) -> TrainingGraph:
    return between_products(nodes, FED, 5, {**TENSORS, **NUMBERS, **SHAPES, **dict(extra)}, dtype, outputs, **options)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        *((nodes, ["LayerNormalization"]) for nodes in WRITTEN.values()),
        *((nodes, ["RMSNormalization"]) for nodes in list(WITHOUT_A_MEAN.values())[:-1]),
        (WITHOUT_A_MEAN["of what is centred otherwise"], ["ReduceMean", "Sub", "RMSNormalization"]),
    ],
    ids=[*WRITTEN, *(f"{name}, no mean" for name in WITHOUT_A_MEAN)],
)
def test_it_is_one_node_and_its_gradients_are_those_of_what_was_written(nodes: str, expected: list[str]) -> None:
    joined, written = graph(nodes), graph(nodes, retain_grad=["s"])
    kinds = forward_operators(joined) - Counter(["Reshape"])
    scale = ["Add"] if "/one" in nodes else []
    assert kinds == Counter([*expected, *scale, "MatMul", "MatMul", "Mul", "ReduceSum"])
    assert forward_operators(written)["Sqrt"] == 1  # somebody asks for what is inside
    assert set(joined.gradients) == {"w", "right", *(name for name in TENSORS if re.search(rf"\b{name}\b", nodes))}
    compared = results_of(joined, written, graph(nodes, "float"), FED)
    for array, expected, single in compared.values():
        scale = np.abs(array).max()
        np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-8 * scale)
        np.testing.assert_allclose(single, expected, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("nodes", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_another_function_and_what_is_read_inside_are_left_alone(nodes: str) -> None:
    assert not forward_operators(graph(nodes))["LayerNormalization"]


@pytest.mark.parametrize(
    ("outputs", "options"),
    [
        ("double[2,3,1] s,", {"loss": ["loss", "sum:s"]}),
        ("", {"retain_grad": ["d"]}),
        ("", {"no_grad": ["s"]}),
        ("", {"grad_ys": ["v"], "loss": None}),
        ("", {"wrt": ["w", "/eps"]}),
    ],
    ids=["a loss of it", "asked for its gradient", "where gradients stop", "differentiated", "trained"],
)
def test_what_somebody_knows_inside_stays(outputs: str, options: dict[str, Any]) -> None:
    assert not forward_operators(graph(WRITTEN["torch"], outputs=outputs, **options))["LayerNormalization"]


def test_the_graph_belongs_to_an_operator_set_that_has_the_operator() -> None:
    centred, plain = (graph(nodes["torch"]).model.graph.opset_imports[""] for nodes in (WRITTEN, WITHOUT_A_MEAN))
    assert (centred, plain) == (21, 23)


@pytest.mark.parametrize(
    ("drawn", "options"),
    [
        ("t = Dropout(h) ", {"training": True}),
        ("o = RandomNormalLike <seed = 3.0> (h) t = Add(h, o) ", {}),
    ],
)
def test_a_graph_that_draws_stays_in_an_operator_set_with_kernels_of_what_draws(
    drawn: str, options: dict[str, Any]
) -> None:
    nodes = drawn + WITHOUT_A_MEAN["torch"].replace("(h", "(t")
    training = graph(nodes, "float", **options)
    assert training.model.graph.opset_imports[""] == 21
    assert "gain" in training.gradients
    assert np.isfinite(onnxruntime_run(training.model, {"x": values(*FED).astype(np.float32)})[training.loss])


def test_what_the_gradient_reads_is_the_tensor_itself() -> None:
    """Not its normalised form, which is one more tensor of its size: it is read inside of the operator only."""
    made = graph(WITHOUT_A_MEAN["torch"]).model.graph
    norm = next(node for node in made if node.op_type == "RMSNormalization")
    readers = {use.node.op_type for use in norm.outputs[0].uses()}
    assert readers <= {"MatMul", "Gemm", "Reshape", "Transpose"}


def test_scales_of_ones_and_shifts_of_zeros_without_a_name_are_trained() -> None:
    nodes = WRITTEN["torch"].replace("gain", "const_2").replace("offset", "const_3")
    training = graph(nodes, extra={"const_2": np.ones(5), "const_3": np.zeros(5)})
    assert set(training.gradients) == {"w", "right", "const_2", "const_3"}


def test_what_one_is_added_to_is_trained_even_where_it_is_zero_and_has_no_name() -> None:
    nodes = WITHOUT_A_MEAN["what is learnt and one"].replace("gain", "const_2")
    assert set(graph(nodes, extra={"const_2": np.zeros(5)}).gradients) == {"w", "right", "const_2"}


def test_a_norm_of_what_the_file_holds_is_one_node_as_well() -> None:
    nodes = 'q = Mul(tokens, tokens) m = ReduceMean(q, last) e = Add(m, "/eps") s = Sqrt(e) n = Div(tokens, s) '
    training = graph(nodes + "y = Mul(h, n)", extra={"tokens": values(1, 5, seed=6)})
    assert forward_operators(training)["RMSNormalization"] == 1
    assert "tokens" in training.gradients


def test_a_number_that_is_trained_stays_a_factor() -> None:
    """It is one today."""
    nodes = WRITTEN["without parameters"].replace("y =", "c =") + " y = Mul(c, scale_weight)"
    training = graph(nodes, extra={"scale_weight": np.array([1.0])})
    assert "scale_weight" in training.gradients
