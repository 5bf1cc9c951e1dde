"""Dropout."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import check_gradient, infer, onnxruntime_run, to_dtype, values, weighed

X = values(6, 50)


def model_of(*inputs, outputs=1) -> onnx.ModelProto:
    """Dropout of p0; the model gives what it kept as well."""
    arrays = [X, *inputs]
    names = ["p0", "c1", "c2"][: len(arrays)]
    results = ["y0", "y1"][:outputs]
    node = onnx.helper.make_node("Dropout", names, results, name="node", seed=7)
    return weighed([node], [onnx.numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)], results)


@pytest.mark.parametrize("inputs", [(), (np.array(0.3),), (np.array(0.3), np.array(False))])
def test_inference_mode_passes_the_gradient_on(inputs):
    gradients = check_gradient(model_of(*inputs))
    assert gradients["p0"].all()


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("outputs", [1, 2])
def test_training_mode_drops_what_the_forward_pass_dropped(ratio, outputs):
    model = to_dtype(model_of(np.array(ratio), np.array(True), outputs=outputs), np.float32)
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    (node,) = [node for node in training.model.graph if node.op_type == "Dropout"]
    assert len(node.outputs) == 2
    training.model.graph.outputs.append(node.outputs[0])
    ran = onnxruntime_run(training.model)
    y, gradient = ran["y0"], ran[training.gradients["p0"]]
    weight = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "weight_y0")
    # y is x where it is kept, and no x is zero.
    np.testing.assert_allclose(gradient, weight * y / X.astype(np.float32), rtol=1e-5)
    assert ratio == 0.0 or (gradient == 0).mean() == pytest.approx(ratio, abs=0.1)


@pytest.mark.parametrize("training_mode", [True, False])
def test_ratio_and_mode_may_be_fed(training_mode):
    model = to_dtype(model_of(np.array(0.25), np.array(training_mode)), np.float32)
    for name, kind in (("c1", onnx.TensorProto.FLOAT), ("c2", onnx.TensorProto.BOOL)):
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, []))
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    training.model.graph.outputs.append(next(v for n in training.model.graph for v in n.outputs if v.name == "y0"))
    ran = onnxruntime_run(training.model, {"c1": np.array(0.25, np.float32), "c2": np.array(training_mode)})
    weight = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "weight_y0")
    np.testing.assert_allclose(ran[training.gradients["p0"]], weight * ran["y0"] / X.astype(np.float32), rtol=1e-5)


def test_a_node_without_a_ratio_drops_half():
    model = to_dtype(model_of(np.array(0.9), np.array(True)), np.float32)
    model.graph.node[0].input[1] = ""
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    gradient = onnxruntime_run(training.model)[training.gradients["p0"]]
    assert (gradient == 0).mean() == pytest.approx(0.5, abs=0.1)
    weight = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "weight_y0")
    np.testing.assert_allclose(gradient[gradient > 0], 2 * weight[gradient > 0], rtol=1e-6)
