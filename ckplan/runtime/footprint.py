"""What a process with a file holds from its first steps on: parameters, state, and onnxruntime's arena.

What a loop feeds is counted once, as long as it is fed: parameters, optimizer states, the batch. A file whose updates
may be made in place (`keys.IN_PLACE`) gets its new values in the same memory; any other returns them in memory of its
own, as it returns gradients. Values that lie in the file itself are held by the session too, also where they are fed;
those in a data file are mapped, and only read where they are not fed. onnxruntime packs no weight a second time that is
an input, and those of heavy operators are.

A session that is open holds objects for its nodes and initializers, kernels and names among them, whatever the tensors
are; the first one in a process brings pages of onnxruntime's library and its tables of kernels in besides. They are
counted from what was measured (`benchmarks.session_objects`), as averages: a large node takes more than a small one.

The arena takes regions that are larger than what is ever written to them. What counts is what is written: that is in
the resident set, for which containers and machines have limits. The tables that it keeps of its regions are written to
as a whole. A limit of address space (``ulimit -v``, ``RLIMIT_DATA``) counts whole regions: it has to leave
`spare` more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import onnx_ir as ir

from ckplan import keys
from ckplan.keys import PLACE, RESERVATION, ROLE
from ckplan.model.metadata import listed_names, told
from ckplan.model.weights import lies_outside
from ckplan.planner.allocations import (
    Allocations,
    Demand,
    ExpectedArena,
    allocations,
    expected_arena,
    written,
)
from ckplan.planner.arena import DEFAULT, UNIT, Arena
from ckplan.planner.cells import APART, POOL, WALL, WALL_BYTES, Cell, Layout, Moment
from ckplan.planner.pools import best_pools
from ckplan.planner.problem import Problem
from ckplan.planner.slots import SLOT_WALL
from ckplan.runtime.cpu import CPU
from ckplan.runtime.feeds import has_memory_pattern
from ckplan.runtime.problem_of import problem_of
from ckplan.runtime.sizes import bytes_of, shape_classes, smallest_fed

Reservation = tuple[int, ...]
"""Bytes of tensors that a file makes first of all, one after the other; see `ckplan.writer.reservation`."""

_LARGEST_RESERVATIONS = 3
"""How many sizes are tried of a tensor that lets the arena take a large region at once, the largest ones."""

_NODE, _RUN = 300, 96 * 2**10
"""Bytes that runs keep beside tensors, for each node and in all, as far as was seen: frames, the block's pattern.

