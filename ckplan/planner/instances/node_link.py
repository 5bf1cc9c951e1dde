"""DAGs as node-link JSON (networkx's ``node_link_data``), with a size and a cost for each node.

Checkmate's (Jain et al., MLSys 2020) and Moccasin's (Bartan et al., ICML 2023) published graphs have this form:
``nodes`` with ``id``, ``cost_ram`` (bytes of what the node makes), ``cost_cpu``, ``backward`` and a ``name``; ``links``
from the node that makes a value to one that reads it; links to nodes without an ``id`` are by position. Each node
becomes an op with one output.

- Nodes that are marked ``backward`` make the graph a training graph, which is taken as it is.
- A graph without such marks is a training graph made elsewhere, or no training graph: it is taken as it is (every op
  may be recomputed, none belongs to a backward pass), or gets a backward pass when asked for one.
- The backward pass that is made follows Checkmate's extracted graphs: for each node one that makes the gradient of its
  output, of the same size. It reads, for each reader of that output, what the reader read, what it made, and its
  gradient; the gradient of a node that nobody reads needs that node's output only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ckplan.display import reason_of
from ckplan.errors import ModelError
from ckplan.planner.instances.topological import depth_first_order
from ckplan.planner.problem import Op, Problem, Tensor

_SIZES = ("bytes", "size", "cost_ram", "memory", "mem", "weight")
_COSTS = ("cost", "cost_cpu", "time", "duration", "runtime")


def parse_node_link(
    data: Mapping[str, Any], *, add_backward: bool = False, backward_cost: float = 1.0, size: str = "", cost: str = ""
) -> Problem:
    """Make a problem of a node-link graph.

    Args:
        data: the JSON object, with ``nodes`` and ``links`` (or ``edges``).
        add_backward: make a backward pass for a graph that has none.
        backward_cost: cost of the op that makes a gradient, in units of the cost of the op whose output it is of.
        size: node attribute that holds the bytes; by default the first of the usual names that a node has.
        cost: node attribute that holds the cost, likewise; 1 for nodes without one.

    Raises:
        ModelError: not such a graph, a node without a size, a link to an unknown node, a cycle, or ``add_backward``
            for a graph that has a backward pass.
    """
    try:
        nodes, links = list(data["nodes"]), list(data.get("links", data.get("edges")) or ())
        names = [node.get("id", index) for index, node in enumerate(nodes)]
        before = _before(names, links)
        sizes = [_attribute(node, (size,) if size else _SIZES) for node in nodes]
        costs = [_attribute(node, (cost,) if cost else _COSTS, 1.0) for node in nodes]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"not a node-link graph: {reason_of(error)}") from error
    if len(set(names)) < len(nodes):
        raise ModelError("not a node-link graph: two nodes have the same id")
    labels = [str(node.get("name", name)) for node, name in zip(nodes, names, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [f"{label}#{index}" for index, label in enumerate(labels)]
    backward = [bool(node.get("backward", False)) for node in nodes]
    if add_backward and any(backward):
        raise ModelError("the graph has a backward pass already", "take it as it is")
    order = depth_first_order(before, range(len(nodes)))
    if any(backward):
        # Forward first: a node marked as forward may not read a gradient, so this order is topological as well.
        order = [node for node in order if not backward[node]] + [node for node in order if backward[node]]
    tensors = [Tensor(label, int(held)) for label, held in zip(labels, sizes, strict=True)]
    ops = [Op(labels[node], tuple(before[node]), (node,), costs[node], backward=backward[node]) for node in order]
    if add_backward:
        for node, reads in _gradient_reads(before, order):
            label = f"{labels[node]}/grad"
            ops.append(Op(label, reads, (len(tensors),), costs[node] * backward_cost, backward=True))
            tensors.append(Tensor(label, int(sizes[node])))
    try:
        return Problem(tuple(ops), tuple(tensors))
    except ValueError as error:
        raise ModelError(f"not a training graph: {error}") from error


def _before(names: Sequence[Any], links: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """For each node those that it reads, each once, in the order of the links."""
    position = {name: index for index, name in enumerate(names)}
    before: list[dict[int, None]] = [{} for _ in names]
    for link in links:
        source, target = position[link["source"]], position[link["target"]]
        before[target][source] = None
    return [list(sources) for sources in before]


def _gradient_reads(before: Sequence[Sequence[int]], order: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each node, the last first, and what the gradient of its output reads; gradients are numbered behind the nodes."""
    readers: list[list[int]] = [[] for _ in before]
    for node in order:
        for source in before[node]:
            readers[source].append(node)
    gradient = {node: len(before) + index for index, node in enumerate(reversed(order))}
    for node in reversed(order):
        reads = dict.fromkeys([node])
        for reader in readers[node]:
            reads.update(dict.fromkeys([*before[reader], reader, gradient[reader]]))
        yield node, tuple(reads)


def _attribute(node: Mapping[str, Any], names: tuple[str, ...], default: float | None = None) -> float:
    for name in names:
        if node.get(name) is not None:
            return float(node[name])
    if default is None:
        raise ValueError(f"node {node.get('id', node.get('name'))!r} has none of the attributes {', '.join(names)}")
    return default
