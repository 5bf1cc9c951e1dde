"""Operators of TensorFlow that tf2onnx leaves in a file."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan.model.loading import normalise
from tests.model.models import normal, run

torch = pytest.importorskip("torch")

GELU = """
    half = Constant <value_float = 0.5> () root = Constant <value_float = 0.70710677> ()
    h = MatMul (x, w) m = Mul (half, h) n = Neg (h) u = Mul (n, root) e = Erfc (u) y = Mul (m, e)
"""
CASES = {
    "a GELU of Keras": (GELU, torch.nn.functional.gelu),
    "Erfc": ("h = MatMul (x, w) y = Erfc (h)", torch.erfc),
    "Expm1": ("h = MatMul (x, w) y = Expm1 (h)", torch.expm1),
}


def model_of(nodes: str, dtype: str = "float") -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 15]> g ({dtype}[2,4] x) => ({dtype}[2,4] y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    weight = normal(1, 4, 4).astype(
        onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


@pytest.mark.parametrize("case", CASES)
def test_they_have_values_and_gradients(case: str) -> None:
    nodes, function = CASES[case]
    x, weight, target = (torch.tensor(normal(*shape)).double() for shape in ((2, 2, 4), (1, 4, 4), (3, 2, 4)))
    weight.requires_grad_()
    wanted = function(x @ weight)
    torch.nn.functional.mse_loss(wanted, target).backward()
    forward = normalise(ir.from_proto(model_of(nodes)))
    assert any("1 node(s) of TensorFlow's, which ONNX does not have" in note for note in forward.notes)
    feeds = {"x": x.numpy().astype(np.float32), "target": target.numpy().astype(np.float32)}
    np.testing.assert_allclose(run(forward.model, {"x": feeds["x"]})[0], wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    step = ckplan.open_model(model_of(nodes), loss="mse")
    assert list(step.training.gradients) == ["w"]
    found = dict(zip([value.name for value in step.model.graph.outputs], run(step.model, feeds), strict=True))
    np.testing.assert_allclose(found[step.training.gradients["w"]], weight.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_in_a_branch() -> None:
    body = "g () => (float[2,4] {0}) {{ {0} = {1} (h) }}"
    branches = f"then_branch = {body.format('a', 'Erfc')}, else_branch = {body.format('b', 'Expm1')}"
    nodes = f"h = MatMul (x, w) s = ReduceSum <keepdims = 0> (h) c = IsNaN (s) y = If <{branches}> (c)"
    forward = normalise(ir.from_proto(model_of(nodes)))
    assert any("2 node(s) of TensorFlow's" in note and "Erfc, Expm1" in note for note in forward.notes)


@pytest.mark.parametrize(("operator", "dtype"), [("Erfc", "float16"), ("Expm1", "float16"), ("Expm1", "double")])
def test_of_a_type_that_the_file_does_not_name(operator: str, dtype: str) -> None:
    model = model_of(f"h = MatMul (x, w) e = {operator} (h) y = Neg (e)", dtype)
    forward = normalise(ir.from_proto(model))
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0])
    x = normal(2, 2, 4).astype(weight.dtype)
    wanted = CASES[operator][1](torch.tensor(x) @ torch.tensor(weight))
    np.testing.assert_allclose(run(forward.model, {"x": x})[0], -wanted.numpy(), rtol=2e-2, atol=1e-3)
    assert list(ckplan.open_model(model, loss="mse").training.gradients) == ["w"]
