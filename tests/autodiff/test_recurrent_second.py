"""Gradients of gradients of recurrent nodes, against finite differences of the gradients."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import infer, onnxruntime_run
from tests.autodiff.recurrent_cases import Case, training_graph


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [("LSTM", {}), ("GRU", {"direction": "reverse"}), ("RNN", {"direction": "bidirectional"})],
)
def test_second_derivatives(op_type, attributes):
    case = Case(op_type, attributes, "bhc", (4, 3), (0,), (4, 2, 2, 3))
    first = training_graph(case)
    proto = ir.to_proto(first.model)
    squares = [f"square{k}" for k in range(len(first.gradients))]
    for name, gradient in zip(squares, first.gradients.values(), strict=True):
        proto.graph.node.append(helper.make_node("ReduceSumSquare", [gradient], [name], keepdims=0))
    proto.graph.node.append(helper.make_node("Sum", squares, ["norm"]))
    del proto.graph.output[:], proto.graph.input[:]
    proto.graph.output.append(helper.make_tensor_value_info("norm", TensorProto.DOUBLE, []))
    second = build_training_graph(infer(proto), loss="norm", wrt=["p*"])
    got = onnxruntime_run(second.model)

    start = {f"p{k}": a for k, a in enumerate(case.inputs()) if a is not None and a.dtype.kind == "f"}
    assert set(second.gradients) == set(start)
    rng = np.random.default_rng(5)
    directions = {name: rng.uniform(-1, 1, value.shape) for name, value in start.items()}

    def norm(step: float) -> float:
        moved = {name: value + step * directions[name] for name, value in start.items()}
        return float(onnxruntime_run(second.model, moved)["norm"])

    slope = (norm(1e-5) - norm(-1e-5)) / 2e-5
    products = [float((got[gradient] * directions[name]).sum()) for name, gradient in second.gradients.items()]
    np.testing.assert_allclose(sum(products), slope, rtol=0, atol=1e-6 * sum(map(abs, products)))
