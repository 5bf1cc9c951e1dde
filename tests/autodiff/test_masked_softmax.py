"""Softmax behind a mask that takes chances to denormal numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import check_gradient, infer, onnxruntime_run, to_dtype, values

MASK = np.where(np.arange(5) > 2, 1.0, 0.0) * np.ones((5, 1))


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
    arrays |= {"weights": values(2, 5, 3, seed=3), "m": mask * MASK, "masked": MASK > 0, "low": np.asarray(mask)}
    proto = onnx.parser.parse_model(text)
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in read)
    return proto


def step(model: onnx.ModelProto) -> TrainingGraph:
    return build_training_graph(infer(to_dtype(model, np.float32)), loss="loss", wrt=["p*"])


def chances_of(training: TrainingGraph) -> tuple[np.ndarray, np.ndarray]:
    """What the Softmax makes, and what is read of it."""
    graph = training.model.graph
    softmax = next(node for node in graph if node.op_type == "Softmax")
    (use,) = softmax.outputs[0].uses()
    flushed = next(iter(use.node.outputs[0].uses())).node.outputs[0]
    graph.outputs.extend([softmax.outputs[0], flushed])
    found = onnxruntime_run(training.model)
    return found[softmax.outputs[0].name], found[flushed.name]


@pytest.mark.parametrize("scores", ["s = Add(products, m)", "s = Where(masked, low, products)"])
def test_no_chance_is_denormal(scores):
    model = attention(scores=scores)
    check_gradient(model)
    before, after = chances_of(step(model))
    smallest = np.finfo(np.float32).tiny
    assert np.any((before > 0) & (before < smallest))
    assert not np.any((after > 0) & (after < smallest))
    np.testing.assert_array_equal(after[before > 2.0**-77], before[before > 2.0**-77])
    np.testing.assert_allclose(after, before, rtol=0, atol=smallest)


def test_nan_is_not_hidden():
    model = attention()
    scores = next(array for array in model.graph.initializer if array.name == "p0")
    scores.CopyFrom(onnx.numpy_helper.from_array(np.full((2, 5, 4), np.nan), "p0"))
    before, after = chances_of(step(model))
    assert np.isnan(before).all()
    assert np.isnan(after).all()


@pytest.mark.parametrize("mask", [-3e38, -1e4, -10.0])
def test_behind_other_masks_there_are_none(mask):
    softmax = next(node for node in step(attention(mask)).model.graph if node.op_type == "Softmax")
    assert "MatMul" in [use.node.op_type for use in softmax.outputs[0].uses()]
