"""What masks choose is computed of all elements, whatever the data choose."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import ModelError
from ckplan.model.loading import normalise
from tests.model.models import normal, operators, parse, run

_PLACES = "n = NonZero(mask) i = Transpose<perm = [1, 0]>(n)"
_ROWS = "j = Gather<axis = 1>(mask, zero) m = Squeeze(j, one) n = NonZero(m) i = Transpose<perm = [1, 0]>(n)"
_COUNTED = "f = Reshape(mask, all) c = Cast<to = 7>(f) k = ReduceSum(c)"
_IN_ORDER = "e = Reshape(p, all) k = Shape(i) c = Gather(k, zero) u = Slice(e, zero, c, zero)"
ACCEPTED = {
    "sum": f"{_PLACES} r = GatherND(p, i) s = Mul(r, r) loss = ReduceSum<keepdims = 0>(s)",
    "mean": f"{_PLACES} r = GatherND(p, i) s = Mul(r, r) loss = ReduceMean<keepdims = 0>(s)",
    "logarithm": f"""{_PLACES} a = Abs(p) z = Where(mask, a, a0) r = GatherND(z, i) s = Log(r)
        loss = ReduceMean<keepdims = 0>(s)""",
    "norm": f"{_PLACES} r = GatherND(p, i) loss = ReduceL2<keepdims = 0>(r)",
    "largest": f"{_PLACES} r = GatherND(p, i) loss = ReduceMax<keepdims = 0>(r)",
    "difference of what two nodes choose": f"""{_PLACES} n2 = NonZero(mask) i2 = Transpose<perm = [1, 0]>(n2)
        r = GatherND(p, i) q = GatherND(x, i2) o = Shape(r) z = ConstantOfShape(o) z1 = Add(z, r) z2 = Add(z1, q)
        h = Shape(z2) r1 = Expand(r, h) q1 = Expand(q, h) d = Sub(r1, q1) s = Mul(d, d)
        loss = ReduceMean<keepdims = 0>(s)""",
    "less their mean": f"""{_PLACES} r = GatherND(p, i) a = ReduceMean<keepdims = 0>(r) d = Sub(r, a) s = Mul(d, d)
        loss = ReduceSum<keepdims = 0>(s)""",
    "rows": f"""{_ROWS} r = GatherND(p, i) t = MatMul(r, v) u = Tanh(t) a = ReduceMean<keepdims = 0>(u, zero)
        s = Mul(a, a) loss = ReduceSum<keepdims = 0>(s)""",
    "rows by a vector of places": f"""{_ROWS} g = Squeeze(i, one) r = Gather(p, g) s = Mul(r, r)
        a = ReduceSum<keepdims = 0>(s, one)
        loss = ReduceMean<keepdims = 0>(a)""",
    "rows, end to end": f"""{_ROWS} r = GatherND(p, i) e = Reshape(r, all) s = Mul(e, e)
        loss = ReduceMean<keepdims = 0>(s)""",
    "rows, turned": f"""{_ROWS} r = GatherND(p, i) t = Transpose(r) s = ReduceSum<keepdims = 0>(t, one) q = Mul(s, s)
        loss = ReduceSum<keepdims = 0>(q)""",
    "compressed": """j = Gather<axis = 1>(mask, zero) m = Squeeze(j, one) r = Compress<axis = 0>(p, m) s = Mul(r, r)
        loss = ReduceMean<keepdims = 0>(s)""",
    "labels": f"""{_ROWS} n2 = NonZero(m) i2 = Transpose(n2) r = GatherND(p, i) l = GatherND(labels, i2)
        loss = SoftmaxCrossEntropyLoss(r, l)""",
    "labels, each": f"""{_ROWS} n2 = NonZero(m) i2 = Transpose(n2) r = GatherND(p, i) l = GatherND(labels, i2)
        s = SoftmaxCrossEntropyLoss<reduction = "none">(r, l) loss = ReduceMean<keepdims = 0>(s)""",
    "written": f"""{_PLACES} {_COUNTED} e = Expand(a0, k) u = Reshape(e, all) y = ScatterND(p, i, u) s = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(s)""",
    "written twice": f"""{_PLACES} {_COUNTED} e = Expand(a0, k) u = Reshape(e, all) y1 = ScatterND(p, i, u)
        o = Greater(x, a0) n2 = NonZero(o) i2 = Transpose<perm = [1, 0]>(n2) f2 = Reshape(o, all) c2 = Cast<to = 7>(f2)
        k2 = ReduceSum(c2) e2 = Expand(a0, k2) u2 = Reshape(e2, all) y2 = ScatterND(y1, i2, u2) s = Mul(y2, y2)
        loss = ReduceSum<keepdims = 0>(s)""",
    "written in order": f"""{_PLACES} {_IN_ORDER} y = ScatterND(x, i, u) s = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(s)""",
    "rows written in order": f"""j = Gather<axis = 1>(mask, zero) o = Shape(x) m = Expand(j, o) n = NonZero(m)
        i = Transpose<perm = [1, 0]>(n) {_IN_ORDER} y = ScatterND(x, i, u) s = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(s)""",
    "written in order and chosen": f"""{_PLACES} {_IN_ORDER} y = ScatterND(x, i, u) b = Greater(x, a0) n2 = NonZero(b)
        i2 = Transpose<perm = [1, 0]>(n2) r = GatherND(y, i2) s = Mul(r, r) loss = ReduceMean<keepdims = 0>(s)""",
    "changed": f"""{_PLACES} r = GatherND(p, i) d = Mul(r, r) o = Shape(i) c = Gather(o, zero) e = Reshape(d, all)
        u = Slice(e, zero, c, zero) y = ScatterND(p, i, u) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s)""",
    "divided by their number": f"""{_PLACES} r = GatherND(p, i) s = ReduceSum<keepdims = 0>(r) o = Shape<end = 1>(i)
        c = Cast<to = 1>(o) q = Div(s, c) loss = Squeeze(q)""",
    "divided by the size of what is chosen": f"""{_PLACES} r = GatherND(p, i) s = ReduceSum<keepdims = 0>(r) o = Size(r)
        c = Cast<to = 1>(o) loss = Div(s, c)""",
    "running sums": f"""{_PLACES} r = GatherND(p, i) c = CumSum(r, first) s = Mul(c, c)
        loss = ReduceSum<keepdims = 0>(s)""",
    "a softmax across": f"""{_ROWS} r = GatherND(p, i) c = Softmax<axis = 0>(r) s = Mul(c, c)
        loss = ReduceSum<keepdims = 0>(s)""",
    "times the number of features, less one": f"""{_ROWS} r = GatherND(p, i) d = ReduceSumSquare<keepdims = 0>(r)
        o = Shape(r) a = ReduceProd<keepdims = 0>(o) b = Add(a, one) c = Cast<to = 1>(b) q = Div(d, c)
        loss = Squeeze(q)""",
    "a variance": f"""{_ROWS} r = GatherND(p, i) a = ReduceMean<keepdims = 1>(r, zero) d = Sub(r, a) s = Mul(d, d)
        b = ReduceMean<keepdims = 0>(s, zero) o = Shape(r) e = Gather(o, zero) c = ReduceProd<keepdims = 0>(e)
        f = Cast<to = 1>(c) g = Mul(b, f) h = Add(f, a0) v1 = Div(g, h) loss = ReduceSum<keepdims = 0>(v1)""",
    "running sums, flat": f"""{_ROWS} r = GatherND(p, i) e = Reshape(r, all) c = CumSum(e, first) s = Mul(c, c)
        loss = ReduceSum<keepdims = 0>(s)""",
    "logarithms of a softmax across": f"""{_ROWS} r = GatherND(p, i) c = LogSoftmax<axis = 0>(r) s = Mul(c, r)
        loss = ReduceSum<keepdims = 0>(s)""",
    "logarithm of a sum of exponentials": f"""{_PLACES} r = GatherND(p, i) loss = ReduceLogSumExp<keepdims = 0>(r)""",
    "a product": f"{_PLACES} r = GatherND(p, i) loss = ReduceProd<keepdims = 0>(r)",
    "logarithm of a sum": f"{_PLACES} g = GatherND(p, i) r = Abs(g) loss = ReduceLogSum<keepdims = 0>(r)",
    "features with features": f"""{_ROWS} r = GatherND(p, i) t = Transpose(r) c = MatMul(t, r) s = Mul(c, c)
        loss = ReduceSum<keepdims = 0>(s)""",
    "features with features, by Gemm": f"""{_ROWS} r = GatherND(p, i) u = Tanh(r) c = Gemm<transA = 1>(r, u)
        s = Mul(c, c) loss = ReduceSum<keepdims = 0>(s)""",
}
REFUSED = {
    "times as many ones": f"""{_PLACES} r = GatherND(p, i) s = ReduceSum<keepdims = 0>(r) o = Shape(r)
        c = ConstantOfShape<value = float[1] {{1}}>(o) d = ReduceSum<keepdims = 0>(c) loss = Mul(s, d)""",
    "their mean, as often": f"""{_PLACES} r = GatherND(p, i) s = ReduceMean<keepdims = 0>(r) o = Shape(r)
        e = Expand(s, o) loss = ReduceSum<keepdims = 0>(e)""",
    "all but the first": f"{_PLACES} r = GatherND(p, i) c = Slice(r, one, all, zero) loss = ReduceSum<keepdims = 0>(c)",
    "products of all with all": f"""{_ROWS} r = GatherND(p, i) t = Transpose(r) c = MatMul(r, t)
        loss = ReduceSum<keepdims = 0>(c)""",
    "features cut to their number": f"""{_ROWS} r = GatherND(p, i) t = Transpose(r) o = Shape(r) c = Gather(o, zero)
        u = Slice(t, zero, c, zero) s = Mul(u, u) loss = ReduceSum<keepdims = 0>(s)""",
    "in as many rows as the mask, by chance": f"""{_ROWS} r = GatherND(p, i) t = MatMul(r, wide) e = Reshape(t, four)
        a = ReduceSum<keepdims = 0>(e, one) s = Mul(a, a) loss = ReduceSum<keepdims = 0>(s)""",
    "scattered in their order, but for the first": f"""{_PLACES} e = Reshape(p, all) o = Shape(i) c = Gather(o, zero)
        d = Add(c, one) u = Slice(e, one, d, zero) y = ScatterND(x, i, u) s = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(s)""",
}


def masked(nodes: str) -> onnx.ModelProto:
    integers = {"zero": [0], "one": [1], "all": [-1], "four": [4, -1]}
    arrays = {name: np.asarray(numbers, np.int64) for name, numbers in integers.items()}
    arrays |= {"first": np.asarray(0, np.int64), "a0": np.asarray([0.7], np.float32)}
    arrays |= {"w": normal(0, 3), "v": normal(1, 3, 2), "wide": normal(3, 3, 4)}
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[4,3] x, bool[4,3] mask, int64[4] labels) => (float loss) {{ p = Mul(x, w) {nodes} }}"""
    return parse(text, arrays)


