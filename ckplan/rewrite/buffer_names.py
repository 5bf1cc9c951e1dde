"""Keeps onnxruntime's planner from holding dead buffers: an activation's leading dimension names its buffer.

At load time onnxruntime hands the buffer of a dead tensor to a later one of the same shape, and then holds it in
between, however long (``core/framework/allocation_planner.cc``, ``FindReusableTensor``). A training graph is full of
equal shapes, so buffers freed early in the forward pass would be held until the backward pass comes to the same layer.
Two shapes with different symbolic dimensions are not equal, though. So the file calls the leading dimension of each
activation after the buffer that the plan puts it in (``16@buffer7``: 16 entries, in buffer 7): tensors that share a
buffer, such as a Relu that overwrites its input, share the name, and no others do. At run time the sizes are what they
are.

For the names to count, onnxruntime must not infer the number: inputs are read through an alias of unknown shape, and
Reshape targets leave their leading dimension to be inferred.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.plan.problem import Problem
from ckplan.plan.simulate import lifetimes
from ckplan.rewrite.control_edges import ControlEdges
from ckplan.rewrite.ordering import is_control
from ckplan.rewrite.sizes import buffer_dimension, dimensions_of

SMALLEST = 4096
"""Tensors below this many bytes keep their static shape: what they could hold is not worth a name."""


def hide_inputs(nodes: list[ir.Node], inputs: Sequence[ir.Value], edges: ControlEdges) -> None:
    """Let all nodes read the graph's inputs through aliases whose shape onnxruntime does not know.

    Args:
        nodes: the sequence; the aliases are put in front.
        inputs: graph inputs; those that have an initializer are left alone.
        edges: maker of the aliases.
    """
    front: list[ir.Node] = []
    for value in inputs:
        if value.is_initializer() or value.shape is None or not value.shape:
            continue
        readers = [(node, index) for node, index in value.uses() if node in set(nodes)]
        alias, new = edges.alias(value, value)
        front.extend(new)
        for node, index in readers:
            node.replace_input_with(index, alias)
    nodes[:0] = front


def infer_leading_dimension(nodes: Sequence[ir.Node], problem: Problem, initializers: dict[str, ir.Value]) -> None:
    """Turn the constant leading entry of Reshape targets into -1 where the result is an activation of some size.

    Args:
        nodes: the sequence.
        problem: its numbers, op by op.
        initializers: gets the new targets.
    """
    for node, op in zip(nodes, problem.ops, strict=True):
        if node.op_type != "Reshape" or is_control(node) or problem.tensors[op.outputs[0]].bytes < SMALLEST:
            continue
        target = node.inputs[1]
        if target is None or target.const_value is None:
            continue
        entries = target.const_value.numpy().copy()
        if entries.size == 0 or entries[0] <= 0 or (entries[1:] <= 0).any():
            continue
        entries[0] = -1
        name = "ckplan/shape" + "".join(f"_{entry}" for entry in entries)
        if name not in initializers:
            initializers[name] = ir.Value(
                name=name,
                shape=ir.Shape(entries.shape),
                type=ir.TensorType(ir.DataType.INT64),
                const_value=ir.tensor(np.asarray(entries, np.int64), name=name),
            )
        node.replace_input_with(1, initializers[name])


def name_buffers(nodes: Sequence[ir.Node], problem: Problem) -> None:
    """Rename the leading dimension of every activation of some size after the buffer it occupies.

    Args:
        nodes: the sequence, in execution order.
        problem: its numbers, op by op.
    """
    lives = lifetimes(problem, range(len(problem.ops)))
    for step, (node, op) in enumerate(zip(nodes, problem.ops, strict=True)):
        made = [value for value in node.outputs if value.name]
        for value, tensor, buffer in zip(made, op.outputs, lives.buffer[step], strict=True):
            if buffer < 0 or lives.returned[buffer] or problem.tensors[tensor].bytes < SMALLEST:
                continue
            dims = dimensions_of(value)
            if dims:
                value.shape = ir.Shape([buffer_dimension(dims[0], buffer), *dims[1:]])
