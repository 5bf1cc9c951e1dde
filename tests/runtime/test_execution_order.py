"""The model of onnxruntime's default execution order, against real profiles of random graphs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ckplan.runtime.executing.execution_order import default_order, predecessors
from tests.writer.runtime import profile


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Random DAGs of Add, Tanh, Shape and the like; some values are outputs of the file."""
    values = ["x"]
    nodes = []
    outputs = []
    for index in range(draw(st.integers(2, 14))):
        kind = draw(st.sampled_from(["Add", "Tanh", "Neg", "Sum", "Add"]))
        arity = {"Add": 2, "Sum": 3}.get(kind, 1)
        inputs = draw(st.lists(st.sampled_from(values[-6:]), min_size=arity, max_size=arity))
        nodes.append(helper.make_node(kind, inputs, [f"v{index}"], name=f"n{index}"))
        values.append(f"v{index}")
        if draw(st.integers(0, 5)) == 0:
            nodes.append(helper.make_node("Shape", [f"v{index}"], [f"s{index}"], name=f"shape{index}"))
            outputs.append(helper.make_tensor_value_info(f"s{index}", TensorProto.INT64, [2]))
    read = {name for node in nodes for name in node.input}
    outputs += [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])
        for name in values[1:]
        if name not in read or draw(st.integers(0, 4)) == 0
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(nodes, "random", [x], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    return model


@settings(max_examples=60, deadline=None)
@given(model=graphs())
def test_matches_the_profile(model: onnx.ModelProto) -> None:
    executed = [event["name"] for event in profile(model, {"x": np.ones((2, 3), np.float32)}, optimise=False)]
    nodes = list(ir.serde.deserialize_model(model).graph)
    before = predecessors(nodes)
    order = default_order(before)
    assert [nodes[position].name for position in order] == executed


def test_a_fused_node_stands_behind_all_nodes_of_the_file() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[2,3,4] x) => (float[2,4,4] y) '
        "{ e = Exp(x) t = Transpose <perm = [0, 2, 1]> (e) m = MatMul(t, x) "
        "s = ReduceSum <keepdims = 0> (x) y = Mul(m, s) }"
    )
    events = profile(onnx.parser.parse_model(text), {"x": np.ones((2, 3, 4), np.float32)})
    before, operators = [[], [0], [], [1, 2]], ["Exp", "FusedMatMul", "ReduceSum", "Mul"]
    assert [event["op_name"] for event in events] == [operators[position] for position in default_order(before, {1})]
    assert default_order(before, {1}) != default_order(before)
