"""Lets onnxruntime's arena take regions of chosen sizes at the start of a step, cut into cells, and no block beside.

A step first makes tensors that nothing reads the data of. Each region is asked for by a tensor of its size, the smaller
ones before the larger, while all before it are taken. Then it is taken again by tensors of the sizes of its cells, from
its beginning on. When all are there, those that lie where pools are to be die; walls are there until the last node, and
what keeps a place dies when the tensor is about to be made that is to lie there. See `ckplan.planner.arena.pools` for
what that is good for.

At the beginning of the first region a little is left free, for the shapes that are made meanwhile and later; a wall
keeps it apart from the rest, which is one pool. Between the two there may be slots, see `ckplan.planner.arena.slots`.

From the second run on onnxruntime would take one block for all tensors, in a region of its own. It does not do so for
a graph that may be fed something other than tensors. So one input, which is fed as before, is an optional tensor: one
that might be left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from ckplan.keys import PLACE, RESERVATION, ROLE
from ckplan.model.node_reads import reads
from ckplan.planner.arena.cells import POOL, SPARE, WALL, WALL_BYTES, Cell, Layout, Moment, Placeholder
from ckplan.planner.arena.regions import UNIT
from ckplan.planner.arena.slots import SLOT, SLOT_WALL, slots_taken
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import SMALL, bytes_of, dimensions_of, hide_dimensions
from ckplan.writer.control_edges import ControlEdges, is_control, read_instead, shape_constant
from ckplan.writer.ordering import gate, place_control_nodes, signal_of
from ckplan.writer.reservation import reserved

_NAME = "ckplan/pool"

_GAP = 8 * UNIT
"""Bytes left free in the first region for shapes and sizes, which take a unit each, while pools are made."""


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


def open_first(region: int, fed: ir.Value, edges: ControlEdges) -> tuple[list[ir.Node], ir.Value]:
    """A node that makes the first tensor in the arena, for a first region that is larger than usual.

    It does without a shape that is made before, which would lie in a region of the usual size: it repeats what is there
    before the run. While it is there nothing else finds room. So what waits for it reads a part of it without elements,
    which takes no memory; the batch does, and all control edges with it.

    Args:
        region: bytes of the region, a power of two.
        fed: a tensor that is there before the run, not larger.
        edges: maker of control edges; its batch changes.

    Returns:
        The node, and the batch that waits for it.
    """
    dims, batch = dimensions_of(fed), edges.batch
    assert dims is not None
    assert batch is not None
    shape = (region // bytes_of(fed), *dims)

    def constant(*numbers: int) -> ir.Value:
        return shape_constant(numbers, edges.initializers)

    name = f"{_NAME}/first"
    first = ir.node("Expand", [fed, constant(*shape)], name=name, metadata_props={ROLE: RESERVATION})
    nothing = ir.node("Slice", [first.outputs[0], constant(0), constant(0)], name=f"{name}/nothing")
    row = ir.node("Reshape", [nothing.outputs[0], constant(0)], {"allowzero": 1}, name=f"{name}/row")
    axes = ir.node("Cast", row.outputs, {"to": ir.DataType.INT64}, name=f"{name}/axes")
    again = ir.node("Unsqueeze", [batch, axes.outputs[0]], name=f"{batch.name}/again")
    kinds = [(fed.dtype, shape), (fed.dtype, (0, *shape[1:])), (fed.dtype, (0,)), (ir.DataType.INT64, (0,))]
    for node, (dtype, made) in zip((first, nothing, row, axes), kinds, strict=True):
        value = node.outputs[0]
        assert dtype is not None
        value.name, value.shape, value.type = node.name, ir.Shape(made), ir.TensorType(dtype)
    for node in (nothing, row, axes, again):
        node.metadata_props[ROLE] = "control"
    batch.replace_all_uses_with(again.outputs[0])
    again.replace_input_with(0, batch)
    edges.batch = again.outputs[0]
    edges.batch.name, edges.batch.type = again.name, batch.type
    known = dimensions_of(batch)
    assert known is not None
    hide_dimensions(edges.batch, known)
    return [first], edges.batch


def make_cells(layout: Layout, edges: ControlEdges) -> tuple[list[ir.Node], ir.Value, list[tuple[Cell, ir.Value]]]:
    """Nodes that cut the arena into cells.

    Args:
        layout: see `ckplan.planner.arena.cells`.
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
    spare = take(SPARE * UNIT - _GAP)
    after = edges.alias(gap, spare)  # dies now that something keeps it apart from the rest of the region
    kept.append((Cell(WALL_BYTES, WALL), take(WALL_BYTES)))
    room = slots_taken(layout.slots) * UNIT
    if layout.slots:
        # The last slot is cut off like the others: what is there has to be twice as large.
        space, source = take(room + (SLOT - SLOT_WALL) * UNIT), take(room)
        after = edges.alias(space, source)  # dies, and slots are made where it was
        nodes.append(_split(edges.alias(source, after), layout.slots, edges))
        taken += [source, *nodes[-1].outputs[::2]]
        after = taken[-1]
    left = layout.first - SPARE * UNIT - WALL_BYTES - 2 * room - SLOT * UNIT
    taken.append(take(left * 3 // 4))  # more than half of what is left, and so handed out whole
    after = edges.alias(spare, taken[-1])  # and so does this
    for region in layout.regions:
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


def _split(source: ir.Value, slots: int, edges: ControlEdges) -> ir.Node:
    """A node that makes slots and the walls between, in turn. Nobody reads the walls: they are there to the end."""
    sizes = (SLOT * UNIT, SLOT_WALL * UNIT) * slots
    name = f"{_NAME}/slots"
    made = ir.node("Split", [source, shape_constant(sizes, edges.initializers)], num_outputs=len(sizes), name=name)
    made.metadata_props[ROLE] = RESERVATION
    for number, (value, size) in enumerate(zip(made.outputs, sizes, strict=True)):
        value.name, value.shape, value.type = f"{name}/{number}", ir.Shape([size]), ir.TensorType(ir.DataType.UINT8)
    return made


def wait_for_cells(
    nodes: Sequence[ir.Node], inputs: Collection[ir.Value], there: ir.Value, edges: ControlEdges
) -> None:
    """Let shapes and what is computed of parameters alone wait for the cells, as nodes do that read the batch.

    They would run as soon as they can, and what they make would lie where cells are to be, or move what is behind.

    Args:
        nodes: the sequence; what reads the batch waits already.
        inputs: graph inputs; what reads none of them is computed when the file is loaded.
        there: what is there when the cells are.
        edges: maker of control edges.
    """
    late, fed = {there}, set(inputs)
    for node in place_control_nodes(nodes):
        if fed.isdisjoint(reads(node)):
            continue
        fed.update(node.outputs)
        large = not is_control(node) and any(bytes_of(value) >= SMALL for value in node.outputs if value.name)
        shape = is_control(node) and node.op_type == "Concat"
        if not late.isdisjoint(reads(node)) or ((large or shape) and gate(node, there, edges)):
            late.update(node.outputs)


def keep_places(
    nodes: Sequence[ir.Node], kept: Sequence[tuple[Cell, ir.Value]], there: ir.Value, edges: ControlEdges
) -> None:
    """Let what keeps places die right before the nodes run whose tensors are to lie there.

    Args:
        nodes: the sequence.
        kept: see `make_cells`.
        there: what is there when the cells are.
        edges: maker of control edges.
    """
    makers = _makers(nodes)
    for cell, value in kept:
        found = None if cell.end is None else _place(cell.end, nodes, makers, there, edges.runtime)
        if found is not None:
            gate(nodes[found[0]], edges.alias(value, found[1]), edges)


def make_placeholders(
    nodes: Sequence[ir.Node], placeholders: Sequence[Placeholder], there: ir.Value, edges: ControlEdges
) -> list[ir.Node]:
    """The same sequence with nodes for placeholders, each tied to the nodes before which it is made and dies.

    Those before one node are made one after the other, the last one before that node, and the first one when all that
    die before it are dead.

    Args:
        nodes: the sequence.
        placeholders: in the order in which they are made.
        there: what is there when the cells are.
        edges: maker of control edges.
    """
    makers = _makers(nodes)
    made: dict[int, list[ir.Value]] = {}
    dying: dict[int, list[tuple[ir.Value, ir.Value]]] = {}
    inserted: dict[int, list[ir.Node]] = {}
    for number, one in enumerate(placeholders):
        found, end = (_place(moment, nodes, makers, there, edges.runtime) for moment in (one.begin, one.end))
        if found is None:
            continue
        place, after = found
        if place in made:
            after = made[place][-1]
        else:
            for value, _ in dying.pop(place, ()):
                after = edges.alias(value, after)
        node = reserved(f"{_NAME}/placeholder{number}", one.bytes, after, edges)
        node.metadata_props[ROLE] = PLACE
        inserted.setdefault(place, []).append(node)
        made.setdefault(place, []).append(node.outputs[0])
        if end is not None:
            dying.setdefault(end[0], []).append((node.outputs[0], end[1]))
    for place, ended in dying.items():
        for value, last in ended:
            gate(nodes[place], edges.alias(value, last), edges)
    for place, values in made.items():
        gate(nodes[place], values[-1], edges)
    return [other for place, node in enumerate(nodes) for other in (*inserted.get(place, ()), node)]


def _makers(nodes: Sequence[ir.Node]) -> dict[str, int]:
    """The places of nodes by their names, and by the names of what they make."""
    named = {str(value.name): number for number, node in enumerate(nodes) for value in node.outputs}
    return named | {f"{node.name}()": number for number, node in enumerate(nodes)}


def _place(
    moment: Moment, nodes: Sequence[ir.Node], makers: Mapping[str, int], there: ir.Value, runtime: Runtime
) -> tuple[int, ir.Value] | None:
    """Where a node stands, and what tells that the one before it has run; for the first one, that cells are there.

    What makes views tells nothing: onnxruntime may run it as soon as there is what they are views of.
    """
    place = makers.get(f"{moment.node}()", makers.get(moment.tensor, -1))
    if place < 0:
        return None
    before = makers.get(moment.after, place)
    if before >= place:
        before = place - 1
    running = (nodes[number] for number in range(before, -1, -1) if not is_control(nodes[number]))
    signals = (signal_of(node) for node in running if runtime.view(node) is None)
    return place, next((signal for signal in signals if signal is not None), there)


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
