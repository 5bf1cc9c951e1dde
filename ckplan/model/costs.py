"""What a node costs: arithmetic and memory traffic, from its shapes alone.

The planner weighs recomputing one node against another, so it is the ratios that matter: convolutions and matrix
products against elementwise work. The two rates are those of two cores of a current server CPU in onnxruntime
1.31 (measured: dense convolutions and products of float32 ran at 150 to 215 Gflop/s, elementwise operators on tensors
beyond the caches at 26 to 35 GB/s).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from ckplan.keys import PIECES
from ckplan.model.bodies import bodies_of, trips_of
from ckplan.operators.costs import FREE, Cost, elementwise
from ckplan.operators.table import operator_of

FLOPS_PER_SECOND = 150e9
BYTES_PER_SECOND = 30e9

BLOCKED = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
"""Domains of onnxruntime's operators in another layout, whose shapes the formulas do not fit."""


def seconds(cost: Cost) -> float:
    """Time by the roofline: as long as the arithmetic or the memory traffic takes, whichever is more."""
    return max(cost.flops / FLOPS_PER_SECOND, cost.bytes / BYTES_PER_SECOND)


def node_cost(node: ir.Node) -> Cost:
    """Price a node whose inputs and outputs have static shapes (an unknown dimension counts as 1).

    A node with nested graphs costs its dearest branch, or its body times the trip count, the largest one if that
    depends on data.
    An operator whose record says nothing counts as elementwise: one operation an output element, all operands read
    and all outputs written.
    """
    rule = operator_of(node).cost if node.domain not in BLOCKED else None
    if rule is not None:
        return rule(node)
    if PIECES in node.metadata_props:
        return _cost_in_pieces(node)
    bodies = [sum((node_cost(inner) for inner in body), FREE) for body in bodies_of(node)]
    if bodies:
        trips = trips_of(node) if node.op_type in ("Loop", "Scan") else 1
        dearest = max(bodies, key=seconds)
        return Cost(dearest.flops * trips, dearest.bytes * trips)
    return elementwise(node)


def seconds_of_bodies(node: ir.Node, price: Callable[[ir.Node], float]) -> float:
    """What a node with nested graphs takes: its dearest branch, or its body as often as that runs.

    Args:
        node: If, Loop or Scan, or a region in pieces.
        price: seconds of a node inside.
    """
    if PIECES in node.metadata_props:
        return sum(number * sum(map(price, members)) for members, number in _runs(node))
    trips = trips_of(node) if node.op_type in ("Loop", "Scan") else 1
    return trips * max((sum(map(price, body)) for body in bodies_of(node)), default=0.0)


def _runs(node: ir.Node) -> Iterator[tuple[list[ir.Node], int]]:
    """The nodes in the body of a region that runs in pieces, and how often each of them runs.

    An If in the body makes a piece in its first branch, and in its second one what there is between two pieces.
    """
    pieces, trips = int(node.metadata_props[PIECES]), trips_of(node)
    for inner in (inner for body in bodies_of(node) for inner in body):
        times = {"then_branch": pieces, "else_branch": trips - pieces}
        branches = {name: graph for name in times if (graph := inner.attributes.get_graph(name)) is not None}
        yield from [(list(graph), times[name]) for name, graph in branches.items()] or [([inner], trips)]


def _cost_in_pieces(node: ir.Node) -> Cost:
    """Price a region that runs in pieces node by node, as the region whole is priced that it is weighed against.

    Tensors of a piece are small enough for a cache, which halves what their traffic takes.
    """
    flops, taken = 0, 0.0
    for members, number in _runs(node):
        priced = [node_cost(member) for member in members]
        flops += number * sum(one.flops for one in priced)
        taken += number * sum(seconds(Cost(one.flops, one.bytes // 2)) for one in priced)
    return Cost(flops, round(taken * BYTES_PER_SECOND))
