"""Makes onnxruntime run a file in the order in which it is written, where another order would cost memory.

By default it runs another (see `execution_order`). Where that costs memory, leaves stand last in the file, the last of
them first, and run in their places. Where the order that the model of it predicts still costs memory, pairs of
neighbours that it would run the wrong way round get a control edge, and only those whose swap spans a step at which
more memory is in use than planned at the peak. Every edge settles its pair for good, so this ends; usually after a few
rounds and with edges on a fraction of the pairs.

Plans are for that order alone. Under ``ExecutionOrder.PRIORITY_BASED``, a session option, what optimisers fused runs
when nothing else can, which takes an edge on every other node to hold: a third more nodes for everybody.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import onnx_ir as ir

from ckplan.keys import RECOMPUTE_OF
from ckplan.model.node_reads import reads
from ckplan.model.traits import is_random
from ckplan.planner.peak import live_bytes, peak_of
from ckplan.planner.problem import Problem
from ckplan.runtime.executing.execution_order import default_order
from ckplan.runtime.executing.unfused import PARTS, Part
from ckplan.runtime.problem_of import Numbering, problem_of_nodes
from ckplan.runtime.sizes import SMALL, bytes_of, dimensions_of
from ckplan.writer.control_edges import ControlEdges, is_control, read_instead

TOLERANCE = 0.002
"""Share of the peak that an order may cost before control edges are added against it."""

_WITH_STATISTICS = frozenset({"LayerNormalization"})
"""Operators whose further outputs are by the way: the kernel makes nothing in their place, and the first as before."""


def place_control_nodes(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """A sequence with each node of a control edge right before the first node that needs it.

    Args:
        nodes: the nodes in planned order; those of control edges may be missing or stand anywhere.
    """
    placed: list[ir.Node] = []
    done: set[ir.Node] = set()

    def place(node: ir.Node) -> None:
        done.add(node)
        for value in reads(node):
            maker = value.producer()
            if maker is not None and maker not in done and is_control(maker):
                place(maker)
        placed.append(node)

    for node in nodes:
        if not is_control(node):
            place(node)
    return placed


def gate(node: ir.Node, after: ir.Value, edges: ControlEdges, among: Collection[ir.Value | None] | None = None) -> bool:
    """Let ``node`` wait for ``after``: one of its inputs is read through an alias.

    Args:
        node: the node that is to wait.
        after: a tensor made earlier in the sequence, or a graph input.
        edges: maker of the control edges.
        among: the inputs one of which is to be read so, by default all.

    Returns:
        Whether an edge was made: not if ``node`` reads no tensor of static shape, nor if it is a view, which costs
        nothing wherever it runs, nor if it waits for ``after`` already.
    """
    if edges.runtime.view(node) is not None or (node, after) in edges.waits:
        return False
    candidates = {
        value: index
        for index, value in reversed(list(enumerate(node.inputs)))
        if value is not None and value.dtype is not None and dimensions_of(value) is not None
        if among is None or value in among
    }
    if not candidates:
        return False

    def rank(value: ir.Value) -> tuple[bool, bool, int]:
        # Axes, shapes and the like are better left to be seen as the constants they are.
        floating = value.dtype is not None and value.dtype.is_floating_point()
        return not floating, value.producer() is None, candidates[value]

    tensor = min(candidates, key=rank)
    read_instead(node, tensor, edges.alias(tensor, after))
    edges.waits.add((node, after))
    return True


def signal_of(node: ir.Node) -> ir.Value | None:
    """An output of a node by which to wait for it: the first that is a tensor."""
    return next((value for value in node.outputs if value.name and isinstance(value.type, ir.TensorType)), None)


def keep_repeats_apart(nodes: Sequence[ir.Node], edges: ControlEdges) -> None:
    """Gate every repeat that reads just what its original, or another repeat, reads: else they would be merged.

    Views are looked through: repeats of them may be merged, they cost nothing. Where that is so of a part of a fused
    node alone, the part would be merged, have two readers, and be fused with neither.
    """
    same: dict[ir.Value, ir.Value] = {}
    seen: dict[tuple[object, ...], ir.Node] = {}
    before: ir.Value | None = None
    for node in nodes:
        identity = node.metadata_props.get(RECOMPUTE_OF, node.name or "")
        key: tuple[object, ...] = (
            identity,
            *(None if value is None else same.get(value, value) for value in node.inputs),
        )
        twin = seen.setdefault(key, node)
        if twin is not node:
            if edges.runtime.view(node) is not None:
                same.update(zip(node.outputs, (same.get(value, value) for value in twin.outputs), strict=True))
            elif before is not None:
                gate(node, before, edges)
        parts: tuple[Part, ...] = node.meta.get(PARTS, ())
        inner = {made for part in parts for made in part.outputs if isinstance(made, str)}
        for number, part in enumerate(parts):
            if not inner.isdisjoint(part.inputs):
                continue  # what it reads is kept apart
            read = [node.inputs[at] for at in part.inputs if isinstance(at, int)]
            key = (identity, number, *(None if value is None else same.get(value, value) for value in read))
            if seen.setdefault(key, node) is not node and before is not None:
                gate(node, before, edges, read)
        before = signal_of(node) or before


def keep_unfolded(nodes: Sequence[ir.Node], inputs: Collection[ir.Value], edges: ControlEdges) -> None:
    """Gate nodes that onnxruntime could compute at load time, if what they make is large.

    It would be held as an initializer from then on: a tensor of ones that seeds a gradient, zeros to scatter into.
    """
    fed = set(inputs)
    constant: set[ir.Value] = set()
    before: ir.Value | None = next(iter(inputs), None)
    for node in nodes:
        foldable = all(
            value is None or value in constant or (value.is_initializer() and value not in fed) for value in node.inputs
        )
        if foldable and not is_random(node):
            large = any(bytes_of(value) >= SMALL for value in node.outputs)
            if not (large and before is not None and gate(node, before, edges)):
                constant.update(node.outputs)
        before = signal_of(node) or before


def release_unused(nodes: Sequence[ir.Node], edges: ControlEdges) -> None:
    """Let the next node wait for outputs that nothing reads: onnxruntime frees a tensor after its last reader only.

    Statistics that only another run of their node is read for are left out.
    """
    unused: list[ir.Value] = []
    for node in nodes:
        if node.op_type in _WITH_STATISTICS and PARTS not in node.meta:
            _drop_unread(node)
        while unused and gate(node, unused[-1], edges):
            unused.pop()
        unused += [
            value
            for value in node.outputs
            if value.name and not value.uses() and not value.is_graph_output() and bytes_of(value) >= SMALL
        ]


def _drop_unread(node: ir.Node) -> None:
    """Leave out the last outputs of a node but for its first, as long as nothing reads them."""
    while len(node.outputs) > 1 and not node.outputs[-1].uses() and not node.outputs[-1].is_graph_output():
        node.resize_outputs(len(node.outputs) - 1)


def settle_order(
    nodes: Sequence[ir.Node],
    inputs: Collection[ir.Value],
    outputs: Collection[ir.Value],
    edges: ControlEdges,
    known: Numbering,
    *,
    gathered: bool = False,
) -> bool:
    """Add control edges until DEFAULT costs no more memory than the order of the sequence.

    Args:
        nodes: the sequence in planned order.
        inputs: graph inputs.
        outputs: graph outputs.
        edges: maker of the control edges.
        known: what is known of the nodes as numbers; grows.
        gathered: whether leaves that run out of their places are to wait for each other; see `gather_leaves`.

    Returns:
        Whether the nodes are to stand in the file as `leaves_last` has them; else as in the sequence.
    """
    moved = settled = False
    while True:
        nodes = place_control_nodes(nodes)
        problem = problem_of_nodes(nodes, inputs, outputs, runtime=edges.runtime, known=known)
        fused = {position for position, node in enumerate(nodes) if PARTS in node.meta}
        order = default_order(problem.predecessors, fused, leaves_last(nodes) if moved else None)
        if not settled and exceeds(problem, order):
            moved = not (gathered and gather_leaves(nodes, edges))
            settled = True
        elif not repair(nodes, problem, order, edges):
            return moved


def exceeds(problem: Problem, order: Sequence[int]) -> bool:
    """Whether an execution order costs memory that the order of the file does not."""
    return peak_of(problem, order) > peak_of(problem, range(len(problem.ops))) * (1 + TOLERANCE)


def leaves_last(nodes: Sequence[ir.Node]) -> list[int]:
    """The positions of nodes as they are to stand in the file: the leaves last, the last of them first.

    DEFAULT finishes the leaf that stands last first, with all that it needs, then the one before it. So each runs in
    its place in the sequence: a weight's gradient before the gradients of the layers below.
    """
    leaves = [place for place, node in enumerate(nodes) if not any(value.uses() for value in node.outputs)]
    last = set(leaves)
    return [*(place for place in range(len(nodes)) if place not in last), *reversed(leaves)]


def gather_leaves(nodes: Sequence[ir.Node], edges: ControlEdges) -> bool:
    """Let the last leaf wait for all others, in turn.

    That takes a node for each, where `leaves_last` takes none. It is for files whose arena is cut into pools, where
    little is to spare: of 24 plans of small networks all kept to their budgets so, and 22 with leaves last.

    Returns:
        Whether that was possible.
    """
    real = [node for node in nodes if not is_control(node)]
    leaves = [place for place, node in enumerate(real) if not any(value.uses() for value in node.outputs)]
    while leaves:
        last = leaves.pop()
        signals = [signal for place in leaves if (signal := signal_of(real[place])) is not None]
        if len(signals) < 2:
            return False
        if edges.runtime.view(real[last]) is None:
            return gate(real[last], edges.after_all(signals), edges)
    return False


def repair(nodes: Sequence[ir.Node], problem: Problem, order: Sequence[int], edges: ControlEdges) -> int:
    """Add control edges against one execution order if that order costs memory.

    Args:
        nodes: the sequence in planned order.
        problem: the problem of the sequence.
        order: the execution order, as positions in the sequence.
        edges: maker of the control edges.

    Returns:
        How many edges were added; 0 if the order is good enough.
    """
    limit = peak_of(problem, range(len(nodes))) * (1 + TOLERANCE)
    live = live_bytes(problem, order)
    if live.max(initial=0) <= limit:
        return 0
    place = {position: step for step, position in enumerate(order)}
    excess = [0]  # number of steps over the limit before each step
    for most in live:
        excess.append(excess[-1] + int(most > limit))
    swapped = _swapped(nodes, order, edges)
    spanning = [(first, second) for first, second in swapped if excess[place[first] + 1] > excess[place[second]]]
    # A leaf runs out of its place until something waits for it, and takes its neighbours along: most other pairs come
    # right of themselves once the leaves do.
    leaves = [(first, second) for first, second in spanning if not any(v.uses() for v in nodes[first].outputs)]
    # What makes a few bytes rarely matters, and a normalisation's gradient is full of it.
    large = [pair for pair in spanning if any(bytes_of(v) >= SMALL for place in pair for v in nodes[place].outputs)]
    for pairs in (leaves, large, spanning or swapped):
        if added := _settle(nodes, pairs, edges):
            return added
    return 0


def keep_order(nodes: Sequence[ir.Node], order: Sequence[int], edges: ControlEdges) -> int:
    """Add control edges wherever an execution order is another than that of the sequence, whatever that costs.

    Args:
        nodes: the sequence in planned order.
        order: the execution order, as positions in the sequence.
        edges: maker of the control edges.

    Returns:
        How many edges were added; 0 if the order is that of the sequence, or cannot be made so.
    """
    return _settle(nodes, _swapped(nodes, order, edges), edges)


def _swapped(nodes: Sequence[ir.Node], order: Sequence[int], edges: ControlEdges) -> list[tuple[int, int]]:
    """Neighbours in the sequence, as positions in it, that an execution order has the other way round."""
    place = {position: step for step, position in enumerate(order)}
    # A view cannot be made to wait (see `gate`), not even where it is a copy, as an output of the file.
    real = [
        position
        for position, node in enumerate(nodes)
        if not is_control(node) and signal_of(node) is not None and edges.runtime.view(node) is None
    ]
    return [(first, second) for first, second in itertools.pairwise(real) if place[second] < place[first]]


def _settle(nodes: Sequence[ir.Node], pairs: Sequence[tuple[int, int]], edges: ControlEdges) -> int:
    """Let the second of each pair of positions wait for the first; how many edges that took."""
    signals = [(signal_of(nodes[first]), nodes[second]) for first, second in pairs]
    return sum(gate(second, first, edges) for first, second in signals if first is not None)
