"""Plan -> ONNX: any schedule becomes a file that stock onnxruntime executes as planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ckplan.model.cleanup import drop_unread_initializers
from ckplan.model.nested_graphs import all_nodes
from ckplan.model.node_reads import input_of
from ckplan.model.traits import is_heavy
from ckplan.planner.arena import DEFAULT
from ckplan.planner.cells import WALL, Layout
from ckplan.planner.plan import Plan
from ckplan.planner.problem import Problem
from ckplan.planner.simulate import lifetimes, simulate
from ckplan.planner.timeline import Timeline
from ckplan.runtime.cpu import CPU
from ckplan.runtime.executed import executed_model, executed_order, executed_timeline
from ckplan.runtime.problem_of import Numbering, problem_of, problem_of_nodes
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import shape_classes, smallest_fed
from ckplan.runtime.unfused import FUSED, unfuse
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
        `ckplan.runtime.fused`) stand as the standard nodes they are made of. Metadata says what was planned.

    Raises:
        ModelError: a value that needs a control edge has no static shape.
    """
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
    inputs, outputs = copy.graph.inputs, copy.graph.outputs
    updates = updates_of(copy)
    nodes = write_last(with_repeats(list(copy.graph), plan.schedule), updates, runtime)
    if order:
        nodes = in_order(nodes, order)
    batch = next((value for value in inputs if not value.is_initializer() and value.name not in updates), None)
    edges = ControlEdges(copy.graph, runtime=runtime, batch=batch)
    fed = list(inputs)
    opening: list[ir.Node] = []
    if pools is not None and batch is not None:
        place = fed.index(batch)
        fed[place] = take_optional(batch, edges)
        source = smallest_fed(inputs, updates)
        if pools.first > DEFAULT.first_region and source is not None:
            opening, fed[place] = open_first(pools.first, source, edges)
    keep_repeats_apart(nodes, edges)
    keep_unfolded(nodes, fed, edges)
    if model.meta.get(FUSED):
        fence_alone(nodes, edges)
    release_unused(nodes, edges)
    known = Numbering()
    moved = settle_order(nodes, inputs, outputs, edges, known, gathered=pools is not None)
    nodes = place_control_nodes(nodes)
    problem = problem_of_nodes(nodes, inputs, outputs, runtime=runtime, known=known)
    lives = lifetimes(problem, range(len(nodes)))
    hide_targets(nodes, edges, written_over(nodes, problem, lives, copy.graph.initializers))
    hide_channels(nodes, edges)
    hide_held_over(nodes, edges)
    first, after = reserve(inputs, updates, reserved, edges)
    if pools is not None and batch is not None:
        first, after, kept = make_cells(pools, edges)
        keep_places(nodes, kept, edges)
        nodes = make_placeholders(nodes, pools.placeholders, edges)
        keep_walls(nodes, [value for cell, value in kept if cell.use == WALL], edges)
    hide_inputs(nodes, [value for value in fed if value.name not in updates], edges, after)
    if pools is not None and after is not None:
        wait_for_cells(nodes, inputs, after, edges)
    nodes = [*opening, *first, *nodes]
    own = set[str]() if pools is None else reserved_names(nodes)
    # Aliases that hide sources cost a little themselves: where they do not help, the file stays as it was before.
    best: _Draft | None = None
    while True:
        nodes = place_control_nodes(nodes)
        problem = problem_of_nodes(nodes, inputs, outputs, runtime=runtime, known=known)
        counted = without_tensors(problem, own)
        name_buffers(nodes, counted, copy.graph.initializers, sparing)
        assemble(copy, [nodes[place] for place in leaves_last(nodes)] if moved else nodes, edges)
        executed = executed_model(copy, runtime=runtime)
        if edges.restore(executed):
            continue
        if model.meta.get(FUSED) and fence(nodes, executed, edges):
            continue
        if updates and wait_for_readers(nodes, executed, updates, edges):
            continue
        if repair(nodes, counted, executed_order(nodes, executed), edges):
            continue
        if order and keep_order(nodes, executed_order(nodes, executed), edges):
            continue
        numbers = problem_of(executed, runtime)
        timeline = executed_timeline(executed, numbers)
        needed = executed_timeline(executed, without_tensors(numbers, own)) if own else timeline
        draft = _Draft(copy, problem, edges.count, timeline, needed.peak_activations, executed, numbers)
        # As planned, and what onnxruntime keeps to the end because nothing reads it.
        shapes = shape_classes(nodes, problem)
        limit = simulate(counted, range(len(nodes)), shapes).peak_activations * (1 + TOLERANCE)
        held = draft.peak > limit
        if held and (best is None or draft.peak < best.peak):
            best = replace(draft, model=copy.clone())
        # A node that onnxruntime fuses reads for longer, and then a second buffer may be one too many.
        if held and sparing:
            sparing = False
        # Where tensors are to lie in cells, it matters in any case which buffers are handed on: what waits for places
        # hides shapes, by which others would be handed on than in the file without.
        elif not ((held or pools is not None) and hide_sources(nodes, executed, edges)):
            break
    if best is None or draft.peak <= best.peak:
        best = draft
    describe(best.model, best.problem, plan, best.edges, best.timeline)
    tell_in_place(best.model, best.executed)
    unfuse(best.model)
    drop_unread_initializers(best.model.graph)
    return Written(best.model, best.executed, best.numbers)


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
