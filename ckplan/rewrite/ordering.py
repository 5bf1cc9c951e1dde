"""Makes onnxruntime run a file in the order in which it is written, where another order would cost memory.

PRIORITY_BASED runs the file as it stands. DEFAULT does not (see `execution_order`); wherever the order that the model
of it predicts costs memory, pairs of neighbours that it would run the wrong way round get a control edge, and only
those whose swap spans the moment of the peak. Every edge settles its pair for good, so this ends; usually after a few
rounds and with edges on a fraction of the pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import onnx_ir as ir

from ckplan.plan.problem import Problem
from ckplan.plan.simulate import simulate
from ckplan.rewrite.control_edges import ROLE, ControlEdges
from ckplan.rewrite.execution_order import default_order, predecessors
from ckplan.rewrite.problem_of import problem_of_nodes
from ckplan.rewrite.repeats import RECOMPUTE_OF

TOLERANCE = 0.002
"""Share of the peak that an order may cost before control edges are added against it."""


def is_control(node: ir.Node) -> bool:
    """Whether a node is part of a control edge."""
    return node.metadata_props.get(ROLE) == "control"


def gate(nodes: list[ir.Node], node: ir.Node, after: ir.Node, edges: ControlEdges) -> bool:
    """Let ``node`` wait for ``after``: one of its inputs is read through an alias.

    Args:
        nodes: the sequence, in which the nodes of the edge are inserted right before ``node``.
        node: the node that is to wait.
        after: an earlier node.
        edges: maker of the control edges.

    Returns:
        Whether an edge could be made: not if ``node`` reads no tensor of static shape, or ``after`` makes none.
    """
    signal = next((value for value in after.outputs if value.name and isinstance(value.type, ir.TensorType)), None)
    if signal is None:
        return False

    def rank(entry: tuple[int, ir.Value]) -> tuple[bool, int]:
        return entry[1].producer() is None, entry[0]

    candidates = [
        (index, value)
        for index, value in enumerate(node.inputs)
        if value is not None and value.shape is not None and value.dtype is not None and value.dtype.is_floating_point()
    ]
    if not candidates:
        return False
    index, tensor = min(candidates, key=rank)
    alias, new = edges.alias(tensor, signal)
    place = nodes.index(node)
    nodes[place:place] = new
    for other, value in enumerate(node.inputs):
        if value is tensor or other == index:
            node.replace_input_with(other, alias)
    return True


def keep_repeats_apart(nodes: list[ir.Node], edges: ControlEdges) -> None:
    """Gate every repeat that reads just what its original, or another repeat, reads: else they would be merged."""
    seen: set[tuple[str, tuple[ir.Value | None, ...]]] = set()
    before: ir.Node | None = None
    for node in list(nodes):
        identity = node.metadata_props.get(RECOMPUTE_OF, node.name or "")
        if (identity, tuple(node.inputs)) in seen and before is not None:
            gate(nodes, node, before, edges)
        seen.add((identity, tuple(node.inputs)))
        before = node


def settle_order(
    nodes: list[ir.Node], inputs: Collection[ir.Value], outputs: Collection[ir.Value], edges: ControlEdges
) -> None:
    """Add control edges until DEFAULT costs no more memory than the order of the sequence.

    Args:
        nodes: the sequence in planned order; control edges are inserted.
        inputs: graph inputs.
        outputs: graph outputs.
        edges: maker of the control edges.
    """
    while True:
        problem = problem_of_nodes(nodes, inputs, outputs)
        order = default_order(predecessors(nodes))
        if not repair(nodes, problem, order, edges):
            return


def repair(nodes: list[ir.Node], problem: Problem, order: Sequence[int], edges: ControlEdges) -> int:
    """Add control edges against one execution order if that order costs memory.

    Args:
        nodes: the sequence in planned order; control edges are inserted.
        problem: the problem of the sequence.
        order: the execution order, as positions in the sequence.
        edges: maker of the control edges.

    Returns:
        How many edges were added; 0 if the order is good enough.
    """
    planned = simulate(problem, range(len(nodes))).peak_activations
    actual = simulate(problem, order)
    if actual.peak_activations <= planned * (1 + TOLERANCE):
        return 0
    place = [0] * len(nodes)
    for step, position in enumerate(order):
        place[position] = step
    real = [position for position, node in enumerate(nodes) if not is_control(node)]
    swapped = [(first, second) for first, second in itertools.pairwise(real) if place[second] < place[first]]
    spanning = [pair for pair in swapped if place[pair[1]] <= actual.peak_step <= place[pair[0]]]
    pairs = [(nodes[first], nodes[second]) for first, second in spanning or swapped]
    return sum(gate(nodes, second, first, edges) for first, second in pairs)
