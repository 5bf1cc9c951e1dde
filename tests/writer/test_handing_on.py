"""Buffers that follow each other under one name, and leaves that wait for each other: sessions that open quickly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import ckplan
from ckplan.planner.simulate import lifetimes
from ckplan.runtime import problem_of
from ckplan.runtime.executed import executed_model, executed_timeline
from ckplan.runtime.execution_order import default_order, predecessors
from ckplan.runtime.sizes import parts_of_dimension, shape_classes
from ckplan.writer.control_edges import ControlEdges, assemble, is_control
from ckplan.writer.handing_on import handed_on
from ckplan.writer.ordering import gather_leaves, place_control_nodes
from tests.writer.runtime import run

SAMPLES = Path(__file__).parents[2] / "sample_models"


def chain(sizes: list[int]) -> ir.Model:
    """A chain in which each tensor has dimensions named after a buffer of its own; it ends in a single element."""
    nodes, value = [], ir.Value(name="x", shape=ir.Shape([sizes[0]]), type=ir.TensorType(ir.DataType.FLOAT))
    inputs = [value]
    for index, size in enumerate(sizes):
        repeats = ir.Value(name=f"repeats{index}", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
        inputs.append(repeats)
        made = ir.Value(
            name=f"t{index}",
            shape=ir.Shape([f"{size}@buffer{index}"]),
            type=ir.TensorType(ir.DataType.FLOAT),
        )
        nodes.append(ir.Node("", "Tile", [value, repeats], outputs=[made], name=f"n{index}"))
        value = made
    end = ir.Value(name="y", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.FLOAT))
    nodes.append(ir.Node("", "ReduceMax", [value], {"keepdims": ir.AttrInt64("keepdims", 0)}, outputs=[end], name="n"))
    return ir.Model(ir.Graph(inputs, [end], nodes=nodes, opset_imports={"": 21}), ir_version=10)


def handed(model: ir.Model) -> dict[str, str]:
    problem = problem_of(model)
    return handed_on(problem, shape_classes(model.graph, problem))


def test_a_buffer_is_handed_on_where_there_is_room_for_it() -> None:
    # The first of 100 lies idle beside 10 + 20: far below the peak, which is two of 300 at once.
    model = chain([100, 10, 20, 100, 300, 300])
    assert handed(model) == {"buffer3": "buffer0"}
    # Beside those two it has no room.
    model = chain([100, 300, 300, 100])
    assert handed(model) == {}


@pytest.fixture(scope="module")
def planned() -> ckplan.pipeline.planning.Planned:
    return ckplan.rewrite(SAMPLES / "gpt_tiny.onnx", strategy="memory", dims={"batch": 2})


def test_sharing_names_changes_no_peak(planned: ckplan.pipeline.planning.Planned) -> None:
    executed = executed_model(planned.model)
    assert executed_timeline(executed).peak_activations == planned.after.peak_activations
    problem = problem_of(executed)
    order = range(len(problem.ops))
    shapes = shape_classes(executed.graph, problem)
    alone = [None if shape is None else (place, shape) for place, shape in enumerate(shapes)]
    held = executed_timeline(executed).peak_activations
    # Nothing is handed on where no two shapes are equal; that takes as much at the peak, and far more buffers.
    assert len(lifetimes(problem, order, shapes).size) < 0.8 * len(lifetimes(problem, order, alone).size)
    assert held <= planned.plan.predicted.peak_activations * 1.02 + 4096


def test_names_follow_each_other(planned: ckplan.pipeline.planning.Planned) -> None:
    names = Counter(
        parts[1]
        for node in planned.model.graph
        for value in node.outputs
        if value.shape and not isinstance(value.shape[0], int) and (parts := parts_of_dimension(str(value.shape[0])))
    )
    assert sum(count > 4 for name, count in names.items() if name.startswith("buffer")) >= 5


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
