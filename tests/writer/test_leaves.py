"""Leaves that wait for each other, with one node for each."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.runtime.executed import executed_model
from ckplan.runtime.execution_order import default_order, predecessors
from ckplan.writer.control_edges import ControlEdges, assemble, is_control
from ckplan.writer.ordering import gather_leaves, place_control_nodes
from tests.writer.runtime import run


def test_leaves_wait_for_each_other_in_turn() -> None:
    nodes, value = [], ir.Value(name="x", shape=ir.Shape([3]), type=ir.TensorType(ir.DataType.FLOAT))
    start, outputs = value, []
    for index in range(4):
        made = ir.Value(name=f"t{index}", shape=ir.Shape([3]), type=ir.TensorType(ir.DataType.FLOAT))
        leaf = ir.Value(name=f"leaf{index}", shape=ir.Shape([3]), type=ir.TensorType(ir.DataType.FLOAT))
        nodes.append(ir.Node("", "Tanh", [value], outputs=[made], name=f"chain{index}"))
        nodes.append(ir.Node("", "Neg", [made], outputs=[leaf], name=f"leaf{index}"))
        outputs.append(leaf)
        value = made
    model = ir.Model(ir.Graph([start], outputs, nodes=nodes, opset_imports={"": 21}), ir_version=10)

    def leaves(sequence: list[ir.Node]) -> list[str]:
        order = [sequence[position].name or "" for position in default_order(predecessors(sequence))]
        return [name for name in order if name.startswith("leaf")]

    assert leaves(nodes) == ["leaf3", "leaf2", "leaf1", "leaf0"]
    edges = ControlEdges()
    assert gather_leaves(nodes, edges)
    placed = place_control_nodes(nodes)
    assert leaves(placed) == ["leaf0", "leaf1", "leaf2", "leaf3"]
    assert [node for node in placed if not is_control(node)] == nodes
    assemble(model, placed, edges)
    fed = np.array([-1.0, 0.0, -0.5], np.float32)
    expected = fed
    for name, got in run(ir.serde.serialize_model(model), {"x": fed}).items():
        expected = np.tanh(expected)
        np.testing.assert_allclose(got, -expected, rtol=1e-5, err_msg=name)
    executed = [node.name for node in executed_model(model).graph]
    assert [name for name in executed if name and name.startswith("leaf")] == ["leaf0", "leaf1", "leaf2", "leaf3"]