def feeds(chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": normal(2, 4, 3), "mask": chosen, "labels": np.asarray([0, 2, 1, 2])}


MASKS = [np.random.default_rng(seed).random((4, 3)) < 0.5 for seed in range(3)] + [np.ones((4, 3), bool)]


@pytest.mark.parametrize("form", ACCEPTED)
def test_chosen_elements_have_gradients_whatever_is_chosen(form: str) -> None:
    model = masked(ACCEPTED[form])
    forward = normalise(ir.from_proto(model))
    assert not {"NonZero", "Compress", "GatherND", "ScatterND"} & set(operators(forward.model))
    noted = [
        sum(words in note for note in forward.notes) for words in ("not chosen left out", "write in order is looked up")
    ]
    assert noted == [form not in ("written in order", "rows written in order"), "in order" in form]
    training = build_training_graph(forward.model, loss="loss", wrt=["w"])
    names = [value.name for value in training.model.graph.outputs]
    start, direction = normal(0, 3), normal(5, 3)

    def loss(step: float, chosen: np.ndarray) -> float:
        """That of the file as it is."""
        moved = onnx.ModelProto()
        moved.CopyFrom(model)
        weight = next(one for one in moved.graph.initializer if one.name == "w")
        weight.CopyFrom(onnx.numpy_helper.from_array((start + step * direction).astype(np.float32), "w"))
        return float(run(moved, feeds(chosen))[0])

    for chosen in MASKS:
        found = dict(zip(names, run(training.model, feeds(chosen)), strict=True))
        assert float(found[training.loss]) == pytest.approx(loss(0, chosen), rel=1e-5, abs=1e-6)
        slope = (loss(1e-2, chosen) - loss(-1e-2, chosen)) / 2e-2
        along = found[training.gradients["w"]] * direction
        assert np.isfinite(along).all()
        assert float(along.sum()) == pytest.approx(slope, rel=2e-2, abs=2e-3 * (1 + float(np.abs(along).sum())))


@pytest.mark.parametrize("form", REFUSED)
def test_what_their_number_or_order_decides_is_left_alone(form: str) -> None:
    model = masked(REFUSED[form])
    run(model, feeds(MASKS[0]))
    forward = normalise(ir.from_proto(model))
    assert "NonZero" in operators(forward.model)
    assert not any("left out" in note for note in forward.notes)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("sum", 0.0),
        ("mean", np.nan),
        ("a product", 1.0),
        ("a softmax across", 0.0),
        ("features with features", 0.0),
        ("running sums", 0.0),
    ],
)
def test_of_nothing_a_sum_has_no_gradient_and_a_mean_is_no_number(form: str, expected: float) -> None:
    training = build_training_graph(normalise(ir.from_proto(masked(ACCEPTED[form]))).model, loss="loss", wrt=["w"])
    names = [value.name for value in training.model.graph.outputs]
    found = dict(zip(names, run(training.model, feeds(np.zeros((4, 3), bool))), strict=True))
    np.testing.assert_array_equal(found[training.loss], np.float32(expected))
    if form != "mean":
        np.testing.assert_array_equal(found[training.gradients["w"]], 0)


