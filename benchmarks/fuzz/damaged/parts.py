"""What models are made of, sound ones and damaged ones, and the list of the latter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
HUGE = 1 << 62

Made = Callable[[], onnx.ModelProto | bytes]
CASES: dict[str, Made] = {}


def case(made: Made) -> Made:
    """Register a model under the name of the function that makes it."""
    CASES[made.__name__] = made
    return made


def value(name: str, *shape: int | str | None, element: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, list(shape))


def constant(name: str, array: Any, dtype: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def model(
    nodes: Sequence[NodeProto],
    constants: Sequence[TensorProto] = (),
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
) -> onnx.ModelProto:
    """A model with the input x (4, 8) and the output y, unless others are given."""
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 4, 8)] if inputs is None else inputs,
        [value("y", None, None)] if outputs is None else outputs,
        list(constants),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def node(op_type: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",), **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs, outputs, f"a_{op_type}", **attributes)


WEIGHT = constant("w", np.ones((8, 8)))


GO = node("Identity", ["go"], ["go_on"])


def loop(trips: int, body_nodes: Sequence[NodeProto], inner: str = "next") -> onnx.ModelProto:
    body = helper.make_graph(
        body_nodes,
        "body",
        [value("i", element=INT64), value("go", element=BOOL), value("state", 4, 8)],
        [value("go_on", element=BOOL), value(inner, 4, 8)],
    )
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Loop", ["trips", "", "h"], ["y"], body=body)]
    return model(nodes, [constant("trips", trips, np.int64), WEIGHT])


def nested(depth: int) -> onnx.ModelProto:
    graph = helper.make_graph([node("Tanh", ["h"], ["z0"])], "g0", [], [value("z0", 4, 8)])
    for level in range(1, depth):
        other = helper.make_graph([node("Neg", ["h"], [f"n{level}"])], "n", [], [value(f"n{level}", 4, 8)])
        made = helper.make_node("If", ["c"], [f"z{level}"], f"if{level}", then_branch=graph, else_branch=other)
        graph = helper.make_graph([made], f"g{level}", [], [value(f"z{level}", 4, 8)])
    nodes = [node("MatMul", ["x", "w"], ["h"]), *graph.node, node("Neg", [f"z{depth - 1}"])]
    return model(nodes, [WEIGHT], [value("x", 4, 8), value("c", element=BOOL)])


def lstm(weights: Sequence[TensorProto], **attributes: Any) -> onnx.ModelProto:
    made = node("LSTM", ["x", *(weight.name for weight in weights)], **attributes)
    return model([made], weights, [value("x", 5, 2, 8)], [value("y", None, None, None, None)])


def written(made: Made) -> bytes:
    """The bytes of a case's file."""
    proto = made()
    return proto if isinstance(proto, bytes) else proto.SerializeToString()
