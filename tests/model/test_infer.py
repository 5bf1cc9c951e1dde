"""Inference of single nodes; what is inferred for one node is used for those like it only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.model.inference.infer import NodeInference


def value(name: str, dims: list[int | str] | None) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=None if dims is None else ir.Shape(dims))


def inferred(op_type: str, dims: list[int | str] | None, operand: list[int] | None = None, **attributes: int) -> list:
    """The shape of a node's output, one input of some dimensions and a constant given."""
    inputs = [value("x", dims)]
    if operand is not None:
        inputs.append(ir.Value(name="operand", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([len(operand)])))
    node = ir.node(op_type, inputs, attributes)
    node.outputs[0].name = "y"
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": 21})
    arrays = {} if operand is None else {"operand": np.array(operand, np.int64)}
    assert NodeInference(graph, 10).run(node, lambda read: arrays.get(str(read.name))) == ""
    shape = node.outputs[0].shape
    return [] if shape is None else [dim if isinstance(dim, int) else dim.value for dim in shape]


def test_nodes_that_differ_in_a_constant_an_attribute_or_a_name_have_shapes_of_their_own() -> None:
    for _ in range(2):  # the second time from what was kept
        assert inferred("Reshape", [4, 6], [3, 8]) == [3, 8]
        assert inferred("Reshape", [4, 6], [2, 12]) == [2, 12]
        assert inferred("Flatten", [2, 3, 4], axis=1) == [2, 12]
        assert inferred("Flatten", [2, 3, 4], axis=2) == [6, 4]
        assert inferred("Relu", ["rows", 4]) == ["rows", 4]
        assert inferred("Relu", ["columns", 4]) == ["columns", 4]
        assert inferred("Relu", None) == []


def test_a_refused_node_is_refused_again() -> None:
    node = ir.node("MatMul", [value("x", [2, 3]), value("y", [4, 5])])
    node.outputs[0].name = "z"
    graph = ir.Graph(node.inputs, node.outputs, nodes=[node], opset_imports={"": 21})
    for _ in range(2):
        assert "ncompatible" in NodeInference(graph, 10).run(node, lambda read: None)