@pytest.mark.parametrize("last", [True, False])
def test_the_row_of_each_sample_at_the_end_of_a_text_is_looked_up(last: bool) -> None:
    """As a BART classifies: by the last of the rows that stand at end tokens, of which each sample has as many."""
    ids = np.array([[5, 2, 2, 7], [2, 1, 2, 3]])
    nodes = f"""m = Equal(ids, end) {_PLACES.replace("mask", "m")} p = Mul(x, w) r = GatherND(p, i)
        v = Reshape(r, samples) y = Gather<axis = 1>(v, {"minus_one" if last else "first"})"""
    arrays = {"end": np.asarray(2), "samples": np.asarray([2, -1, 3]), "w": normal(0, 3)}
    arrays |= {"minus_one": np.asarray(-1), "first": np.asarray(0)}
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2,4,3] x, int64[2,4] ids) => (float[2,3] y)'
    model = parse(f"{text} {{ {nodes} }}", arrays)
    forward = normalise(ir.from_proto(model))
    assert any("of what 1 mask(s) choose a row of each sample is looked up" in note for note in forward.notes)
    x = normal(1, 2, 4, 3)
    np.testing.assert_array_equal(run(forward.model, {"x": x, "ids": ids})[0], run(model, {"x": x, "ids": ids})[0])
    training = build_training_graph(forward.model, loss="sum", wrt=["w"])
    places = [2, 2] if last else [1, 0]
    np.testing.assert_allclose(run(training.model, {"x": x, "ids": ids})[1], x[[0, 1], places].sum(0), rtol=1e-6)


