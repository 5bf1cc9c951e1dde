"""Lets onnxruntime's arena take regions of chosen sizes at the start of a step, cut into cells, and no block beside.

A step first makes tensors that nothing reads the data of. Each region is asked for by a tensor of its size, the smaller
ones before the larger, while all before it are taken. Then it is taken again by tensors of the sizes of its cells, from
its beginning on. When all are there, those that lie where pools are to be die; walls are there until the last node, and
what keeps a place dies when the tensor is about to be made that is to lie there. See `ckplan.planner.pools` for what
that is good for.

The first region is as it comes. At its beginning a little is left free, for the shapes that are made meanwhile; it is
too small for any cell.

From the second run on onnxruntime would take one block for all tensors, in a region of its own. It does not do so for
a graph that may be fed something other than tensors. So one input, which is fed as before, is an optional tensor: one
that might be left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.keys import PLACE, ROLE
from ckplan.planner.arena import DEFAULT, UNIT
from ckplan.planner.cells import POOL, WALL, Cell, Regions
from ckplan.runtime.sizes import dimensions_of, hide_dimensions
from ckplan.writer.control_edges import ControlEdges, is_control, read_instead
from ckplan.writer.ordering import gate, signal_of
from ckplan.writer.reservation import reserved

_NAME = "ckplan/pool"

_GAP, _SPARE = 8 * UNIT, 48 * UNIT
"""Bytes left free in the first region for shapes and sizes, which take a unit each: while pools are made, and then."""


def take_optional(batch: ir.Value, edges: ControlEdges) -> ir.Value:
    """Make an input one that might be left out, though it never is, for onnxruntime to lay out no block.

    Args:
        batch: a graph input that is fed; whatever reads it reads what the new node makes.
        edges: the control edges, of which some may hang on it.

    Returns:
        The same tensor without a copy, made by a node that stands nowhere yet.
    """
    dims = dimensions_of(batch)
    assert batch.type is not None
    assert dims is not None
    given = ir.Value(name=f"{batch.name}/given", type=batch.type)
    hide_dimensions(given, dims)
    batch.replace_all_uses_with(given)
    batch.type = ir.OptionalType(ir.TensorType(batch.type.dtype))
    edges.batch = given
    ir.node("OptionalGetElement", [batch], outputs=[given], name=str(given.name), metadata_props={ROLE: "control"})
    return given


def make_cells(regions: Regions, edges: ControlEdges) -> tuple[list[ir.Node], ir.Value, list[tuple[Cell, ir.Value]]]:
    """Nodes that cut the arena into cells.

    Args:
        regions: see `ckplan.planner.cells`.
        edges: maker of control edges, with a batch that the first node can be tied to.

    Returns:
        The nodes, in order; what is there when they have run; and the tensors in all cells but pools, which are to be
        kept.
    """
    assert edges.batch is not None
    nodes: list[ir.Node] = []
    taken: list[ir.Value] = []
    kept: list[tuple[Cell, ir.Value]] = []
    after = edges.batch

    def take(size: int) -> ir.Value:
        nonlocal after
        nodes.append(reserved(f"{_NAME}{len(nodes)}", size, after, edges))
        after = nodes[-1].outputs[0]
        return after

    gap = take(_GAP)
    spare = take(_SPARE)
    after = edges.alias(gap, spare)  # dies now that something keeps it apart from the rest of the region
    taken.append(take(DEFAULT.first_region // 2))  # more than half of what is left, and so handed out whole
    after = edges.alias(spare, taken[-1])  # and so does this
    for region in regions:
        if len(region) > 1:
            take(sum(cell.bytes for cell in region))
        for cell in region:
            made = take(cell.bytes)
            if cell.use == POOL:
                taken.append(made)
                continue
            kept.append((cell, made))
            if cell.use != WALL:
                nodes[-1].metadata_props[ROLE] = PLACE
    # Each is read once more when the last one is there, and lives until then.
    return nodes, edges.after_all([after, *(edges.alias(other, after) for other in taken if other is not after)]), kept


def keep_places(nodes: Sequence[ir.Node], kept: Sequence[tuple[Cell, ir.Value]], edges: ControlEdges) -> None:
    """Let what keeps places die right before the nodes run whose tensors are to lie there.

    Args:
        nodes: the sequence.
        kept: see `make_cells`.
        edges: maker of control edges.
    """
    named = {node.name: number for number, node in enumerate(nodes)}
    maker = {value.name: number for number, node in enumerate(nodes) for value in node.outputs}
    for cell, value in kept:
        place = named.get(cell.node, maker.get(cell.tensor, -1)) if cell.use != WALL else -1
        before = maker.get(cell.after, place)
        if before >= place:
            before = place - 1
        while before >= 0 and (is_control(nodes[before]) or signal_of(nodes[before]) is None):
            before -= 1
        if before >= 0 and (signal := signal_of(nodes[before])) is not None:
            gate(nodes[place], edges.alias(value, signal), edges)


def keep_walls(nodes: Sequence[ir.Node], walls: Sequence[ir.Value], edges: ControlEdges) -> None:
    """Let the last node that can wait for something wait for the walls, each read when its last input is there.

    Args:
        nodes: the sequence.
        walls: of what `make_cells` keeps.
        edges: maker of control edges.
    """
    place = {value: number for number, node in enumerate(nodes) for value in node.outputs}
    for node in reversed(nodes if walls else ()):
        made = [value for value in node.inputs if value is not None and value in place]
        made = [value for value in made if value.dtype is not None and dimensions_of(value) is not None]
        if not made or edges.runtime.view(node) is not None:
            continue
        latest = max(made, key=lambda value: place[value])
        late = edges.after_all([edges.alias(wall, latest) for wall in walls])
        read_instead(node, latest, edges.alias(latest, late))
        return
