"""Keys and values that several heads share go through products as they are, not as copies."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, reference, values

BATCH, GROUPS, COPIES, ROWS, KEYS, DEPTH = 2, 3, 2, 4, 5, 3
HEADS = GROUPS * COPIES
SHAPES = {
    "many": (BATCH, GROUPS, COPIES, KEYS, DEPTH),
    "heads": (BATCH, HEADS, KEYS, DEPTH),
    "flat": (BATCH * HEADS, KEYS, DEPTH),
    "rows": (BATCH * HEADS, ROWS, KEYS),
    "whole": (BATCH, HEADS, ROWS, KEYS),
    "other": (BATCH, COPIES, GROUPS, KEYS, DEPTH),
}
COPIED = "u = Unsqueeze(k, two) e = Expand(u, many) r = Reshape(e, heads) "
GROUPED = {
    "keys, turned": COPIED + "t = Transpose<perm = [0, 1, 3, 2]>(r) y = MatMul(q, t)",
    "scaled": COPIED + "m = Mul(r, half) t = Transpose<perm = [0, 1, 3, 2]>(m) y = MatMul(q, t)",
    "scores that are scaled": COPIED + "t = Transpose<perm = [0, 1, 3, 2]>(r) s = MatMul(q, t) y = Mul(s, half)",
    "values": COPIED + "t = Transpose<perm = [0, 1, 3, 2]>(q) s = MatMul(r, t) p = Transpose<perm = [0, 1, 3, 2]>(s) "
    "y = MatMul(p, r)",
    "one axis of members and heads": COPIED + "f = Reshape(r, flat) t = Transpose<perm = [0, 2, 1]>(f) "
    "q3 = Reshape(q, q_flat) y = MatMul(q3, t)",
}
LEFT_ALONE = {
    "copies in turn": "u = Unsqueeze(k, one) e = Expand(u, other) r = Reshape(e, heads) "
    "t = Transpose<perm = [0, 1, 3, 2]>(r) y = MatMul(q, t)",
    "something is added": COPIED + "m = Add(r, bias) t = Transpose<perm = [0, 1, 3, 2]>(m) y = MatMul(q, t)",
    "repeated on the left": COPIED + "t = Transpose<perm = [0, 1, 3, 2]>(q) y = MatMul(r, t)",
}


def graph(nodes: str, dtype: str = "double", groups: int = GROUPS, **options: object) -> TrainingGraph:
    kind = np.float32 if dtype == "float" else np.float64
    read = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    arrays = {
        "q": values(BATCH, HEADS, ROWS, DEPTH).astype(kind),
        "k": values(BATCH, groups, KEYS, DEPTH, seed=1).astype(kind),
        "half": np.asarray(0.5, kind),
        "bias": values(BATCH, HEADS, KEYS, DEPTH, seed=2).astype(kind),
        "one": np.array([1]),
        "two": np.array([2]),
        "q_flat": np.array([BATCH * HEADS, ROWS, DEPTH]),
        **{name: np.array(shape) for name, shape in SHAPES.items()},
    }
    model = parse(
        f"g () => ({dtype} loss) {{ {nodes} squares = Mul(y, y) loss = ReduceSum<keepdims = 0>(squares) }}",
        **{name: array for name, array in arrays.items() if name in read},
    )
    return build_training_graph(model, **{"loss": "loss", "wrt": ["q", "k"], **options})


def kinds(training: TrainingGraph) -> Counter[str]:
    return Counter(node.op_type for node in training.model.graph)


@pytest.mark.parametrize("nodes", GROUPED.values(), ids=GROUPED)
def test_nothing_is_copied_and_gradients_are_right(nodes: str) -> None:
    training = graph(nodes)
    check_training_graph(training)
    own = [node for node in training.model.graph if node.metadata_props["pkg.ckplan.phase"] == "forward"]
    repeated = [value for node in own for value in node.outputs if value.shape == ir.Shape(SHAPES["heads"])]
    # What is repeated on the left of a product is still copied for it.
    assert len(repeated) == (1 if "MatMul(r, t)" in nodes else 0)
    expected, found = reference(training.model), onnxruntime_run(graph(nodes, "float").model)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("nodes", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_other_copies_stay(nodes: str) -> None:
    training = graph(nodes)
    check_training_graph(training)
    assert kinds(training)["Expand"]


def test_scores_are_scaled_right_behind_their_product_whose_kernel_does_it() -> None:
    made = graph(GROUPED["scores that are scaled"]).model.graph
    product = next(node for node in made if node.op_type == "MatMul")
    assert {use.node.op_type for use in product.outputs[0].uses()} == {"Mul"}


def test_one_head_of_keys_that_a_product_repeats_has_its_gradient_without_a_sum_over_heads() -> None:
    training = graph("t = Transpose<perm = [0, 1, 3, 2]>(k) y = MatMul(q, t)", groups=1)
    check_training_graph(training)
    assert kinds(training)["ReduceSum"] == 1  # the loss


def test_a_copy_that_is_asked_for_is_made() -> None:
    training = graph(GROUPED["keys, turned"], retain_grad=["r"])
    check_training_graph(graph(GROUPED["keys, turned"]))
    assert "r" in training.retained
    assert kinds(training)["Expand"]