@pytest.mark.parametrize("rows", [2, 1])
def test_rows_that_are_written_where_a_mask_chooses_as_many_are_looked_up(rows: int) -> None:
    """As a Kosmos-2 puts what it sees of an image among the tokens of a text; one row would be written everywhere."""
    nodes = """p = Mul(x, w) t = Unsqueeze(mask, minus_one) m = Expand(t, sizes) n = NonZero(m)
        i = Transpose<perm = [1, 0]>(n) f = Reshape(mask, minus_one) c = Cast<to = 7>(f) k = ReduceSum<keepdims = 1>(c)
        h = Concat<axis = 0>(k, three) e = Expand(seen, h) u = Reshape(e, minus_one) s = ScatterND(p, i, u)
        y = Mul(s, s)"""
    arrays = {"minus_one": np.array([-1]), "sizes": np.array([2, 4, 3]), "three": np.array([3]), "w": normal(0, 3)}
    seen = normal(2, rows, 3)
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2,4,3] x, bool[2,4] mask) => (float[2,4,3] y)'
    model = parse(f"{text} {{ {nodes} }}", arrays | {"seen": seen})
    forward = normalise(ir.from_proto(model))
    assert any("what 1 mask(s) write in order is looked up" in note for note in forward.notes) is (rows > 1)
    x = normal(1, 2, 4, 3)
    training = build_training_graph(forward.model, loss="sum", wrt=["w", "seen"])
    for places in ([[0, 1], [2, 3]], [[1, 1], [0, 3]]):
        mask = np.zeros((2, 4), bool)
        mask[tuple(places)] = True
        fed = {"x": x, "mask": mask}
        np.testing.assert_array_equal(run(forward.model, fed)[0], run(model, fed)[0])
        found = dict(zip([one.name for one in training.model.graph.outputs], run(training.model, fed), strict=True))
        np.testing.assert_allclose(found[training.gradients["seen"]], 2 * seen * 2 / rows, rtol=1e-6)
        kept = 2 * x**2 * normal(0, 3) * ~mask[..., None]
        np.testing.assert_allclose(found[training.gradients["w"]], kept.sum((0, 1)), rtol=1e-5)


