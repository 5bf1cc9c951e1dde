"""In which order nodes stand in a file without a plan: that alone decides what onnxruntime holds while it runs it.

Its order by default begins with the leaf that stands last, and of the nodes that a node reads from it finishes the one
that stands last first (see `ckplan.runtime.execution_order`). A training graph written in the order in which it is made
ends with the gradient of its first layer: that one runs first, with the whole chain of gradients before it, and all
other weight gradients wait for it, with every activation that they read. Written backwards, as far as what nodes read
allows it, the same nodes run as they were made, and each weight gradient as soon as it can.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from ckplan.planner.simulate import simulate
from ckplan.runtime.execution_order import default_order, order_of_file, predecessors
from ckplan.runtime.problem_of import problem_of
from ckplan.runtime.sizes import shape_classes


def in_best_order(model: ir.Model) -> ir.Model:
    """A model whose nodes stand so that onnxruntime, by default, needs little memory for them.

    Args:
        model: the graph; is copied if its nodes are to stand otherwise.

    Returns:
        The model in the one of a few orders whose simulated peak of activations is lowest.
    """
    nodes = list(model.graph)
    before = predecessors(nodes)
    return _best(model, {order: order_of_file(before, order) for order in map(tuple, file_orders(before))})


def in_natural_order(model: ir.Model) -> ir.Model:
    """A model whose nodes stand as they would be planned: as in its file, or as onnxruntime runs that by default.

    Args:
        model: a graph as it came; is copied if its nodes are to stand otherwise.
    """
    order = tuple(default_order(predecessors(list(model.graph))))
    return _best(model, {found: found for found in (tuple(range(len(order))), order)})


def _best(model: ir.Model, runs: dict[tuple[int, ...], Sequence[int]]) -> ir.Model:
    """The model in the file order that takes least, by the order in which it runs; in the first of equals."""
    problem = problem_of(model)
    shapes = shape_classes(model.graph, problem)
    best = min(runs, key=lambda order: simulate(problem, runs[order], shapes).peak_activations)
    if best == tuple(range(len(best))):
        return model
    model = model.clone()
    nodes = list(model.graph)
    model.graph.remove(nodes)
    model.graph.extend(nodes[position] for position in best)
    return model


def file_orders(before: Sequence[Sequence[int]]) -> Iterable[list[int]]:
    """Orders in which the nodes of a graph may stand in its file, the one that was least most often first.

    Args:
        before: for each node the nodes it reads from; it stands behind them.
    """
    count = len(before)
    after: list[list[int]] = [[] for _ in before]
    for position, makers in enumerate(before):
        for maker in makers:
            after[maker].append(position)
    is_leaf = [not readers for readers in after]
    inner = [position for position in _topological(after, before, first=False) if not is_leaf[position]]
    yield [*inner, *(position for position in reversed(range(count)) if is_leaf[position])]
    yield _topological(before, after, first=True)[::-1]
    yield list(range(count))


def _topological(after: Sequence[Sequence[int]], before: Sequence[Sequence[int]], *, first: bool) -> list[int]:
    """A topological order: of the nodes that may come next always the first or the last one of the file.

    Args:
        after: for each node the nodes that come behind it.
        before: the same relation from its other end.
        first: which one.
    """
    sign = 1 if first else -1
    waiting = [len(others) for others in before]
    ready = [sign * position for position, left in enumerate(waiting) if not left]
    heapq.heapify(ready)
    order = []
    while ready:
        position = sign * heapq.heappop(ready)
        order.append(position)
        for other in after[position]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, sign * other)
    return order
