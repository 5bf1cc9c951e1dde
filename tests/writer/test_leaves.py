"""Leaves stand last in a file, the last of them first, and run in their places."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

import ckplan
from ckplan.planner.simulate import simulate
from ckplan.runtime.executing.executed import executed_model
from ckplan.runtime.executing.execution_order import default_order, predecessors
from ckplan.writer.ordering import leaves_last
from tests.writer.runtime import run

LAYERS = 6
SIDE = 16


def _chain(transposed: bool) -> ir.Model:
    """A chain of Tanh with a leaf at each, which reads it: a negation, or a product that onnxruntime fuses."""
    nodes: list[ir.Node] = []
    outputs = []
    shape = [SIDE, SIDE]

    def value(name: str) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))

    start = before = value("x")
    for layer in range(LAYERS):
        made, leaf = value(f"t{layer}"), value(f"leaf{layer}")
        nodes.append(ir.Node("", "Tanh", [before], outputs=[made], name=f"chain{layer}"))
        if transposed:
            turned = value(f"turned{layer}")
            perm = [ir.AttrInt64s("perm", [1, 0])]
            nodes.append(ir.Node("", "Transpose", [made], perm, outputs=[turned], name=f"turn{layer}"))
            nodes.append(ir.Node("", "MatMul", [turned, start], outputs=[leaf], name=f"leaf{layer}"))
        else:
            nodes.append(ir.Node("", "Neg", [made], outputs=[leaf], name=f"leaf{layer}"))
        outputs.append(leaf)
        before = made
    return ir.Model(ir.Graph([start], outputs, nodes=nodes, opset_imports={"": 21}), ir_version=10)


def _leaves(model: ir.Model) -> list[str]:
    """The leaves in the order in which onnxruntime makes them, by what they are called."""
    made = [str(value.name) for node in executed_model(model).graph for value in node.outputs]
    return [name for name in made if name.startswith("leaf")]


def test_leaves_that_stand_last_in_reverse_run_in_their_places() -> None:
    model = _chain(transposed=False)
    in_turn = [f"leaf{layer}" for layer in range(LAYERS)]
    assert _leaves(model) == in_turn[::-1]
    nodes = list(model.graph)
    file = leaves_last(nodes)
    assert sorted(file) == list(range(len(nodes)))
    assert [nodes[place].name for place in file[LAYERS:]] == in_turn[::-1]
    assert default_order(predecessors(nodes), file=file) == list(range(len(nodes)))
    model.graph.remove(nodes)
    model.graph.extend(nodes[place] for place in file)
    assert [node.name for node in executed_model(model).graph] == [node.name for node in nodes]
    assert _leaves(model) == in_turn


def test_a_file_holds_leaves_in_turn_without_a_control_edge_for_each() -> None:
    step = ckplan.open_model(_chain(transposed=False), inference=True)
    written = ckplan.rewrite(step, strategy="none").model
    assert _leaves(written) == [f"leaf{layer}" for layer in range(LAYERS)]
    assert len(written.graph) < len(step.model.graph) + LAYERS


def test_leaves_that_onnxruntime_fuses_cost_no_more_than_planned() -> None:
    step = ckplan.open_model(_chain(transposed=True), inference=True)
    assert "FusedMatMul" in {node.op_type for node in step.executed.graph}
    made = ckplan.rewrite(step, strategy="none")
    planned = simulate(step.problem, range(len(step.problem.ops)))
    assert made.after.peak_activations <= planned.peak_activations
    fed = np.linspace(-1, 1, SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    expected = fed
    for layer in range(LAYERS):
        expected = np.tanh(expected)
        got = run(ir.serde.serialize_model(made.model), {"x": fed})[f"leaf{layer}"]
        np.testing.assert_allclose(got, expected.T @ fed, rtol=1e-4, atol=1e-5)
