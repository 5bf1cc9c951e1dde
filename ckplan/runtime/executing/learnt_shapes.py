"""Shapes of what onnxruntime executes that it does not write.

It writes those of the file. What it infers for itself has to be inferred as it does, since it hands dead buffers on by
that. Of what it does not know either, the size in bytes is enough: it is noted beside the value (`DIMENSIONS`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from ckplan.model.bodies import bodies_of
from ckplan.model.inference.infer import NodeInference, small_constant
from ckplan.model.nested_graphs import all_nodes, subgraphs
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import DIMENSIONS, dimensions_of

SINGLE = "InsertedPrecisionFreeCast_"
"""How onnxruntime calls the float32 value that it computes in place of a half-precision one
(``core/optimizer/insert_cast_transformer.cc``)."""

_SAME_SIZE = ("Transpose", "ReorderInput", "ReorderOutput")
"""Operators that optimisers put in, and whose output has the values of their input."""


def infer_shapes(executed: ir.Model, everywhere: bool) -> None:
    """Infer shapes as onnxruntime does for itself, where it writes only those of the file.

    By them it hands dead buffers on, so what it does not know, such as what an alias hides, must stay unknown here too.

    Args:
        executed: what onnxruntime wrote.
        everywhere: whether it wrote none of the shapes that it inferred; else only what optimisers made lacks them.
    """
    inference = NodeInference(executed.graph, executed.ir_version)
    for node in all_nodes(executed.graph):
        if everywhere or any(value.name and value.shape is None for value in node.outputs):
            inference.run(node, small_constant)


def learn_dimensions(executed: ir.Model, model: ir.Model, runtime: Runtime) -> None:
    """Note the dimensions of values that onnxruntime keeps no shape of.

    They are those of the same value in the file; a value that an optimiser made is known by what its node reads, by
    the view that is taken of it, or by what it is the transpose, the Cast, or the blocked layout of. Only the size in
    bytes is sure to be right; a blocked layout pads channels to its block, which is left out.

    Args:
        executed: what onnxruntime wrote.
        model: the file that it was made from.
        runtime: where it executes, which says what is a view.
    """
    inference = NodeInference(executed.graph, executed.ir_version)
    _learn_from_file(made_values(executed.graph), made_values(model.graph))
    nodes = list(all_nodes(executed.graph))
    for node in (*nodes, *reversed(nodes)):
        _learn_from_inputs(node, inference)
        if runtime.view(node) is not None or node.op_type in (*_SAME_SIZE, "Cast"):
            _learn_of_same_size(node)
    for node in nodes:
        _learn_inside_function(node)


def _learn_from_file(executed: Iterable[ir.Value], file: Iterable[ir.Value]) -> None:
    """Note the dimensions that values have in the file, those computed in float32 instead among them."""
    known = {value.name: value for value in file}
    for value in executed:
        name = str(value.name)
        original = known.get(name.removeprefix(SINGLE))
        if original is not None and dimensions_of(value) is None:
            value.meta[DIMENSIONS] = dimensions_of(original)
            if value.type is None:
                value.type = ir.TensorType(ir.DataType.FLOAT) if name.startswith(SINGLE) else original.type


def _learn_of_same_size(node: ir.Node) -> None:
    """Note the dimensions of what a node reads or makes, where the other is known and has as many elements."""
    read, made = node.inputs[0], node.outputs[0]
    if read is None:
        return
    cast = node.op_type == "Cast"
    for one, other in ((read, made), (made, read)):
        if dimensions_of(one) is None and dimensions_of(other) is not None:
            one.meta[DIMENSIONS] = dimensions_of(other)
            if one.type is None and not cast:
                one.type = other.type
    if cast and made.type is None:
        made.type = ir.TensorType(ir.DataType(node.attributes["to"].as_int()))
    if cast and read.type is None:
        # What onnxruntime computes in place of a half-precision value that it has no kernel for.
        read.type = ir.TensorType(ir.DataType.FLOAT)


def _learn_inside_function(node: ir.Node) -> None:
    """Note the dimensions inside of a function that onnxruntime has no kernel for: Softmax over its last axis, Gelu."""
    made = node.outputs[0] if node.outputs else None
    if made is None or not str(made.name).startswith(SINGLE) or dimensions_of(made) is not None:
        return
    sizes = [dims for read in node.inputs if read is not None and (dims := dimensions_of(read)) is not None]
    if sizes:
        reduces = node.op_type.startswith("Reduce")
        made.meta[DIMENSIONS] = (*sizes[0][:-1], 1) if reduces else np.broadcast_shapes(*sizes)
        made.type = ir.TensorType(ir.DataType.FLOAT)


def _learn_from_inputs(node: ir.Node, inference: NodeInference) -> None:
    """Note the dimensions of a node's outputs, inferred with all names of dimensions put back into numbers."""
    if not any(value.name and dimensions_of(value) is None for value in node.outputs):
        return
    sizes = [None if value is None else dimensions_of(value) for value in node.inputs]
    given = list(zip(node.inputs, sizes, strict=True))
    if any(value is not None and size is None for value, size in given) or bodies_of(node):
        return
    inputs = [
        None
        if value is None
        else ir.Value(
            name=value.name,
            type=value.type,
            shape=ir.Shape(size or ()),
            const_value=ir.convenience.get_const_tensor(value),
        )
        for value, size in given
    ]
    twin = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
    for value, original in zip(twin.outputs, node.outputs, strict=True):
        value.name = original.name
    inference.run(twin, small_constant)
    for value, original in zip(twin.outputs, node.outputs, strict=True):
        found = dimensions_of(value)
        if found is not None and dimensions_of(original) is None:
            original.meta[DIMENSIONS] = found
            original.type = original.type or value.type


def made_values(graph: ir.Graph) -> list[ir.Value]:
    """The values that nodes make and that enter bodies, those inside bodies included."""
    made = [value for node in all_nodes(graph) for value in node.outputs if value.name]
    return [*made, *(value for body in subgraphs(graph) for value in body.inputs)]
