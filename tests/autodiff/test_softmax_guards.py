"""Guards behind the softmax of attention: which of them go, and that all stays what it was for rows that are masked."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import check_training_graph, infer, onnxruntime_run, parse, values

SCORES, VALUES = (2, 3, 4, 5), (2, 3, 5, 3)
LOWEST = float(np.finfo(np.float32).min)
GUARD = "n = IsNaN(y) w = Where(n, zero, y)"
SEEN = np.ones((2, 1, 4, 5), dtype=bool)
SEEN[1, 0, 2:, 3:] = False
NONE_LEFT = SEEN & np.asarray([True, False, True, True])[:, None]
"""Of one query of each sample no key is seen."""


def attention(mask: str, ending: str = "o = MatMul(w, v)", inputs: str = "", **constants: np.ndarray) -> ir.Model:
    """Scores of parameters q and k behind a mask ``m``, a guarded softmax, and a loss of its product with v."""
    numbers = {"q": values(2, 3, 4, 2), "k": values(2, 3, 2, 5, seed=1), "v": values(*VALUES, seed=2)}
    numbers |= {"out": values(3, 2, seed=4), "zero": np.zeros(())}
    arrays = {
        name: array if array.dtype == bool else array.astype(np.float32)
        for name, array in {**numbers, **constants}.items()
    }
    return parse(
        f"g ({inputs}) => (float[] loss) {{ s = MatMul(q, k) {mask} x = Add(s, m) y = Softmax<axis=-1>(x) {GUARD} "
        f"{ending} b = MatMul(o, out) c = Mul(b, b) loss = ReduceSum<keepdims=0>(c) }}",
        **arrays,
    )


def chosen(seen: np.ndarray, low: float) -> dict[str, np.ndarray]:
    return {"seen": seen, "low": np.asarray(low)}


CHOICE = "m = Where(seen, zero, low)"


def guards(training: TrainingGraph) -> int:
    return [node.op_type for node in training.model.graph].count("IsNaN")


def trained(model: ir.Model, feeds: dict[str, np.ndarray] | None = None) -> TrainingGraph:
    """The training graph of a model, whose loss and gradients are held against the file's own."""
    expected = onnxruntime_run(model, feeds)["loss"]
    training = build_training_graph(model, wrt=["q", "k", "v"])
    found = onnxruntime_run(training.model, feeds)
    np.testing.assert_allclose(found[training.loss], expected, rtol=1e-6)
    assert all(np.isfinite(array).all() for array in found.values())
    check_training_graph(training, feeds, rtol=2e-3)
    return training


@pytest.mark.parametrize(
    ("seen", "low"),
    [(SEEN, LOWEST), (SEEN, -np.inf), (NONE_LEFT, -np.inf)],
    ids=["lowest number", "infinite", "nothing left of a row"],
)
@pytest.mark.parametrize("mask", [CHOICE, "hidden = Not(seen) m = Where(hidden, low, zero)"], ids=["seen", "hidden"])
def test_no_guard_is_left_and_every_number_stays(mask, seen, low):
    assert not guards(trained(attention(mask, **chosen(seen, low))))


def test_attention_behind_a_mask_of_minus_infinity_goes_in_pieces():
    model = attention(CHOICE, **chosen(NONE_LEFT, -np.inf))
    whole, cut = (build_training_graph(model.clone(), wrt=["q", "k", "v"], chunks=n) for n in ("off", "attention=2"))
    assert [node.op_type for node in cut.model.graph].count("Scan") == 2
    expected, found = onnxruntime_run(whole.model), onnxruntime_run(cut.model)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("seen", [SEEN, NONE_LEFT], ids=["a key for each query", "a query without keys"])
