"""How much a weight gradient may work in: what a layer's place in the network leaves."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.rules.room import largest_of, working_room
from ckplan.keys import PHASE

LAYER = 4 * 8 * 8


def builder() -> Builder:
    """Six convolutions in a row, each with an activation that the next one keeps; all weights are wanted."""
    lines, value = [], "x"
    for index in range(6):
        lines.append(f"c{index} = Conv <pads = [1, 1, 1, 1]> ({value}, w{index}) r{index} = Relu (c{index})")
        value = f"r{index}"
    weights = ", ".join(f"float[4,4,3,3] w{index}" for index in range(6))
    text = f"g (float[1,4,8,8] x, {weights}) => (float[1,4,8,8] {value}) {{ {' '.join(lines)} }}"
    proto = onnx.shape_inference.infer_shapes(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    )
    graph = ir.from_proto(proto).graph
    for node in graph:
        node.metadata_props[PHASE] = "forward"
    return Builder(graph, {"": 21}, {value for value in graph.inputs if value.name != "x"})


def test_half_of_the_largest_tensor_is_free_everywhere():
    op = builder()
    assert largest_of(op) == LAYER
    last = list(op.graph)[-1].outputs[0]
    assert working_room(op, last) == LAYER // 2


def test_early_layers_have_more_as_what_is_behind_them_is_gone():
    op = builder()
    rooms = [working_room(op, node.outputs[0]) for node in op.graph if node.op_type == "Relu"]
    assert rooms == sorted(rooms, reverse=True)
    assert rooms[0] > rooms[-1] == LAYER // 2


def test_gradients_of_parameters_take_the_place_of_activations():
    """Weights larger than the activations: the step holds the most where it ends, with all of their gradients."""
    op = builder()
    for value in op.graph.inputs:
        if value.name != "x":
            value.shape = ir.Shape([64, 4, 3, 3])
    first, second, *_ = [working_room(op, node.outputs[0]) for node in op.graph if node.op_type == "Relu"]
    assert first == LAYER // 2 < second


def test_a_value_from_outside_counts_as_any_other():
    op = builder()
    assert working_room(op, op.graph.inputs[0]) == LAYER // 2
