"""Plan -> ONNX: any schedule becomes a file that stock onnxruntime executes as planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import onnx_ir as ir

from ckplan.arguments import check_kind
from ckplan.errors import UsageError
from ckplan.model.cleanup import drop_unread_initializers
from ckplan.model.nested_graphs import all_nodes
from ckplan.model.node_reads import fed_tensor
from ckplan.model.traits import is_heavy
from ckplan.operators.matching import input_of
from ckplan.planner.arena.cells import WALL, Layout
from ckplan.planner.arena.regions import DEFAULT
from ckplan.planner.plan import Plan
from ckplan.planner.problem import Problem
from ckplan.planner.simulate import lifetimes, simulate
from ckplan.planner.timeline import Timeline
from ckplan.runtime.cpu import CPU
from ckplan.runtime.executing.executed import executed_model, executed_order, executed_timeline
from ckplan.runtime.executing.unfused import FUSED, unfuse
from ckplan.runtime.problem_of import Numbering, problem_of, problem_of_nodes
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import shape_classes, smallest_fed
from ckplan.writer.buffer_names import (
    hide_channels,
    hide_held_over,
    hide_inputs,
    hide_sources,
    hide_targets,
    name_buffers,
    written_over,
)
from ckplan.writer.control_edges import ControlEdges, assemble
from ckplan.writer.describe import describe
from ckplan.writer.fences import fence, fence_alone
from ckplan.writer.ordering import (
    TOLERANCE,
    keep_order,
    keep_repeats_apart,
    keep_unfolded,
    leaves_last,
    place_control_nodes,
    release_unused,
    repair,
    settle_order,
)
from ckplan.writer.pools import (
    keep_places,
    keep_walls,
    make_cells,
    make_placeholders,
    open_first,
    take_optional,
    wait_for_cells,
)
from ckplan.writer.repeats import in_order, with_repeats
from ckplan.writer.reservation import reserve, reserved_names, without_tensors
from ckplan.writer.updates import tell_in_place, updates_of, wait_for_readers, write_last


@dataclass(frozen=True)
class Written:
    """A plan in a file.

    Attributes:
        model: the graph with the plan built in.
        executed: what onnxruntime executes of it, nodes in execution order.
        numbers: the problem of that.
    """

    model: ir.Model
    executed: ir.Model
    numbers: Problem


@dataclass(frozen=True)
class _File:
    """A file that is being written.

    Attributes:
        model: a copy of the training graph, whose nodes are replaced.
        updates: for each input that has a new value among the outputs, the name of that.
        runtime: where it is to run.
        edges: its control edges.
        pools: what the arena is to be cut into; see `write`.
        order: of the tensors that are made; see `write`.
        fused: whether the graph has fused nodes, which stand as the nodes that they are made of in the end.
        known: numbers of nodes that were computed before.
    """

    model: ir.Model
    updates: Mapping[str, str]
    runtime: Runtime
    edges: ControlEdges
    pools: Layout | None
    order: Sequence[str]
    fused: bool
    known: Numbering = field(default_factory=Numbering)


@dataclass(frozen=True)
class _Draft:
    """A file that may become the written one.

    Attributes:
        model: the graph with the plan built in, fused nodes not yet parted.
        problem: the numbers of its nodes.
        edges: how many aliases it has.
        timeline: what onnxruntime makes of it.
        peak: bytes of activations that are alive at once, without what is reserved.
        executed: what onnxruntime executes of it.
        numbers: the problem of that.
    """

    model: ir.Model
    problem: Problem
    edges: int
    timeline: Timeline
    peak: int
    executed: ir.Model
    numbers: Problem


def emit(model: ir.Model, plan: Plan) -> ir.Model:
    """Write a plan into a copy of a training graph.

    Args:
        model: the graph that the plan was made for; not changed.
        plan: the schedule; op ids are node positions in ``model.graph``.

    Returns:
        A model with the same inputs and outputs (frozen weights of heavy operators become inputs with a default as
        well), its nodes in planned order, repeats as clones named ``<node>/recompute<k>``, and control edges where
        onnxruntime would otherwise merge repeats or choose an order that costs memory. Fused nodes (see
        `ckplan.runtime.executing.fused`) stand as the standard nodes they are made of. Metadata says what was planned.

    Raises:
        ModelError: a value that needs a control edge has no static shape.
        UsageError: the plan was made for another graph, or one of the two is of another kind.
    """
    check_kind("the model", model, ir.Model, "give an `onnx_ir.Model`, such as `Step.fused`")
    check_kind("the plan", plan, Plan, "make one with `ckplan.plan`")
    names = [node.name or "" for node in model.graph]
    if list(plan.ops) != names:
        pairs = zip_longest(plan.ops, names, fillvalue="none")
        planned, here = next((planned, here) for planned, here in pairs if planned != here)
        raise UsageError(
            f"the plan was made for another graph: the first node that differs is '{planned}' there and '{here}' here",
            "give the graph that was planned: of a step it is `Step.fused`",
        )
    return write(model, plan).model


def write(
    model: ir.Model,
    plan: Plan,
    runtime: Runtime = CPU,
    reserved: Sequence[int] = (),
    pools: Layout | None = None,
    order: Sequence[str] = (),
    sparing: bool = True,
) -> Written:
    """Like `emit`, for a runtime, with what that makes of the file.

    Args:
        model: see `emit`.
        plan: see `emit`.
        runtime: where the file is to run.
        reserved: bytes of tensors to make first of all; see `ckplan.writer.reservation`.
        pools: what the arena is to be cut into instead, without a block for later runs; see `ckplan.writer.pools`. A
            file that is fed nothing but its parameters does without.
        order: names of tensors in the order in which they are to be made, if the nodes of the plan are to run in just
            that one: addresses depend on it.
        sparing: whether a tensor may have a second buffer where that lies within the peak; see `name_buffers`.
    """
    copy = model.clone()
    feed_weights(copy.graph)
    updates = updates_of(copy)
    file = _File(
        copy,
        updates,
        runtime,
        ControlEdges(copy.graph, runtime=runtime, batch=fed_tensor(copy.graph.inputs, updates)),
        pools,
        order,
        FUSED in model.meta,
    )
    nodes, moved = _planned_nodes(file, plan, reserved)
    draft = _settled(file, nodes, moved, sparing)
    describe(draft.model, draft.problem, plan, draft.edges, draft.timeline)
    tell_in_place(draft.model, draft.executed)
    unfuse(draft.model)
    drop_unread_initializers(draft.model.graph)
    return Written(draft.model, draft.executed, draft.numbers)


def _planned_nodes(file: _File, plan: Plan, reserved: Sequence[int]) -> tuple[list[ir.Node], bool]:
    """The nodes of a file in planned order, repeats and control edges among them, and whether leaves were moved.

    Raises:
        ModelError: a value that needs a control edge has no static shape.
    """
    graph, edges, pools = file.model.graph, file.edges, file.pools
    inputs, outputs, batch = graph.inputs, graph.outputs, edges.batch
    nodes = write_last(with_repeats(list(graph), plan.schedule), file.updates, file.runtime)
    if file.order:
        nodes = in_order(nodes, file.order)
    fed = list(inputs)
    opening = _open_arena(file, pools, batch, fed) if pools is not None and batch is not None else []
    keep_repeats_apart(nodes, edges)
    keep_unfolded(nodes, fed, edges)
    if file.fused:
        fence_alone(nodes, edges)
    release_unused(nodes, edges)
    moved = settle_order(nodes, inputs, outputs, edges, file.known, gathered=pools is not None)
    nodes = place_control_nodes(nodes)
    problem = problem_of_nodes(nodes, inputs, outputs, runtime=file.runtime, known=file.known)
    lives = lifetimes(problem, range(len(nodes)))
    hide_targets(nodes, edges, written_over(nodes, problem, lives, graph.initializers))
    hide_channels(nodes, edges)
    hide_held_over(nodes, edges)
    first, after = reserve(inputs, file.updates, reserved, edges)
    if pools is not None and batch is not None:
        first, after, kept = make_cells(pools, edges)
        keep_places(nodes, kept, after, edges)
        nodes = make_placeholders(nodes, pools.placeholders, after, edges)
        keep_walls(nodes, [value for cell, value in kept if cell.use == WALL], edges)
    hide_inputs(nodes, [value for value in fed if value.name not in file.updates], edges, after)
    if pools is not None and after is not None:
        wait_for_cells(nodes, inputs, after, edges)
    return [*opening, *first, *nodes], moved


def _open_arena(file: _File, pools: Layout, batch: ir.Value, fed: list[ir.Value]) -> list[ir.Node]:
    """Make the batch an input that might be left out, and see that the first region has the size that pools want.

    Args:
        file: the file.
        pools: what the arena is cut into.
        batch: an input that is fed.
        fed: the inputs; what stands for one from now on takes its place.

    Returns:
        Nodes to run first of all.
    """
    place = fed.index(batch)
    fed[place] = take_optional(batch, file.edges)
    source = smallest_fed(file.model.graph.inputs, file.updates)
    if pools.first <= DEFAULT.first_region or source is None:
        return []
    opening, fed[place] = open_first(pools.first, source, file.edges)
    return opening


def _settled(file: _File, nodes: list[ir.Node], moved: bool, sparing: bool) -> _Draft:
    """Write the file, with more control edges each time, until onnxruntime keeps to the plan; the best of what it does.

    Args:
        file: the file.
        nodes: in planned order.
        moved: whether leaves stand elsewhere, as onnxruntime begins with them; see `settle_order`.
        sparing: see `write`.
    """
    graph, edges = file.model.graph, file.edges
    own = set[str]() if file.pools is None else reserved_names(nodes)
    # Aliases that hide sources cost a little themselves: where they do not help, the file stays as it was before.
    best: _Draft | None = None
    while True:
        nodes = place_control_nodes(nodes)
        problem = problem_of_nodes(nodes, graph.inputs, graph.outputs, runtime=file.runtime, known=file.known)
        counted = without_tensors(problem, own)
        name_buffers(nodes, counted, graph.initializers, sparing)
        assemble(file.model, [nodes[place] for place in leaves_last(nodes)] if moved else nodes, edges)
        executed = executed_model(file.model, runtime=file.runtime)
        if _mended(file, nodes, counted, executed):
            continue
        draft = _drafted(file, problem, own, executed)
        # As planned, and what onnxruntime keeps to the end because nothing reads it.
        shapes = shape_classes(nodes, problem)
        limit = simulate(counted, range(len(nodes)), shapes).peak_activations * (1 + TOLERANCE)
        held = draft.peak > limit
        if held and (best is None or draft.peak < best.peak):
            best = replace(draft, model=file.model.clone())
        # A node that onnxruntime fuses reads for longer, and then a second buffer may be one too many.
        if held and sparing:
            sparing = False
        # Where tensors are to lie in cells, it matters in any case which buffers are handed on: what waits for places
        # hides shapes, by which others would be handed on than in the file without.
        elif not ((held or file.pools is not None) and hide_sources(nodes, executed, edges)):
            break
    return draft if best is None or draft.peak <= best.peak else best


def _mended(file: _File, nodes: list[ir.Node], counted: Problem, executed: ir.Model) -> bool:
    """Add the first control edges that onnxruntime turns out to need; whether there were any.

    Args:
        file: the file.
        nodes: in planned order.
        counted: their problem, without what is reserved.
        executed: what onnxruntime makes of the file as it is.
    """
    edges = file.edges
    return bool(
        edges.restore(executed)
        or (file.fused and fence(nodes, executed, edges))
        or (file.updates and wait_for_readers(nodes, executed, file.updates, edges))
        or repair(nodes, counted, executed_order(nodes, executed), edges)
        or (file.order and keep_order(nodes, executed_order(nodes, executed), edges))
    )


def _drafted(file: _File, problem: Problem, own: set[str], executed: ir.Model) -> _Draft:
    """A file as it is, with what onnxruntime makes of it; what is reserved has the names ``own``."""
    numbers = problem_of(executed, file.runtime)
    timeline = executed_timeline(executed, numbers)
    needed = executed_timeline(executed, without_tensors(numbers, own)) if own else timeline
    return _Draft(file.model, problem, file.edges.count, timeline, needed.peak_activations, executed, numbers)


def feed_weights(graph: ir.Graph) -> None:
    """Make initializers overridable that are weights of heavy operators, frozen or not, quantised or not.

    Of a constant weight onnxruntime keeps a second, packed copy, and it may move a convolution to a blocked layout. Of
    a constant that is quantised it makes floats when it loads the file, which take four or eight times the memory.
    Past a Transpose it moves a DequantizeLinear whose scale is constant, and quantises again for it; where the zero
    point is not of UINT8, onnxruntime 1.31 then refuses the file, whose QuantizeLinear it wrote for two types at once.
    """
    fed = set(graph.inputs)
    for node in all_nodes(graph):
        quantised = node.op_type == "DequantizeLinear"
        read = node.inputs[:1] if quantised else node.inputs if is_heavy(node) else ()
        weights = [v for v in read if v is not None and v.is_initializer() and len(v.shape or ()) > 1]
        if quantised and weights and _zero_point_type(node) not in (None, ir.DataType.UINT8):
            weights += [scale for scale in node.inputs[1:2] if scale is not None and scale.is_initializer()]
        for value in weights:
            if value not in fed:
                fed.add(value)
                graph.inputs.append(value)


def _zero_point_type(node: ir.Node) -> ir.DataType | None:
    zero_point = input_of(node, 2)
    return None if zero_point is None else zero_point.dtype
