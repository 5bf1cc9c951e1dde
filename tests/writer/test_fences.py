"""What would be fused once a plan leaves it a single reader is kept apart before onnxruntime is asked."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ckplan.writer.control_edges import ControlEdges, is_control
from ckplan.writer.fences import fence_alone

GELU = "w = Tanh(x) s = Add(w, one) y = Mul(x, s)"
FORMS = {
    "gelu": (GELU, True),
    "silu": ("s = Sigmoid(x) y = Mul(s, x)", True),
    "addition before a normalisation": ("s = Add(x, one) y = LayerNormalization(s, scale)", True),
    "gelu whose sum is read twice": (f"{GELU} z = Neg(s)", False),
    "any other product": ("s = Exp(x) y = Mul(s, x)", False),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_last_reader_reads_an_alias(form: str) -> None:
    body, hidden = FORMS[form]
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[4,8] x) => (float[4,8] y) '
            f"<float[1] one = {{1}}, float[8] scale = {{1,1,1,1,1,1,1,1}}> {{ {body} }}"
        )
    )
    for value in (value for node in model.graph for value in node.outputs):
        value.shape, value.type = ir.Shape([4, 8]), ir.TensorType(ir.DataType.FLOAT)
    nodes = list(model.graph)
    edges = ControlEdges(model.graph)
    fence_alone(nodes, edges)
    makers = [value.producer() for node in nodes for value in node.inputs if value is not None]
    controls = [maker for maker in makers if maker is not None and is_control(maker)]
    assert all("s" in {value.name for value in control.inputs if value is not None} for control in controls)
    assert len(controls) == (1 if hidden else 0)
    assert edges.count == (1 if hidden else 0)