def test_attention_as_one_node_is_as_if_it_were_written_out(seen):
    """Its definition has a guard, too, by a truth value for each row."""
    numbers = {"q": values(2, 3, 4, 2), "k": values(2, 3, 5, 2, seed=1), "v": values(*VALUES, seed=2)}
    arrays = {name: array.astype(np.float32) for name, array in {**numbers, "out": values(3, 2, seed=4)}.items()}
    proto = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["": 23]> g (bool[2, 1, 4, 5] seen) => (float[] loss) {'
        "o = Attention(q, k, v, seen) b = MatMul(o, out) c = Mul(b, b) loss = ReduceSum<keepdims=0>(c) }"
    )
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    model, feeds = infer(proto), {"seen": seen}
    whole, cut = (build_training_graph(model.clone(), wrt=["q", "k", "v"], chunks=n) for n in ("off", "attention=2"))
    of_keys = [[n.op_type for n in made.model.graph if _makes(n, (2, 3, 4, 5))] for made in (whole, cut)]
    assert "Where" not in of_keys[0]
    assert not of_keys[1]
    expected, found = onnxruntime_run(whole.model, feeds), onnxruntime_run(cut.model, feeds)
    np.testing.assert_allclose(expected[whole.loss], onnxruntime_run(model, feeds)["loss"], rtol=1e-6)
    check_training_graph(whole, feeds, rtol=2e-3)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def _makes(node: ir.Node, shape: tuple[int, ...]) -> bool:
    return any(value.shape is not None and tuple(value.shape) == shape for value in node.outputs)


def test_a_mask_that_the_file_fixes_and_that_leaves_something_of_each_row_costs_nothing():
    fixed = np.where(SEEN, 0.0, -np.inf)
    training = trained(attention("", m=fixed))
    forward = [node.op_type for node in training.model.graph if "/grad/" not in str(node.name)]
    assert forward.count("Mul") == 1
    assert not {"IsNaN", "Where", "Max", "ReduceMax"} & set(forward)


def test_a_mask_that_is_fed_may_leave_nothing_of_a_row():
    model = attention("", inputs="float[2, 1, 4, 5] m")
    for seen in (SEEN, NONE_LEFT):
        assert not guards(trained(model.clone(), {"m": np.where(seen, 0.0, -np.inf).astype(np.float32)}))


def test_a_mask_may_be_computed_of_truth_values():
    mask = "t = Cast<to=1>(seen) u = Sub(one, t) m = Mul(u, low)"
    assert not guards(trained(attention(mask, one=np.ones(()), **chosen(SEEN, -1e4))))


def test_what_is_added_to_scores_and_trained_is_finite():
    nodes = "added = Where(seen, zero, low) m = Add(q2, added)"
    model = attention(nodes, **chosen(SEEN, LOWEST), q2=values(1, 3, 4, 5, seed=5))
    assert not guards(trained(model))


@pytest.mark.parametrize(
    ("mask", "ending", "constants"),
    [
        # What weighs the values is read by another node, which is to find zeros.
        (CHOICE, "e = ReduceSum<keepdims=1>(w) a = MatMul(w, v) o = Mul(a, e)", chosen(NONE_LEFT, -np.inf)),
        # A logarithm may be minus infinity, and scores are, too.
        ("r = Abs(q2) m = Log(r)", "o = MatMul(w, v)", {"q2": np.where(SEEN, 1.0, 0.0)}),
    ],
    ids=["read by others", "logarithm that is trained"],
)
def test_a_guard_stays_where_more_than_the_product_tells_of_it(mask, ending, constants):
    model = attention(mask, ending, **constants)
    training = build_training_graph(model, wrt=["q", "k", "v", *({"q2"} & set(constants))])
    assert guards(training)


def test_half_precision_keeps_guards_of_masks_at_its_end():
    """-16 more than the lowest number of half precision is minus infinity."""
    model = attention(CHOICE, **chosen(SEEN, LOWEST))
    for name, value in model.graph.initializers.items():
        array = value.const_value.numpy()
        if array.dtype == np.float32:
            lowest = np.finfo(np.float16).min
            value.const_value = ir.tensor(np.maximum(array, lowest).astype(np.float16), name=name)
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert guards(build_training_graph(infer(proto), wrt=["q", "k", "v"]))


def test_a_step_with_guarded_softmaxes_takes_what_one_without_them_takes():
    """For masks that the file fixes and masks of the lowest number, which is what torch's default exporter writes."""
    plain = attention(CHOICE, "o = MatMul(y, v)", **chosen(SEEN, LOWEST))
    taken = [
        sum(math.prod(value.shape.numpy()) for node in found.model.graph for value in node.outputs)
        for found in (
            build_training_graph(m, wrt=["q", "k", "v"]) for m in (plain, attention(CHOICE, **chosen(SEEN, LOWEST)))
        )
    ]
    assert taken[0] == taken[1]
