"""Softmax behind a mask that takes chances to denormal numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.rules.softmaxes import masked_softmax
from tests.autodiff.gradcheck import check_gradient, infer, onnxruntime_run, to_dtype, values

MASK = np.where(np.arange(5) > 2, 1.0, 0.0) * np.ones((5, 1))
FEW = np.where(np.arange(5) > 3, 1.0, 0.0) * np.asarray([1, 1, 1, 1, 0.0]).reshape(5, 1)


def attention(mask=-100.0, scores="s = Add(products, m)") -> onnx.ModelProto:
    """One attention of p0 on p1 with the values p2."""
    text = f"""<ir_version: 10, opset_import: ["": 21]> g () => (double loss) {{
        products = MatMul(p0, p1)
        {scores}
        chances = Softmax <axis = -1> (s)
        context = MatMul(chances, p2)
        y = Tanh(context)
        weighed = Mul(y, weights)
        loss = ReduceSum <keepdims = 0> (weighed)
    }}"""
    arrays = {"p0": values(2, 5, 4), "p1": values(2, 4, 5, seed=1), "p2": values(2, 5, 3, seed=2)}
    arrays |= {"weights": values(2, 5, 3, seed=3), "m": np.where(MASK > 0, mask, 0.0)}
    arrays |= {"masked": MASK > 0, "shown": MASK <= 0, "low": np.asarray(mask), "least": np.asarray(-1e9)}
    proto = onnx.parser.parse_model(text)
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in read)
    return proto


def step(model: onnx.ModelProto) -> TrainingGraph:
    return build_training_graph(infer(to_dtype(model, np.float32)), loss="loss", wrt=["p*"])


def chances_of(model: onnx.ModelProto) -> np.ndarray:
    """What the Softmax of the training graph makes."""
    training = step(model)
    softmax = next(node for node in training.model.graph if node.op_type == "Softmax")
    training.model.graph.outputs.append(softmax.outputs[0])
    return onnxruntime_run(training.model)[str(softmax.outputs[0].name)]


def plain_chances(model: onnx.ModelProto) -> np.ndarray:
    """What it makes in the model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(to_dtype(model, np.float32))
    copy.graph.output.append(onnx.helper.make_tensor_value_info("chances", onnx.TensorProto.FLOAT, [2, 5, 5]))
    return onnxruntime_run(infer(copy))["chances"]


def exact_chances(model: onnx.ModelProto) -> np.ndarray:
    """What it should make, in double precision: onnxruntime's kernel without AVX-512 has zeros for denormal numbers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.append(onnx.helper.make_tensor_value_info("chances", onnx.TensorProto.DOUBLE, [2, 5, 5]))
    return onnx.reference.ReferenceEvaluator(copy).run(["chances"], {})[0]


def set_array(model: onnx.ModelProto, name: str, array: np.ndarray) -> None:
    next(tensor for tensor in model.graph.initializer if tensor.name == name).CopyFrom(
        onnx.numpy_helper.from_array(array, name)
    )


@pytest.mark.parametrize("scores", ["s = Add(products, m)", "s = Where(masked, low, products)"])
def test_no_chance_is_denormal(scores):
    model = attention(scores=scores)
    check_gradient(model)
    exact, before = exact_chances(model), plain_chances(model)
    assert np.any((exact > np.finfo(np.float32).smallest_subnormal) & (exact < np.finfo(np.float32).tiny))
    after = chances_of(model)
    assert after.min() > 1e-23
    np.testing.assert_array_equal(after[before > 1e-20], before[before > 1e-20])
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-21)


@pytest.mark.parametrize("slope", [0.0, 60.0, -60.0, 300.0])
def test_scores_may_lie_anywhere(slope):
    """A mask that scores exceed masks nothing."""
    model = attention()
    set_array(model, "m", -100.0 * MASK + slope * np.arange(5))
    np.testing.assert_allclose(chances_of(model), plain_chances(model), rtol=0, atol=1e-21)


@pytest.mark.parametrize("places", [slice(None), (0, 1, 2)])
def test_nan_is_not_hidden(places):
    model, scores = attention(), values(2, 5, 4)
    scores[places] = np.nan
    set_array(model, "p0", scores)
    np.testing.assert_array_equal(np.isnan(chances_of(model)), np.isnan(plain_chances(model)))
    assert np.isnan(chances_of(model)).any()


def test_a_score_that_is_nan_alone_is_not_hidden():
    model = attention()
    mask = -100.0 * MASK
    mask[1, 2] = np.nan
    set_array(model, "m", mask)
    assert np.isnan(chances_of(model)[:, 1]).all()


PARTLY_FED = """some = Greater(products, least)
        both = And(some, shown)
        s = Where(both, products, low)"""
"""Behind a mask of which the file fixes a part: what is shown depends on something else as well."""


@pytest.mark.parametrize("scores", ["s = Add(products, m)", "s = Where(masked, low, products)", PARTLY_FED])
@pytest.mark.parametrize("mask", [-np.inf, -3e38, -1e4])
def test_behind_a_far_lower_mask_nothing_changes_that_counts(scores, mask, monkeypatch):
    monkeypatch.setattr(masked_softmax, "_LONG_ROW", 5)
    model = attention(mask, scores)
    before, after = plain_chances(model), chances_of(model)
    assert not before[..., 3:].any()
    np.testing.assert_array_equal(after[..., :3], before[..., :3])
    np.testing.assert_allclose(after[..., 3:], 0.0, rtol=0, atol=1e-21)
    assert after.min() > 1e-23


def test_a_row_that_is_masked_as_a_whole_stays_what_it_is(monkeypatch):
    monkeypatch.setattr(masked_softmax, "_LONG_ROW", 5)
    model = attention()
    mask = np.where(MASK > 0, -3e38, 0.0)
    mask[2] = -3e38
    mask[3] = -np.inf
    set_array(model, "m", mask)
    np.testing.assert_allclose(chances_of(model), plain_chances(model), rtol=0, atol=1e-21)


@pytest.mark.parametrize(("mask", "long"), [(-10.0 * MASK, 5), (-3e38 * FEW, 5), (-3e38 * MASK, 6)])
def test_behind_other_masks_there_are_no_such_nodes(mask, long, monkeypatch):
    monkeypatch.setattr(masked_softmax, "_LONG_ROW", long)
    model = attention()
    set_array(model, "m", mask)
    softmax = next(node for node in step(model).model.graph if node.op_type == "Softmax")
    assert softmax.inputs[0].producer().op_type == "Add"


def test_chances_of_a_row_behind_infinite_masks_alone_are_no_numbers_as_in_the_model():
    model = attention()
    mask = np.where(MASK > 0, -100.0, 0.0)
    mask[1] = -np.inf
    set_array(model, "m", mask)
    found, expected = chances_of(model), plain_chances(model)
    assert np.isnan(expected[:, 1]).all()
    assert np.array_equal(np.isnan(found), np.isnan(expected))
