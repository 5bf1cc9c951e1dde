"""Keeps onnxruntime's planner from holding dead buffers, and from looking for them: few shapes are known to it.

At load time onnxruntime hands the buffer of a dead tensor to a later one of the same shape, and then holds it in
between, however long (``core/framework/allocation_planner.cc``, ``FindReusableTensor``). A training graph is full of
equal shapes, so buffers freed early in the forward pass would be held until the backward pass comes to the same layer.
It also compares each tensor with all dead ones, in time that goes by the square of the graph. A tensor of unknown shape
takes part in neither. So the file declares no shape of an activation, and hides what shapes follow from: inputs are
read through aliases of unknown shape, Reshape targets have an unknown number of entries, and where the shape of a
weight alone gives a tensor's shape away and that costs memory, what it is made from is read through an alias as well.

Only where a kernel is to write over its input, as a Relu does, onnxruntime must know that both shapes are equal. Such
tensors are declared, and their dimensions called after the buffer that the plan puts them in (``16@buffer7``: 16
entries, in buffer 7), so that they equal nothing in another. At run time the sizes are what they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from ckplan.keys import PHASE, ROLE
from ckplan.planner.peak import live_bytes
from ckplan.planner.problem import Problem
from ckplan.planner.simulate import Lifetimes, lifetimes
from ckplan.runtime.executing.unfused import PARTS, Part
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import SMALL, bytes_of, dimensions_of, hide_dimensions, show_dimensions
from ckplan.writer.control_edges import ControlEdges, is_control, read_instead, shape_constant
from ckplan.writer.known_shapes import KnownShapes, is_named, tells_shape
from ckplan.writer.reservation import reserved_names

_SHAPED_BY_ALL = frozenset(
    [
        *("Add", "And", "Concat", "Div", "Equal", "FusedMatMul", "Gemm", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "MatMul"),
        *("Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"),
    ]
)
"""Operators the shape of whose output is known only where those of all inputs are."""

_CHANGES_A_PART = frozenset({"ScatterElements"})
"""Operators that write a few elements of their input, and copy all of it first where they may not write over it."""

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
    fed = {value for value in inputs if dimensions_of(value) and not value.is_initializer()}
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


def hide_targets(nodes: Sequence[ir.Node], edges: ControlEdges, declared: Collection[ir.Value]) -> None:
    """Hide target shapes that are constants.

    Reshape reads one of unknown length, so that not even the rank of what it makes is known; where that is declared, or
    the graph has no batch to hide behind, it is left to infer the leading dimension (-1). Expand and Resize get numbers
    that no optimiser knows. Reshapes of many layers share few targets, since each is one more node that is ready from
    the start: what onnxruntime sorts at each of its passes over the graph (``Graph::KahnsTopologicalSort``).

    Args:
        nodes: the sequence.
        edges: maker of the shapes.
        declared: values whose shapes the file declares.
    """
    for node in nodes:
        position = {"Reshape": 1, "Expand": 1, "Resize": 3}.get(node.op_type, len(node.inputs))
        target = node.inputs[position] if position < len(node.inputs) and not is_control(node) else None
        data = node.inputs[0] if node.inputs else None
        if target is None or target.const_value is None or data is None:
            continue
        entries = tuple(int(entry) for entry in target.const_value.numpy())
        made = node.outputs[0]
        dims = dimensions_of(made)
        if entries and dims is not None and node.op_type == "Reshape" and edges.batch and made not in declared:
            node.replace_input_with(position, edges.target(_relative_target(node, dims), edges.batch))
        elif not entries or any(entry <= 0 for entry in entries):
            continue
        elif node.op_type == "Reshape":
            node.replace_input_with(position, shape_constant((-1, *entries[1:]), edges.initializers))
        else:
            node.replace_input_with(position, edges.shape_after(entries, edges.batch or data))


def _relative_target(node: ir.Node, dims: tuple[int, ...]) -> tuple[int, ...]:
    """A target by which Reshape makes a shape, told by as few numbers as it can be.

    A dimension that the input has in the same place is 0, and the largest of the others -1
    (https://onnx.ai/onnx/operators/onnx__Reshape.html).
    """
    data = node.inputs[0]
    source = None if data is None else dimensions_of(data)
    if source is None or 0 in dims or bool(node.attributes.get_int("allowzero", 0)):
        return dims
    same = [place < len(source) and source[place] == dim for place, dim in enumerate(dims)]
    others = [place for place, is_same in enumerate(same) if not is_same]
    inferred = max(others, key=lambda place: dims[place], default=None)
    return tuple(0 if same[place] else -1 if place == inferred else dim for place, dim in enumerate(dims))


def hide_held_over(nodes: Sequence[ir.Node], edges: ControlEdges) -> None:
    """Hide what gives the whole shape of a forward activation away if that of one of the backward pass is known, too.

    Where both are the same, onnxruntime would hold the buffer of the first over the peak between.

    Args:
        nodes: the sequence.
        edges: maker of the aliases.
    """
    known = KnownShapes()
    large = [value for node in nodes for value in node.outputs if value.name and bytes_of(value) >= SMALL]
    exposed: dict[object, list[ir.Value]] = {}
    for value in large:
        if not value.is_graph_output() and known.is_known(value):
            exposed.setdefault((value.dtype, dimensions_of(value)), []).append(value)
    for alike in exposed.values():
        if len({_is_backward(value) for value in alike}) == 2:
            _hide_sources(nodes, alike, edges)


def hide_sources(nodes: Sequence[ir.Node], executed: ir.Model, edges: ControlEdges) -> int:
    """Hide what gives the whole shape of an activation away, in what onnxruntime executes.

    Args:
        nodes: the sequence.
        executed: the model that onnxruntime makes of it.
        edges: maker of the aliases.

    Returns:
        How many reads go through an alias now. It is none at last, since an alias is not hidden again.
    """
    known = {value.name for node in executed.graph for value in node.outputs if is_static(value)}
    known -= reserved_names(nodes)
    large = [value for node in nodes for value in node.outputs if value.name in known and bytes_of(value) >= SMALL]
    return _hide_sources(nodes, [value for value in large if not value.is_graph_output()], edges)


def _hide_sources(nodes: Sequence[ir.Node], exposed: Collection[ir.Value], edges: ControlEdges) -> int:
    """Let what makes some values read aliases of what tells their shapes; how many of its reads."""
    values, hidden = set(exposed), 0
    exposing = [
        node
        for node in nodes
        if not is_control(node) and edges.runtime.view(node) is None and not values.isdisjoint(node.outputs)
    ]
    makers = set(exposing)
    for node in exposing:
        for value in dict.fromkeys(node.inputs):
            if value is None or not dimensions_of(value) or not tells_shape(value):
                continue
            # What another of them makes is hidden there.
            maker = view_root(value, edges.runtime).producer()
            if maker not in makers and not (maker is not None and is_control(maker)):
                read_instead(node, value, edges.hide(value))
                hidden += 1
    return hidden


def _is_backward(value: ir.Value) -> bool:
    """Whether a value is made in the backward pass, as what runs again there is."""
    props = {} if (node := value.producer()) is None else node.metadata_props
    return props.get(PHASE) == "backward" or props.get(ROLE) == "recompute"


def view_root(value: ir.Value, runtime: Runtime) -> ir.Value:
    """The value whose memory a value is a view of, control edges not looked through."""
    while (node := value.producer()) is not None and not is_control(node) and (source := runtime.view(node)):
        value = source
    return value


def is_static(value: ir.Value) -> bool:
    """Whether onnxruntime knows all dimensions of a value as numbers."""
    return value.shape is not None and len(value.shape) > 0 and all(isinstance(dim, int) for dim in value.shape)


def name_buffers(
    nodes: Sequence[ir.Node], problem: Problem, constants: Mapping[str, ir.Value], sparing: bool = True
) -> None:
    """Declare the shapes of what is written over, by names of the buffer that it is in, and of few other activations.

    What onnxruntime infers of a declared shape would have its names: it is declared as well, by names of its own.

    Args:
        nodes: the sequence, in execution order.
        problem: its numbers, op by op.
        constants: initializers of the graph, by name.
        sparing: see `written_over`.
    """
    lives = lifetimes(problem, range(len(problem.ops)))
    declared = written_over(nodes, problem, lives, constants, sparing)
    for step, node in enumerate(nodes):
        made = [value for value in node.outputs if value.name]
        for value, buffer in zip(made, lives.buffer[step], strict=True):
            dims = dimensions_of(value)
            if dims is None or not is_named(value):
                continue
            if value not in declared and not _is_inferred(node, declared):
                hide_dimensions(value, dims)
                continue
            declared.add(value)
            # A view of an input or a parameter has no buffer of the plan; it only must not look like any other.
            show_dimensions(value, dims, f"buffer{buffer}" if buffer >= 0 else f"view{step}")
    for node in nodes:
        if node.op_type == "FusedConv" and len(node.inputs) > 3 and (added := node.inputs[3]) is not None:
            _tell_channels(added)


def _is_inferred(node: ir.Node, declared: Collection[ir.Value]) -> bool:
    """Whether onnxruntime may know of a node's outputs what is declared of what it reads."""
    activations = [value for value in node.inputs if value is not None and is_named(value)]
    makers = [None if value is None else value.producer() for value in node.inputs]
    hides = node.op_type == "Reshape" and any(maker is not None and is_control(maker) for maker in makers[1:])
    if is_control(node) or hides or not activations:
        return False
    return (all if node.op_type in _SHAPED_BY_ALL else any)(value in declared for value in activations)


def written_over(
    nodes: Sequence[ir.Node],
    problem: Problem,
    lives: Lifetimes,
    constants: Mapping[str, ir.Value],
    sparing: bool = True,
) -> set[ir.Value]:
    """The values whose buffers kernels write over, and what they write; and what fusions are made by.

    Onnxruntime lets a kernel write over its input, and makes an addition part of a convolution, only where both shapes
    are known and the same. A factor of one entry becomes part of a product that reads what it scales where that has at
    least as many axes, and any at all, and of a product that it scales where it has no more axes
    (``core/optimizer/matmul_scale_fusion.cc``).

    Args:
        nodes: the sequence, in execution order.
        problem: its numbers, op by op.
        lives: the buffers of its tensors.
        constants: initializers of the graph, by name.
        sparing: whether to leave out what may as well have a second buffer, since that lies within the peak and takes
            no copy: for what is declared, and all that follows from it, onnxruntime looks among all dead buffers.
    """
    found = {value for node in nodes for value in _told_for_fusions(node, constants)}
    last: dict[int, tuple[ir.Value, int]] = {}
    live = live_bytes(problem, range(len(problem.ops)))
    spare = (live.max(initial=0) if sparing else -1) - live
    for step, (node, op, buffers) in enumerate(zip(nodes, problem.ops, lives.buffer, strict=True)):
        made = [value for value in node.outputs if value.name]
        for value, tensor, buffer in zip(made, op.outputs, buffers, strict=True):
            sources = [last[source] for source in op.inplace.get(tensor, ()) if source in last]
            over = [source for source, place in sources if place == buffer]
            size = problem.tensors[tensor].bytes
            if over and size <= spare[step] and node.op_type not in _CHANGES_A_PART:
                spare[step] -= size
            else:
                found.update(each for source in over for each in (source, value))
            last[tensor] = value, buffer
    return {value for value in found if value is not None}


def _told_for_fusions(node: ir.Node, constants: Mapping[str, ir.Value]) -> Iterator[ir.Value | None]:
    """The values of a fused node whose shapes onnxruntime has to know to make it."""
    product = False
    for part in node.meta.get(PARTS, ()):
        product = product or part.op_type == "MatMul"
        if part.op_type == "Add":
            yield from (*node.inputs, *node.outputs)
        if part.op_type == "Transpose" and _moves_batch(part):
            yield from node.inputs
        if part.op_type not in ("Div", "Mul"):
            continue
        values = [node.inputs[at] if isinstance(at, int) else constants.get(at or "") for at in part.inputs]
        dims = [None if value is None else dimensions_of(value) for value in values]
        scales = [each for each in dims if each is not None and set(each) <= {1}]
        if not scales or (product and all(each == () for each in scales)):
            continue
        # What is made within has the shape that follows from what the node reads.
        yield from node.inputs if None in values else values


def _moves_batch(transpose: Part) -> bool:
    """Whether other axes than the last two change places: merged only where the rank of both factors is known."""
    order = next((tuple(a.as_ints()) for a in transpose.attributes if a.name == "perm"), ())
    return order[:-2] != tuple(range(len(order) - 2))


def _tell_channels(value: ir.Value) -> None:
    """Declare the channels of what is added to a convolution as numbers: its weight tells them of its output, too."""
    dims = dimensions_of(value)
    if value.shape is not None and dims is not None:
        value.shape = ir.Shape([dim if place == 1 else value.shape[place] for place, dim in enumerate(dims)])
