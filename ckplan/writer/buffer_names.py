"""Keeps onnxruntime's planner from holding dead buffers: an activation's dimensions name its buffer.

At load time onnxruntime hands the buffer of a dead tensor to a later one of the same shape, and then holds it in
between, however long (``core/framework/allocation_planner.cc``, ``FindReusableTensor``). A training graph is full of
equal shapes, so buffers freed early in the forward pass would be held until the backward pass comes to the same layer.
Two shapes with different symbolic dimensions are not equal, though. So the file calls the dimensions of an activation
after the buffer that the plan puts it in (``16@buffer7``: 16 entries, in buffer 7): tensors that share one, such as
a Relu that overwrites its input, share the names, and no others do. At run time the sizes are what they are.

For the names to count, onnxruntime must not infer the numbers, or not all of them: inputs are read through aliases of
unknown shape, Reshape targets leave their leading dimension to be inferred, and where the shape of a weight alone gives
a tensor's shape away and that costs memory, what it is made from is read through an alias as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.planner.problem import Problem
from ckplan.planner.simulate import lifetimes
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import SMALL, bytes_of, dimensions_of, named_dimension
from ckplan.writer.control_edges import ControlEdges, is_control, read_instead, shape_constant
from ckplan.writer.known_shapes import is_named, tells_shape

_POOLING = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})


def hide_inputs(
    nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], edges: ControlEdges, after: ir.Value | None = None
) -> None:
    """Let all nodes read the graph's inputs through aliases whose shape onnxruntime does not know.

    Args:
        nodes: the sequence.
        inputs: graph inputs; those that have an initializer are left alone.
        edges: maker of the aliases.
        after: a tensor that all these nodes are to wait for; see `ckplan.writer.reservation`.
    """
    fed = {value for value in inputs if value.shape and not value.is_initializer()}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            if value is not None and value in fed and not is_control(node):
                read_instead(node, value, edges.hide(value) if after is None else edges.alias(value, after))


def hide_channels(nodes: Sequence[ir.Node], edges: ControlEdges) -> None:
    """Let pooling read its input through an alias whose number of channels onnxruntime does not know.

    Pooling over a known number of channels is turned into a kernel for blocked layout with a copy into it before and a
    copy out of it behind (``core/optimizer/nchwc_transformer.cc``), which no plan knows of.

    Args:
        nodes: the sequence.
        edges: maker of the aliases.
    """
    for node in nodes:
        data = node.inputs[0] if node.inputs else None
        if node.op_type in _POOLING and data is not None:
            read_instead(node, data, edges.hide(data))


def hide_targets(nodes: Sequence[ir.Node], edges: ControlEdges) -> None:
    """Hide the leading dimension of target shapes that are constants.

    Reshape is left to infer it (-1); Expand and Resize get a shape that no optimiser knows.

    Args:
        nodes: the sequence.
        edges: maker of the shapes.
    """
    for node in nodes:
        position = {"Reshape": 1, "Expand": 1, "Resize": 3}.get(node.op_type, len(node.inputs))
        target = node.inputs[position] if position < len(node.inputs) and not is_control(node) else None
        data = node.inputs[0] if node.inputs else None
        if target is None or target.const_value is None or data is None:
            continue
        entries = tuple(int(entry) for entry in target.const_value.numpy())
        if not entries or any(entry <= 0 for entry in entries):
            continue
        if node.op_type == "Reshape":
            node.replace_input_with(position, shape_constant((-1, *entries[1:]), edges.initializers))
        else:
            node.replace_input_with(position, edges.shape_after(entries, edges.batch or data))


def hide_sources(nodes: Sequence[ir.Node], executed: ir.Model, edges: ControlEdges) -> int:
    """Hide what gives the whole shape of an activation away, in what onnxruntime executes.

    Args:
        nodes: the sequence.
        executed: the model that onnxruntime makes of it.
        edges: maker of the aliases.

    Returns:
        How many values got an alias. It is none at last, since an alias is not hidden again.
    """
    known = {value.name for node in executed.graph for value in node.outputs if is_static(value)}

    def is_exposed(value: ir.Value) -> bool:
        return value.name in known and bytes_of(value) >= SMALL and not value.is_graph_output()

    exposed = [
        node
        for node in nodes
        if not is_control(node)
        and edges.runtime.view(node) is None
        and any(is_exposed(value) for value in node.outputs)
    ]
    makers = set(exposed)
    before = edges.count
    for node in exposed:
        for value in dict.fromkeys(node.inputs):
            if value is None or not dimensions_of(value) or not tells_shape(value):
                continue
            # What another exposed node makes is hidden there.
            maker = view_root(value, edges.runtime).producer()
            if maker not in makers and not (maker is not None and is_control(maker)):
                read_instead(node, value, edges.hide(value))
    return edges.count - before


def view_root(value: ir.Value, runtime: Runtime) -> ir.Value:
    """The value whose memory a value is a view of, control edges not looked through."""
    while (node := value.producer()) is not None and not is_control(node) and (source := runtime.view(node)):
        value = source
    return value


def is_static(value: ir.Value) -> bool:
    """Whether onnxruntime knows all dimensions of a value as numbers."""
    return value.shape is not None and len(value.shape) > 0 and all(isinstance(dim, int) for dim in value.shape)


def name_buffers(nodes: Sequence[ir.Node], problem: Problem) -> None:
    """Rename the dimensions of every activation after the buffer it occupies.

    Args:
        nodes: the sequence, in execution order.
        problem: its numbers, op by op.
    """
    lives = lifetimes(problem, range(len(problem.ops)))
    added = {node.inputs[3] for node in nodes if node.op_type == "FusedConv" and len(node.inputs) > 3}
    for step, node in enumerate(nodes):
        made = [value for value in node.outputs if value.name]
        for value, buffer in zip(made, lives.buffer[step], strict=True):
            dims = dimensions_of(value)
            if dims is None or not is_named(value):
                continue
            # A view of an input or a parameter has no buffer of the plan; it only must not look like any other.
            name = f"buffer{buffer}" if buffer >= 0 else f"view{step}"
            value.shape = ir.Shape([named_dimension(dim, name) for dim in dims])
            if value in added:
                # Of the convolution that it is added to, the weight tells the number of channels.
                value.shape = ir.Shape([dim if place == 1 else value.shape[place] for place, dim in enumerate(dims)])
