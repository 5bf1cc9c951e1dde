"""Rows that are cut where data say, as a mixture of experts cuts the tokens that it has sorted."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import ModelError
from ckplan.model.loading import normalise
from tests.model.models import normal, operators, parse, run

_COUNTED = """e1 = Unsqueeze(expert, minus_one) e2 = Equal(e1, numbers) e3 = Cast<to = 7>(e2)
    counts = ReduceSum<keepdims = 0>(e3, zero)"""
_SORTED = "e4, order = TopK<axis = 0, largest = 0>(expert, six) r = Gather(p, order)"
"""Rows [6, 3] expert by expert; which of the three each belongs to is an input, so that some may have none."""
_EXPERTS = "t0 = MatMul(r0, v0) t1 = MatMul(r1, v1) a2 = Gemm<transB = 1>(r2, v2, w) t2 = Tanh(a2)"
_SPLIT = f"{_COUNTED} {_SORTED} r0, r1, r2 = Split(r, counts) {_EXPERTS}"
_BACK = "o = Unsqueeze(order, minus_one) o1 = Expand(o, wide)"
FORMS = {
    "put together": f"{_SPLIT} y = Concat<axis = 0>(t0, t1, t2)",
    "put back": f"{_SPLIT} y0 = Concat<axis = -2>(t0, t1, t2) {_BACK} y = ScatterElements(p, o1, y0)",
    "cut twice": f"""{_SPLIT} h0 = Concat<axis = 0>(t0, t1, t2) h1 = Sigmoid(h0) s0, s1, s2 = Split(h1, counts)
        u0 = MatMul(s0, v2) u1 = Mul(s1, w) u2 = Identity(s2) y = Concat<axis = 0>(u0, u1, u2)""",
    "in a sequence": f"""{_COUNTED} {_SORTED} s = SplitToSequence<axis = 0>(r, counts) r0 = SequenceAt(s, first)
        r1 = SequenceAt(s, second) r2 = SequenceAt(s, last) {_EXPERTS} y = Concat<axis = 0>(t0, t1, t2)""",
    "sums": f"""{_SPLIT} s0 = ReduceSum(t0, zero) s1 = ReduceSum(t1, zero) s2 = ReduceSum(t2, zero)
        y = Concat<axis = 0>(s2, s1, s0)""",
    "a product": f"{_SPLIT} y = ReduceProd(t1, zero)",
}
REFUSED = {
    "in another order": f"{_SPLIT} y = Concat<axis = 0>(t1, t0, t2)",
    "turned round": f"{_SPLIT} b = Slice(t0, minus_one, lowest, zero, minus_one) y = Concat<axis = 0>(b, t1, t2)",
}


def _model(nodes: str, weight: np.ndarray | None = None) -> onnx.ModelProto:
    """What is computed of x [6, 3] times a weight [3]."""
    integers = {"minus_one": [-1], "zero": [0], "six": [6], "numbers": [[0, 1, 2]], "wide": [6, 3], "lowest": [-99]}
    integers |= {"first": 0, "second": 1, "last": -1}
    arrays = {name: np.asarray(numbers, np.int64) for name, numbers in integers.items()}
    arrays |= {f"v{index}": normal(index, 3, 3) for index in range(3)}
    arrays |= {"w": normal(4, 3) if weight is None else weight}
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[6,3] x, int64[6] expert) => (float loss)'
    return parse(f"{text} {{ p = Mul(x, w) {nodes} y2 = Mul(y, y) loss = ReduceSum<keepdims = 0>(y2) }}", arrays)


@pytest.mark.parametrize("form", FORMS)
def test_parts_are_computed_of_all_rows(form: str) -> None:
    model = _model(FORMS[form])
    forward = normalise(ir.from_proto(model))
    assert not {"Split", "SplitToSequence", "Compress", "NonZero", "ScatterND"} & set(operators(forward.model))
    assert any("not chosen left out" in note for note in forward.notes)
    training = build_training_graph(forward.model, loss="loss", wrt=["w"])
    names = [value.name for value in training.model.graph.outputs]
    direction = normal(5, 3)
    ahead, back = (_model(FORMS[form], (normal(4, 3) + step * direction).astype(np.float32)) for step in (1e-2, -1e-2))
    for seed in range(5):
        expert = np.random.default_rng(seed).integers(0, 1 + seed % 3, 6)
        fed = {"x": normal(10 + seed, 6, 3), "expert": expert}
        found = dict(zip(names, run(training.model, fed), strict=True))
        assert float(found[training.loss]) == pytest.approx(float(run(model, fed)[0]), rel=1e-5, abs=1e-6)
        slope = (float(run(ahead, fed)[0]) - float(run(back, fed)[0])) / 2e-2
        along = found[training.gradients["w"]] * direction
        assert float(along.sum()) == pytest.approx(slope, rel=2e-2, abs=2e-3 * (1 + float(np.abs(along).sum())))


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_not_known_of_parts_is_left_alone(form: str) -> None:
    forward = normalise(ir.from_proto(_model(REFUSED[form])))
    assert "Split" in operators(forward.model)
    assert not any("left out" in note for note in forward.notes)
    with pytest.raises(ModelError, match="depends on what Split"):
        build_training_graph(forward.model, loss="loss")


def test_sizes_of_an_unknown_number_stay_a_sequence() -> None:
    """How many parts there are is not known where their sizes come from outside in a free number."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[6,3] x, int64[n] counts) => (float loss)
        { s = SplitToSequence<axis = 0>(x, counts) r = SequenceAt(s, first) loss = ReduceSum<keepdims = 0>(r) }"""
    model = parse(text, {"first": np.asarray(0)})
    forward = normalise(ir.from_proto(model), dims={"n": 2})
    assert "SplitToSequence" not in operators(forward.model)