_WRITE_BACK = """t = Unsqueeze(mask, minus_one) m = Expand(t, sizes) n2 = NonZero(m) i2 = Transpose<perm = [1, 0]>(n2)
    f = Reshape(mask, minus_one) c = Cast<to = 7>(f) k = ReduceSum<keepdims = 1>(c) h = Concat<axis = 0>(k, three)
    e = Expand(a, h) u = Reshape(e, minus_one) s = ScatterND(p, i2, u)"""
_APART = """c0 = Slice(i, zero, one, one, one) v0 = Squeeze(c0, one)
    c1 = Slice(i, one, two, one, one) v1 = Squeeze(c1, one)
    k = Shape(v0) h = Concat<axis = 0>(k, three) w0 = Unsqueeze(v0, minus_one) w1 = Unsqueeze(v1, minus_one)
    j = Concat<axis = -1>(w0, w1)"""
MET = {
    "added": f"{_PLACES} r = GatherND(p, i) a = Add(r, seen) {_WRITE_BACK}",
    "changed, then multiplied": f"{_PLACES} g = GatherND(p, i) r = Neg(g) a = Mul(seen, r) {_WRITE_BACK}",
    "written at columns of places": f"{_PLACES} {_APART} e = Expand(seen, h) s = ScatterND(p, j, e)",
    "written at columns of places, reshaped": f"{_PLACES} {_APART} e = Reshape(seen, h) s = ScatterND(p, j, e)",
    "added twice": f"""{_PLACES} r = GatherND(p, i) b = Add(r, seen) {_WRITE_BACK.replace("(a, h)", "(b, h)")}
        r2 = GatherND(s, i) a2 = Add(r2, seen) e2 = Expand(a2, h) u2 = Reshape(e2, minus_one)
        s2 = ScatterND(s, i2, u2)""",
}
"""How rows of as many as a mask chooses meet what it chooses of p."""


@pytest.mark.parametrize("form", MET)
def test_rows_that_meet_what_a_mask_chooses_are_looked_up(form: str) -> None:
    """As a Qwen3-VL adds features of images to tokens of a text in several layers."""
    last = "s2" if form == "added twice" else "s"
    arrays = {"minus_one": np.array([-1]), "sizes": np.array([2, 4, 3]), "three": np.array([3]), "w": normal(0, 3)}
    arrays |= {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "seen": normal(2, 2, 3)}
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2,4,3] x, bool[2,4] mask) => (float[2,4,3] y)'
    model = parse(f"{text} {{ p = Mul(x, w) {MET[form]} y = Mul({last}, {last}) }}", arrays)
    forward = normalise(ir.from_proto(model))
    assert any("one for one, is looked up" in note for note in forward.notes)
    training = build_training_graph(forward.model, loss="sum", wrt=["w", "seen"])
    x, w, seen = normal(1, 2, 4, 3), arrays["w"], arrays["seen"]
    for places in ([[0, 1], [2, 3]], [[0, 0], [0, 3]]):
        mask = np.zeros((2, 4), bool)
        mask[tuple(places)] = True
        fed = {"x": x, "mask": mask}
        (squares,) = run(forward.model, fed)
        np.testing.assert_array_equal(squares, run(model, fed)[0])
        chosen = (x * w)[mask]
        value, by_seen, by_chosen = {
            "added": (chosen + seen, 1, 1),
            "changed, then multiplied": (-chosen * seen, -chosen, -seen),
            "written at columns of places": (seen, 1, 0),
            "written at columns of places, reshaped": (seen, 1, 0),
            "added twice": (chosen + 2 * seen, 2, 1),
        }[form]
        found = dict(zip([one.name for one in training.model.graph.outputs], run(training.model, fed), strict=True))
        np.testing.assert_allclose(found[training.gradients["seen"]], 2 * value * by_seen, rtol=1e-5)
        slopes = 2 * x * w
        slopes[mask] = 2 * value * by_chosen
        np.testing.assert_allclose(found[training.gradients["w"]], (slopes * x).sum((0, 1)), rtol=1e-5)


def test_rows_are_not_taken_for_those_that_a_mask_chooses_where_nothing_is_written_back() -> None:
    """Where one element is chosen, these are its distances from three others."""
    model = masked(f"{_PLACES} r = GatherND(p, i) d = Sub(r, several) s = Mul(d, d) loss = ReduceSum<keepdims = 0>(s)")
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 3), "several"))
    one = np.zeros((4, 3), bool)
    one[2, 1] = True
    run(model, feeds(one))
    with pytest.raises(ModelError, match="in a form in which data decide no sizes"):
        normalise(ir.from_proto(model))
