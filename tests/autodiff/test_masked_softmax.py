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


def operators(training: TrainingGraph) -> list[str]:
    return [node.op_type for node in training.model.graph]


@pytest.mark.parametrize("scores", ["s = Add(products, m)", "s = Where(masked, low, products)"])
def test_no_chance_is_denormal(scores):
    model = attention(scores=scores)
    check_gradient(model)
    training = step(model)
    flush = next(node for node in training.model.graph if node.op_type == "ThresholdedRelu")
    chances = flush.inputs[0]
    training.model.graph.outputs.extend([chances, flush.outputs[0]])
    found = onnxruntime_run(training.model)
    before, after = found[chances.name], found[flush.outputs[0].name]
    smallest = np.finfo(np.float32).tiny
    assert np.any((before > 0) & (before < smallest))
    np.testing.assert_array_equal(after, np.where(before < smallest, 0, before))


def test_the_backward_pass_reads_the_flushed_chances():
    graph = step(attention()).model.graph
    softmax = next(node for node in graph if node.op_type == "Softmax")
    assert [use.node.op_type for use in softmax.outputs[0].uses()] == ["ThresholdedRelu"]


@pytest.mark.parametrize("mask", [-3e38, -1e4, -10.0])
def test_behind_other_masks_there_are_none(mask):
    assert "ThresholdedRelu" not in operators(step(attention(mask)))
