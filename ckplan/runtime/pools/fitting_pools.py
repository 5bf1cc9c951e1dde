"""Pools and cells in a file's arena in which a run of it finds room."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from ckplan import keys
from ckplan.keys import PLACE, RESERVATION, ROLE
from ckplan.model.files.metadata import told
from ckplan.planner.arena.allocations import Allocations
from ckplan.planner.arena.cells import APART, POOL, WALL, WALL_BYTES, Cell, Layout, Moment
from ckplan.planner.arena.pools import best_pools
from ckplan.planner.arena.regions import UNIT, Arena
from ckplan.planner.arena.slots import SLOT_WALL
from ckplan.runtime.cpu import CPU
from ckplan.runtime.pools.allocations_of import allocations_of
from ckplan.runtime.sizes import bytes_of, smallest_fed


def fitting_pools(
    executed: ir.Model,
    model: ir.Model,
    seed: int = 0,
    *,
    places: bool = True,
    below: int | None = None,
    enough: int | None = None,
    start: Layout | None = None,
    deadline: float = math.inf,
) -> Layout | None:
    """Pools in which a run of a file finds room, whatever reservations and pools it makes itself; None if none do.

    Args:
        executed: what onnxruntime executes of a file, nodes in execution order.
        model: the file.
        seed: see `ckplan.planner.arena.pools.best_pools`.
        places: see there.
        below: see there.
        enough: see there.
        start: see there.
        deadline: see there.
    """
    asked = allocations_of(executed, model)
    roles = {node.name: node.metadata_props.get(ROLE) for node in model.graph}
    nodes = list(executed.graph)
    slots = next((node for node in nodes if _makes_slots(node, roles)), None)
    apart = _apart(asked, nodes, roles)
    there = _last_of_pools(asked, nodes, roles)
    asked = _without_own(asked, nodes, roles)
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
        deadline=deadline,
    )
    return None if found is None else _by_names(found, nodes, ran, asked)


def _last_of_pools(asked: Allocations, nodes: Sequence[ir.Node], roles: Mapping[str | None, str | None]) -> int:
    """The last step that gives back a pool that the file makes itself, -1 if it makes none."""
    walls = (WALL_BYTES, SLOT_WALL * UNIT)
    reserving = [step for node, step in zip(nodes, asked.steps, strict=True) if roles.get(node.name) == RESERVATION]
    pools = {buffer for step in reserving for buffer in step.tensors if asked.size[buffer] not in walls}
    return max((place for place, step in enumerate(asked.steps) if not pools.isdisjoint(step.freed)), default=-1)


def _without_own(asked: Allocations, nodes: Sequence[ir.Node], roles: Mapping[str | None, str | None]) -> Allocations:
    """The same without what is there for the arena's sake alone."""
    steps = zip(nodes, asked.steps, strict=True)
    own = {buffer for node, step in steps if roles.get(node.name) in (RESERVATION, PLACE) for buffer in step.tensors}
    return replace(asked, size=tuple(0 if buffer in own else size for buffer, size in enumerate(asked.size)))


def _by_names(layout: Layout, nodes: Sequence[ir.Node], ran: Sequence[bool], asked: Allocations) -> Layout:
    """The same with names of nodes and values beside the numbers of steps, for another file of the same plan."""
    born = {buffer: place for place, step in enumerate(asked.steps) for buffer in (*step.tensors, *step.outputs)}
    regions = [[_named(cell, nodes, ran, born.get(cell.use, -1)) for cell in region] for region in layout.regions]
    held = [
        replace(one, begin=_moment(nodes, ran, one.begin.step), end=_moment(nodes, ran, one.end.step))
        for one in layout.placeholders
    ]
    return replace(layout, regions=tuple(map(tuple, regions)), placeholders=tuple(held))


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