Part of what they need lies where the memory is that opening the session has given back.
"""

_LEFT_BY_COPIES = 6
"""A sixth of the bytes of values in a file: what reading them leaves behind in pieces, as far as was seen."""

SESSION_NODE, SESSION_INITIALIZER, SESSION = 5_000, 4_000, 280 * 2**10
"""Bytes of a session for each node and each initializer of its file, and in all; see `benchmarks.session_objects`."""

FIRST_SESSION, LIBRARY = 1_340 * 2**10, 9_520 * 2**10
"""Bytes that the first session of a process brings: heap, and pages of the library that opening and steps read."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process with a file holds, in bytes, beyond what it takes before it opens any session.

    Attributes:
        parameters: all weights and constants, as fed or as the session holds them.
        copies: values in the file of what is fed besides.
        state: an optimizer's states.
        inputs: the batch, and whatever else is fed.
        returned: what the caller gets in memory of its own: the loss, gradients, new values that are not made in place.
        activations: their peak, workspaces and gradients that die in their updates included.
        arena: what onnxruntime's arena takes beyond those two, once it has run a few times with default options.
        spare: bytes of its regions to which nothing is ever written: addresses, but no memory.
        held: bytes of its regions, written to or not, outputs included.
        upkeep: what onnxruntime keeps beside tensors: what the arena's regions are cut into, a run's frame.
        session: what an open session holds that is no tensor, with what the first one in a process brings and what
            reading `copies` leaves behind.
    """

    parameters: int
    copies: int
    state: int
    inputs: int
    returned: int
    activations: int
    arena: int
    spare: int = 0
    held: int = 0
    upkeep: int = 0
    session: int = 0

    @property
    def resident(self) -> int:
        """What is there whatever the tensors of a run are."""
        return self.parameters + self.copies + self.state + self.inputs + self.session

    @property
    def touched(self) -> int:
        """What is written to in the arena, outputs included."""
        return self.returned + self.activations + self.arena

    @property
    def running(self) -> int:
        """What runs add to it."""
        return self.touched + self.upkeep

    @property
    def total(self) -> int:
        """Everything that takes memory."""
        return self.resident + self.running

    def to_json(self) -> dict[str, int]:
        """The fields and the total."""
        return {**asdict(self), "total": self.total}


def footprint_of(
    executed: ir.Model, model: ir.Model, *, in_place: bool | None = None, problem: Problem | None = None
) -> Footprint:
    """What a process with a file holds, as simulated.

    Args:
        executed: what onnxruntime executes of the file, nodes in execution order.
        model: the file, which has the values of its parameters.
        in_place: whether new values are written over the old ones; by default as the file says.
        problem: the numbers of what is executed, if they are known.
    """
    given = model.metadata_props.get(keys.IN_PLACE) == "true" if in_place is None else in_place
    problem = problem or problem_of(executed)
    asked = _asked(executed, model, given, problem)
    peak = _peak(problem, asked)
    returned = sum(asked.size[buffer] for step in asked.steps for buffer in step.outputs)
    steady = expected_arena(asked).steady
    touched = max(steady.touched + asked.outside, peak + returned)
    initializers = model.graph.initializers.values()
    states = set(listed_names(model.metadata_props, keys.STATES))
    fed = set(listed_names(model.metadata_props, keys.PARAMETERS)) | told(model.metadata_props, keys.UPDATES).keys()
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    outside = lies_outside(model)
    copies = sum(bytes_of(value) for value in initializers if value.name in fed and not outside(value))
    return Footprint(
        parameters=sum(bytes_of(value) for value in initializers),
        copies=copies,
        state=sum(bytes_of(value) for value in inputs if value.name in states),
        inputs=sum(bytes_of(value) for value in inputs if value.name not in states),
        returned=returned,
        activations=peak,
        arena=touched - peak - returned,
        spare=steady.held - steady.touched,
        held=steady.held,
        upkeep=steady.tables + _RUN + _NODE * len(executed.graph),
        session=session_bytes(model) + FIRST_SESSION + LIBRARY + copies // _LEFT_BY_COPIES,
    )


def session_bytes(model: ir.Model) -> int:
    """What an open session of a file holds that is no tensor, in bytes."""
    graphs = list(model.graphs())
    nodes, initializers = sum(map(len, graphs)), sum(len(graph.initializers) for graph in graphs)
    return SESSION_NODE * nodes + SESSION_INITIALIZER * initializers + SESSION


def best_reservation(executed: ir.Model, model: ir.Model) -> tuple[Reservation, int]:
    """The tensors that, made first and dead at once, let the arena write to least, and what that is.

    One of the size of the block of later runs keeps the first run and the others in one region; none is larger, see
    `ckplan.writer.reservation`. There are none where they make no difference.

    Args:
        executed: what onnxruntime executes of a file, nodes in execution order.
        model: the file.
    """
    asked = allocations_of(executed, model)
    reservations = [(), *_reservations(expected_arena(asked))]
    found = {reserved: written(_reserving(asked, reserved)) for reserved in reservations}
    reserved = min(found, key=lambda reserved: (found[reserved], sum(reserved)))
    return reserved, found[reserved]


def _reservations(expected: ExpectedArena) -> list[Reservation]:
    """Tensors to be tried: one that gets a region of twice its size, one of the block, and one before it.

    A region that is less than twice as large as the block is handed out whole for it. What later runs take beside the
    block gets one of its own then: a small one, if it is asked for first. Where the first region of all would hold it,
    one that goes beyond that region is tried as well: the first is where what is made before a step lies.
    """
    half, sizes, block = DEFAULT.first_region // 2, [], expected.block
    while half + UNIT <= block:
        sizes.append(half + UNIT)
        half *= 2
    beside = expected.needed - block
    larger = [*sizes[-1:], *([block] if block else [])]
    small = (
        dict.fromkeys((beside, max(beside, DEFAULT.first_region + UNIT))) if 2 * beside > DEFAULT.first_region else ()
    )
    twice = [(one, size) for one in dict.fromkeys(small) for size in larger if one <= size]
    return [*((size,) for size in sizes[-_LARGEST_RESERVATIONS:]), *((size,) for size in larger[-1:]), *twice]


def _reserving(asked: Allocations, reserved: Reservation) -> Allocations:
    """The same with tensors made first of all."""
    if not reserved:
        return asked
    new = len(asked.size)
    # What the first one waits for comes before it, and takes a small region: the loss lies there in later runs.
    first = [Demand((new, new + 1), (), 0, (new, new + 1))]
    first += [Demand((buffer,), (), 0, (buffer,)) for buffer in range(new + 2, new + 1 + len(reserved))]
    return replace(asked, size=(*asked.size, 1, *reserved), steps=(*first, *asked.steps))


def fitting_pools(
    executed: ir.Model,
    model: ir.Model,
    seed: int = 0,
    *,
    places: bool = True,
    below: int | None = None,
    enough: int | None = None,
    start: Layout | None = None,
) -> Layout | None:
    """Pools in which a run of a file finds room, whatever reservations and pools it makes itself; None if none do.

    Args:
        executed: what onnxruntime executes of a file, nodes in execution order.
        model: the file.
        seed: see `ckplan.planner.pools.best_pools`.
        places: see there.
        below: see there.
        enough: see there.
        start: see there.
    """
    asked = allocations_of(executed, model)
    roles = {node.name: node.metadata_props.get(ROLE) for node in model.graph}
    nodes = list(executed.graph)
    own, pools = set[int](), set[int]()
    for node, step in zip(nodes, asked.steps, strict=True):
        if roles.get(node.name) in (RESERVATION, PLACE):
            own.update(step.tensors)
        if roles.get(node.name) == RESERVATION:
            pools.update(buffer for buffer in step.tensors if asked.size[buffer] not in (WALL_BYTES, SLOT_WALL * UNIT))
    slots = next((node for node in nodes if _makes_slots(node, roles)), None)
    apart = _apart(asked, nodes, roles)
    there = max((place for place, step in enumerate(asked.steps) if not pools.isdisjoint(step.freed)), default=-1)
    asked = replace(asked, size=tuple(0 if buffer in own else size for buffer, size in enumerate(asked.size)))
    # What only looks at a buffer runs anywhere. What takes over one is waited for, and not what lay in it, which would
    # have a reader more and still lie there.
    ran = [roles.get(node.name) not in ("control", RESERVATION, PLACE) and CPU.view(node) is None for node in nodes]
    # It waits for something made before, which waits for what runs before, or for the cells: not so a view.
    gates = [
        place
        for place, (node, step) in enumerate(zip(nodes, asked.steps, strict=True))
        if place > there and ran[place] and (step.tensors or step.outputs) and node.name in roles
    ]
    fed = smallest_fed(model.graph.inputs, told(model.metadata_props, keys.UPDATES))
    spread = None if fed is None else bytes_of(fed)
    start = None if start is None else _renumbered(start, nodes, asked)
    found = best_pools(
        asked,
        there + 1,
        seed,
        places=places,
        gates=gates,
        spread=spread,
        apart=apart,
        slots=0 if slots is None else len(slots.outputs) // 2,
        below=below,
        enough=enough,
        start=start,
    )
    if found is None:
        return None
    born = {buffer: place for place, step in enumerate(asked.steps) for buffer in (*step.tensors, *step.outputs)}
    regions = [[_named(cell, nodes, ran, born.get(cell.use, -1)) for cell in region] for region in found.regions]
    return replace(
        found,
        regions=tuple(map(tuple, regions)),
        placeholders=tuple(
            replace(one, begin=_moment(nodes, ran, one.begin.step), end=_moment(nodes, ran, one.end.step))
            for one in found.placeholders
        ),
    )


def _apart(asked: Allocations, nodes: Sequence[ir.Node], roles: Mapping[str | None, str | None]) -> int:
    """Units of the first region up to the end of the wall in it, or of the slots behind that.

    The wall stands behind what is left for shapes.
    """
    arena, apart = Arena(), 0
    for node, step in zip(nodes, asked.steps, strict=True):
        for buffer in step.tensors:
            arena.allocate(buffer, asked.size[buffer])
            if not apart and roles.get(node.name) == RESERVATION and asked.size[buffer] == WALL_BYTES:
                apart = arena.end_of(buffer) // UNIT
        if _makes_slots(node, roles):
            return max(map(arena.end_of, step.tensors)) // UNIT
        for buffer in step.freed:
            arena.free(buffer)
    return apart or APART


def _makes_slots(node: ir.Node, roles: Mapping[str | None, str | None]) -> bool:
    """Whether a node makes the slots of a file and what lies between them."""
    return node.op_type == "Split" and roles.get(node.name) == RESERVATION


def _renumbered(layout: Layout, nodes: Sequence[ir.Node], asked: Allocations) -> Layout:
    """The same for the steps and buffers of another file of the same plan."""
    places = {str(node.name): place for place, node in enumerate(nodes)}

    def buffer_of(cell: Cell) -> int:
        place = -1 if cell.end is None else places.get(cell.end.node, -1)
        step = asked.steps[place]
        found = (*step.tensors, *step.outputs) if place >= 0 else ()
        return max(found, key=lambda buffer: asked.size[buffer], default=cell.use if cell.use == WALL else POOL)

    def again(moment: Moment) -> Moment:
        return replace(moment, step=places.get(moment.node, -1))

    held = [replace(one, begin=again(one.begin), end=again(one.end)) for one in layout.placeholders]
    return replace(
        layout,
        regions=tuple(tuple(replace(cell, use=buffer_of(cell)) for cell in region) for region in layout.regions),
        placeholders=tuple(one for one in held if 0 <= one.begin.step < one.end.step),
    )


def _named(cell: Cell, nodes: Sequence[ir.Node], ran: Sequence[bool], place: int) -> Cell:
    """The same cell with what is made when it is given back, if it is kept for a buffer."""
    return cell if place < 0 else replace(cell, end=_moment(nodes, ran, place))


def _moment(nodes: Sequence[ir.Node], ran: Sequence[bool], place: int) -> Moment:
    """When a node runs, by names."""
    before = next((nodes[number] for number in reversed(range(place)) if ran[number]), None)
    after = "" if before is None else before.outputs[0].name
    return Moment(place, str(nodes[place].name), str(nodes[place].outputs[0].name), str(after))


def allocations_of(executed: ir.Model, model: ir.Model) -> Allocations:
    """What a file asks of the allocator, new values in place if it says so."""
    return _asked(executed, model, model.metadata_props.get(keys.IN_PLACE) == "true", problem_of(executed))


def _asked(executed: ir.Model, model: ir.Model, in_place: bool, problem: Problem) -> Allocations:
    """What a file asks of the allocator, which has no part in new values that are in place."""
    shapes, pattern = shape_classes(executed.graph, problem), has_memory_pattern(executed.graph)
    asked = allocations(problem, range(len(problem.ops)), shapes, pattern=pattern)
    bound = frozenset(map(str, told(model.metadata_props, keys.UPDATES).values())) if in_place else frozenset[str]()
    steps = []
    for step, op in zip(asked.steps, problem.ops, strict=True):
        names = {problem.tensors[tensor].name: problem.tensors[tensor].bytes for tensor in op.outputs}
        kept = list(step.outputs)
        for size in (size for name, size in names.items() if name in bound):
            buffer = next((buffer for buffer in kept if asked.size[buffer] == size), None)
            if buffer is not None:
                kept.remove(buffer)
        steps.append(replace(step, outputs=tuple(kept)))
    return replace(asked, steps=tuple(steps))


def _peak(problem: Problem, asked: Allocations) -> int:
    """Peak of activations, with what kernels take outside the allocator; steps are the ops of the problem in order."""
    live = highest = 0
    for step, op in zip(asked.steps, problem.ops, strict=True):
        live += sum(asked.size[buffer] for buffer in step.tensors)
        highest = max(highest, live + step.workspace + op.outside)
        live -= sum(asked.size[buffer] for buffer in step.freed)
    return highest
