"""GELUs that are written out in arithmetic are one node again, however they are written."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import onnxruntime_run, parse, reference, values

NUMBERS = {"half": 0.5, "one": 1.0, "two": 2.0, "three": 3.0, "minus": -1.0}
NUMBERS |= {"c": (2 / np.pi) ** 0.5, "k": 0.044715, "root": 2**0.5, "narrow": 0.5**0.5}

TANH = {
    "transformers": "a = Mul(h, half) p = Pow(h, three) b = Mul(p, k) d = Add(h, b) e = Mul(d, c) t = Tanh(e) "
    "s = Add(t, one) y = Mul(a, s)",
    "torch": "p = Mul(h, h) u = Mul(p, h) b = Mul(k, u) d = Add(h, b) e = Mul(c, d) t = Tanh(e) s = Add(one, t) "
    "a = Mul(half, s) y = Mul(h, a)",
    "fast": "a = Mul(h, half) r = Mul(h, c) b = Mul(h, k) p = Mul(b, h) d = Add(p, one) e = Mul(r, d) t = Tanh(e) "
    "s = Add(t, one) y = Mul(a, s)",
    "spread": "p = Pow(h, three) b = Mul(p, k) d = Add(h, b) e = Mul(d, c) t = Tanh(e) i = Mul(h, t) s = Add(i, h) "
    "y = Div(s, two)",
}
ERF = {
    "divided": "r = Div(h, root) t = Erf(r) s = Add(t, one) a = Mul(h, s) y = Mul(a, half)",
    "multiplied": "a = Mul(h, half) r = Mul(h, narrow) t = Erf(r) s = Add(one, t) y = Mul(a, s)",
    "subtracted": "n = Neg(h) r = Mul(n, narrow) m = Mul(r, minus) t = Erf(m) s = Sub(t, minus) a = Mul(s, half) "
    "y = Mul(a, h)",
    "by the complement": "n = Neg(h) r = Mul(n, narrow) t = Erf(r) s = Sub(one, t) a = Mul(h, half) y = Mul(a, s)",
}
LEFT_ALONE = {
    "another factor": TANH["transformers"].replace("Mul(d, c)", "Mul(d, half)"),
    "another half": ERF["divided"].replace("Mul(a, half)", "Mul(a, two)"),
    "another argument": TANH["transformers"].replace("a = Mul(h, half)", "g = Neg(h) a = Mul(g, half)"),
    "the bend is read elsewhere": ERF["multiplied"].replace("y =", "g =") + " y = Add(g, t)",
    "the cube is read elsewhere": TANH["torch"].replace("y =", "g =") + " y = Add(g, u)",
}


def graph(nodes: str, dtype: str = "float", outputs: str = "", **options: Any) -> TrainingGraph:
    """The training graph of a product, the nodes from h to y, and another product."""
    kind = np.float32 if dtype == "float" else np.float64
    arrays = {"w": values(3, 4), "v": values(4, 2, seed=2), **NUMBERS}
    model = parse(
        f"g ({dtype}[6,3] x) => ({outputs} {dtype} loss) {{ h = MatMul(x, w) {nodes} o = MatMul(y, v) "
        "q = Mul(o, o) loss = ReduceSum<keepdims = 0>(q) }",
        **{name: np.asarray(array, kind) for name, array in arrays.items()},
    )
    return build_training_graph(model, **{"loss": "loss", **options})


def operators(training: TrainingGraph) -> Counter[str]:
    return Counter(node.op_type for node in training.model.graph)


@pytest.mark.parametrize("nodes", [*TANH.values(), *ERF.values()], ids=[*TANH, *ERF])
def test_it_is_one_node_and_its_gradients_are_those_of_what_was_written(nodes):
    joined, written = graph(nodes), graph(nodes, "double")
    assert operators(joined)["Gelu"] == 1
    assert operators(written)["Gelu"] == 0  # there is a kernel in single precision only
    feeds = values(6, 3, seed=8)
    found = onnxruntime_run(joined.model, {"x": feeds.astype(np.float32)})
    expected = reference(written.model, {"x": feeds})
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5 * np.abs(array).max())


@pytest.mark.parametrize("nodes", [*TANH.values(), *ERF.values()], ids=[*TANH, *ERF])
def test_nothing_of_it_is_left(nodes):
    training = graph(nodes)
    forward = [n.op_type for n in training.model.graph if n.metadata_props["pkg.ckplan.phase"] == "forward"]
    assert forward == ["MatMul", "Gelu", "MatMul", "Mul", "ReduceSum"]


@pytest.mark.parametrize("nodes", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_another_function_and_what_is_read_inside_are_left_alone(nodes):
    assert operators(graph(nodes))["Gelu"] == 0


@pytest.mark.parametrize(
    ("outputs", "options"),
    [
        ("float[6,4] s,", {"loss": ["loss", "sum:s"]}),
        ("", {"retain_grad": ["s"]}),
        ("", {"no_grad": ["s"]}),
        ("", {"wrt": ["w", "root"]}),
    ],
    ids=["a loss of it", "asked for its gradient", "where gradients stop", "trained"],
)
def test_what_somebody_knows_inside_stays(outputs, options):
    assert operators(graph(ERF["divided"], outputs=outputs, **options))["Gelu"] == 0
