"""What is read and written at columns of the places that a mask chooses, as mixtures of experts do."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.model.inference.fold import sweep
from ckplan.model.loading import normalise
from ckplan.model.masks.at_most_one import chooses_at_most_one
from tests.model.models import normal, operators, parse, run

_ASKED = "q = MatMul(x, gate) c, k = TopK<axis = -1>(q, two)"
"""Of each of four tokens the two experts of three that it asks for, [4, 2], and how much."""
_FOUND = "n = NonZero(m) i = Transpose<perm = [1, 0]>(n)"
_SLICED = """c0 = Slice(i, zero, one, one, one) c1 = Slice(i, one, two, one, one)
    a = Squeeze(c0, one) b = Squeeze(c1, one) ua = Unsqueeze(a, minus_one) ub = Unsqueeze(b, minus_one)"""
_SPLIT = "c0, c1 = Split<axis = 1>(i, ones) a = Squeeze(c0, one) b = Squeeze(c1, one) ua = Unsqueeze(a, minus_one)"
_EXPERT = "h = MatMul(r, v) t = Tanh(h)"
FORMS = {
    "slots across": f"""{_ASKED} o = OneHot(k, three, hot) e = Transpose<perm = [2, 1, 0]>(o) g = Gather(e, second)
        m = Cast<to = 9>(g) {_FOUND} {_SLICED} r = GatherND(p, ub) {_EXPERT} s = Unsqueeze(c, two)
        j = Concat<axis = -1>(ub, ua) l = GatherND(s, j) u = Mul(t, l) y = ScatterND<reduction = "add">(p, ub, u)""",
    "slots beside": f"""{_ASKED} m = Equal(k, second) {_FOUND} {_SPLIT} r = Gather(p, a) {_EXPERT}
        f = Reshape(c, eight) d = Mul(a, two) d1 = Add(b, d) l = Gather(f, d1)
        z = Shape(d1) z1 = Concat<axis = 0>(z, one) l1 = Reshape(l, z1) u = Mul(t, l1)
        g = Gather(p, a) u1 = Add(g, u) y = ScatterND(p, ua, u1)""",
    "experts beside": f"""{_ASKED} k1 = Unsqueeze(k, minus_one) m3 = Equal(k1, numbers)
        m2 = Transpose<perm = [2, 0, 1]>(m3) m = Gather(m2, second) {_FOUND} {_SLICED}
        r = GatherND(p, ua) {_EXPERT} j = Concat<axis = 1>(ua, ub) l = GatherND(c, j)
        l1 = Unsqueeze(l, minus_one) u = Mul(t, l1) y = ScatterND(p, ua, u)""",
    "rows scattered": f"""{_ASKED} m = Equal(k, second) {_FOUND} {_SPLIT} r = Gather(p, a) {_EXPERT} z = Shape(t)
        w1 = Expand(ua, z) y = ScatterElements<reduction = "add">(p, w1, t)""",
    "rows cut and scattered": f"""{_ASKED} m = Equal(k, second) {_FOUND} {_SPLIT} r = Gather(p, a) {_EXPERT}
        w1 = Expand(ua, wide) z = Shape(w1) t1 = Slice(t, zeros, z)
        y = ScatterElements<reduction = "add">(p, w1, t1)""",
    "several places of a row": f"""m = Identity(mask) {_FOUND} {_SLICED} r = GatherND(p, ua) {_EXPERT} g = Gather(v, b)
        u = Mul(t, g) y = ScatterND<reduction = "add">(p, ua, u)""",
    "edges": f"""t0 = Transpose(x) a0 = MatMul(x, t0) m = Greater(a0, zero_f) {_FOUND} {_SLICED} r0 = GatherND(p, ua)
        r1 = GatherND(p, ub) r = Mul(r0, r1) {_EXPERT} y = ScatterND<reduction = "add">(p, ua, t)""",
    "a column of the others": f"""m1 = Gather<axis = 1>(mask, second) m = Identity(m1) {_FOUND}
        c0 = Slice(i, zero, one, one) a = Squeeze(c0, one) ua = Unsqueeze(a, minus_one) r = GatherND(p, ua) {_EXPERT}
        f = Reshape(p, minus_one) d = Mul(a, three) d1 = Add(d, second) l = Gather(f, d1) l1 = Unsqueeze(l, one)
        u = Mul(t, l1) y = ScatterND(p, ua, u)""",
    "along another axis": f"""m1 = Gather<axis = 1>(mask, second) m = Identity(m1) {_FOUND} a = Squeeze(i, one)
        q = Transpose(p) q1 = Gather<axis = 1>(q, a) r = Transpose(q1) {_EXPERT} ua = Unsqueeze(a, minus_one)
        y = ScatterND(p, ua, t)""",
    "numbers of elements": f"""m = Identity(mask) {_FOUND} {_SPLIT} d = Mul(a, three) d1 = Add(d, b)
        f = Reshape(p, minus_one) r = Gather(f, d1) y = ReduceSumSquare<keepdims = 0>(r)""",
}
REFUSED = {
    "rows in the order of slots": f"""{_ASKED} o = OneHot(k, three, hot) e = Transpose<perm = [2, 1, 0]>(o)
        g = Gather(e, second) m = Cast<to = 9>(g) {_FOUND} {_SLICED} r = GatherND(p, ub) u = Add(r, v)
        y = ScatterND<reduction = "add">(p, ub, u)""",
    "running sums in the order of slots": f"""{_ASKED} k1 = Equal(k, second) m = Transpose<perm = [1, 0]>(k1) {_FOUND}
        {_SLICED} r = GatherND(p, ub) sums = CumSum(r, first)
        y = ScatterND<reduction = "add">(p, ub, sums)""",
    "one of several places of a row": f"""m = Identity(mask) {_FOUND} {_SLICED} r = GatherND(p, ua) {_EXPERT}
        y = ScatterND(p, ua, t)""",
    "the numbers themselves": f"""m = Identity(mask) {_FOUND} {_SLICED} r = GatherND(p, ua) {_EXPERT}
        f = Cast<to = 1>(ub) u = Mul(t, f) y = ScatterND<reduction = "add">(p, ua, u)""",
}


def _model(nodes: str, weight: np.ndarray | None = None) -> onnx.ModelProto:
    """What is computed of x [4, 3] times a weight [3]."""
    integers = {"zero": [0], "one": [1], "two": [2], "minus_one": [-1], "ones": [1, 1], "zeros": [0, 0]}
    integers |= {"first": 0, "hot": [0, 1], "wide": [1, 3]}
    integers |= {"eight": [8, 1], "numbers": [0, 1, 2], "three": 3, "second": 1}
    arrays = {name: np.asarray(numbers, np.int64) for name, numbers in integers.items()}
    arrays |= {"w": normal(0, 3) if weight is None else weight, "v": normal(1, 3, 3), "gate": normal(3, 3, 3)}
    arrays |= {"zero_f": np.asarray(0, np.float32)}
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[4,3] x, bool[4,3] mask) => (float loss)'
    return parse(f"{text} {{ p = Mul(x, w) {nodes} y2 = Mul(y, y) loss = ReduceSum<keepdims = 0>(y2) }}", arrays)


@pytest.mark.parametrize("form", FORMS)
def test_columns_of_places_are_read_and_written(form: str) -> None:
    model = _model(FORMS[form])
    forward = normalise(ir.from_proto(model))
    assert not {"NonZero", "GatherND", "ScatterND", "ScatterElements"} & set(operators(forward.model))
    assert any("not chosen left out" in note for note in forward.notes)
    training = build_training_graph(forward.model, loss="loss", wrt=["w"])
    names = [value.name for value in training.model.graph.outputs]
    direction = normal(5, 3)
    ahead, back = (_model(FORMS[form], (normal(0, 3) + step * direction).astype(np.float32)) for step in (1e-2, -1e-2))
    for seed in range(4):
        fed = {"x": normal(10 + seed, 4, 3), "mask": np.random.default_rng(seed).random((4, 3)) < 0.5}
        found = dict(zip(names, run(training.model, fed), strict=True))
        assert float(found[training.loss]) == pytest.approx(float(run(model, fed)[0]), rel=1e-5, abs=1e-6)
        slope = (float(run(ahead, fed)[0]) - float(run(back, fed)[0])) / 2e-2
        along = found[training.gradients["w"]] * direction
        assert float(along.sum()) == pytest.approx(slope, rel=2e-2, abs=2e-3 * (1 + float(np.abs(along).sum())))


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_not_known_of_columns_is_left_alone(form: str) -> None:
    forward = normalise(ir.from_proto(_model(REFUSED[form])))
    assert "NonZero" in operators(forward.model)
    assert not any("left out" in note for note in forward.notes)


@pytest.mark.parametrize(
    ("nodes", "axis", "expected"),
    [
        ("v, k = TopK<axis = -1>(x, two) m = Equal(k, second)", 1, True),
        ("v, k = TopK<axis = -1>(x, two) m = Equal(k, second)", 0, False),
        ("v, k = TopK<axis = 0>(x, two) m = Equal(second, k)", 0, True),
        ("v, k = TopK<axis = -1>(x, two) l = Cast<to = 6>(k) h = Cast<to = 6>(second) m = Equal(l, h)", 1, True),
        ("v, k = TopK<axis = -1>(x, two) f = Cast<to = 9>(k) g = Cast<to = 9>(second) m = Equal(f, g)", 1, False),
        ("v, k = TopK<axis = -1>(x, two) m = Equal(k, pair)", 1, False),
        ("v, k = TopK<axis = -1>(x, two) o = OneHot(k, three, hot) m = Cast<to = 9>(o)", 1, True),
        ("v, k = TopK<axis = -1>(x, two) o = OneHot(k, three, hot) m = Cast<to = 9>(o)", 2, True),
        ("v, k = TopK<axis = -1>(x, two) o = OneHot(k, three, cold) m = Cast<to = 9>(o)", 2, False),
        (
            "v, k = TopK<axis = -1>(x, two) o = OneHot<axis = 0>(k, three, hot) m = Transpose<perm = [2, 0, 1]>(o)",
            0,
            True,
        ),
        ("k = ArgMax<axis = 1>(x) m = Equal(k, numbers)", 1, True),
        ("k = ArgMax<axis = 1>(x) m = Equal(k, twice)", 1, False),
        ("k = ArgMax<axis = 1>(x) m = Equal(k, second)", 1, True),
        ("m = Greater(x, zero_f)", 1, False),
    ],
)
def test_masks_of_what_is_asked_for_once_have_one_place_at_most(nodes: str, axis: int, expected: bool) -> None:
    arrays = {"two": np.array([2]), "second": np.array(1), "pair": np.array([[0, 1]]), "three": np.array(3)}
    arrays |= {
        "hot": np.array([0, 1]),
        "cold": np.array([1, 0]),
        "numbers": np.arange(3),
        "zero_f": np.asarray(0, np.float32),
    }
    arrays |= {"twice": np.array([1, 1, 2])}
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[4,3] x) => (float[4,3] y) {{ {nodes} y = Neg(x) }}'
    model = ir.from_proto(parse(text, arrays))
    sweep(model)
    mask = next(value for node in model.graph for value in node.outputs if value.name == "m")
    assert chooses_at_most_one(mask, axis) is expected


@pytest.mark.parametrize(
    ("work", "fillings"),
    [
        ("t = Tanh(r)", 0),
        ("h = MatMul(r, v) s = Sigmoid(h) t = Mul(h, s)", 0),
        ("h = Div(r, v0) t = Pow(h, two)", 0),
        ("a1 = Abs(r) t = Log(a1)", 1),
        ("e = Exp(r) t = Div(r, e)", 1),
    ],
)
def test_experts_read_the_tokens_of_others_where_that_is_defined(work: str, fillings: int) -> None:
    """One tensor for all experts; what is chosen for its own sake, as it may be no number, is filled."""
    asked = work.replace("two", "power").replace("v0", "rows")
    nodes = f'{{}} {_FOUND} {_SLICED} r = GatherND(p, ua) {asked} y = ScatterND<reduction = "add">(p, ua, t)'
    for mask, expected in ((f"{_ASKED} m = Equal(k, second)", fillings), ("m = Identity(mask)", 1)):
        model = _model(nodes.format(mask))
        for name, array in (("power", np.asarray(2, np.float32)), ("rows", normal(2, 1, 3))):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        forward = normalise(ir.from_proto(model))
        filled = [node for node in forward.model.graph if node.op_type == "Where" and _is_filling(node.inputs[2])]
        assert len(filled) == expected


def test_zeros_that_experts_add_to_are_not_trained() -> None:
    """Read as they are, they would be added to products, as a bias is."""
    nodes = f"""{_ASKED} m = Equal(k, second) {_FOUND} {_SLICED} r = GatherND(p, ua) h = MatMul(r, v)
        g = GatherND(zeros_like, ua) t = Add(g, h) y = ScatterND(zeros_like, ua, t)"""
    model = _model(nodes)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((4, 3), np.float32), "zeros_like"))
    training = build_training_graph(normalise(ir.from_proto(model)).model, loss="loss")
    assert set(training.gradients) == {"v", "w"}


def test_an_expert_that_nobody_asks_for_has_no_gradient_whatever_its_number_divides() -> None:
    nodes = f"""{_ASKED} m = Equal(k, eight_) {_FOUND} {_SLICED} r = GatherND(p, ua) h = MatMul(r, v) o = Size(h)
        number = Cast<to = 1>(o) t = Div(h, number) y = ScatterND<reduction = "add">(p, ua, t)"""
    model = _model(nodes)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(8), "eight_"))
    training = build_training_graph(normalise(ir.from_proto(model)).model, loss="loss", wrt=["v", "w"])
    names = [value.name for value in training.model.graph.outputs]
    x = normal(6, 4, 3)
    found = dict(zip(names, run(training.model, {"x": x, "mask": np.ones((4, 3), bool)}), strict=True))
    np.testing.assert_array_equal(found[training.gradients["v"]], 0)
    np.testing.assert_allclose(found[training.gradients["w"]], 2 * (x * x * normal(0, 3)).sum(0), rtol=1e-5)


def _is_filling(value: ir.Value | None) -> bool:
    tensor = None if value is None else value.const_value
    return tensor is not None and bool((tensor.numpy() == 0.5).all())
