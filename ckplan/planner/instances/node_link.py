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

from ckplan.display import one_line
from ckplan.errors import ModelError
from ckplan.planner.instances.topological import depth_first_order
from ckplan.planner.problem import Op, Problem, Tensor

_SIZES = ("bytes", "size", "cost_ram", "memory", "mem", "weight")
_MARKS = {"true": True, "false": False, "1": True, "0": False, "": False}
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
    nodes, links = _objects(data, "nodes"), _objects(data, "links", "edges")
    names = [index if node.get("id") is None else node["id"] for index, node in enumerate(nodes)]
    before = _before(names, links)
    sizes = [_bytes(node, name, (size,) if size else _SIZES) for node, name in zip(nodes, names, strict=True)]
    costs = [_number(node, name, (cost,) if cost else _COSTS)[1] for node, name in zip(nodes, names, strict=True)]
    labels = [str(node.get("name", name)) for node, name in zip(nodes, names, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [f"{label}#{index}" for index, label in enumerate(labels)]
    backward = [_is_backward(node, name) for node, name in zip(nodes, names, strict=True)]
    if add_backward and any(backward):
        raise ModelError("the graph has a backward pass already", "take it as it is")
    order = depth_first_order(before, range(len(nodes)))
    if any(backward):
        # Forward first: a node marked as forward may not read a gradient, so this order is topological as well.
        order = [node for node in order if not backward[node]] + [node for node in order if backward[node]]
    tensors = [Tensor(label, held) for label, held in zip(labels, sizes, strict=True)]
    prices = [1.0 if price is None else price for price in costs]
    ops = [Op(labels[node], tuple(before[node]), (node,), prices[node], backward=backward[node]) for node in order]
    if add_backward:
        for node, reads in _gradient_reads(before, order):
            label = f"{labels[node]}/grad"
            ops.append(Op(label, reads, (len(tensors),), prices[node] * backward_cost, backward=True))
            tensors.append(Tensor(label, sizes[node]))
    try:
        return Problem(tuple(ops), tuple(tensors))
    except ValueError as error:
        raise ModelError(f"not a training graph: {error}") from error


def _wrong(what: str, hint: str = "") -> ModelError:
    """What to say of data that are no such graph."""
    return ModelError(f"not a node-link graph: {what}", hint)


def _objects(data: Mapping[str, Any], *keys: str) -> Sequence[Mapping[str, Any]]:
    """What stands under the first of the keys that there is: a list of objects."""
    key = next((key for key in keys if key in data), None)
    if key is None:
        raise _wrong(f"it lacks '{keys[0]}'")
    found = data[key]
    if not isinstance(found, list):
        raise _wrong(f"'{key}' is no list")
    for index, one in enumerate(found):
        if not isinstance(one, dict):
            raise _wrong(f"number {index} of '{key}' is no object")
    return found


def _before(names: Sequence[Any], links: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """For each node those that it reads, each once, in the order of the links."""
    position: dict[Any, int] = {}
    for index, name in enumerate(names):
        if isinstance(name, list | dict):
            raise _wrong(f"the id of node number {index} is neither a text nor a number")
        if position.setdefault(name, index) != index:
            raise _wrong(f"two nodes have the same id, {name!r}")
    before: list[dict[int, None]] = [{} for _ in names]
    for index, link in enumerate(links):
        ends = []
        for end in ("source", "target"):
            name = link.get(end)
            if isinstance(name, list | dict) or name not in position:
                lacking = f"lacks '{end}'" if end not in link else f"has the {end} {name!r}, which is no node"
                raise _wrong(f"link number {index} {lacking}")
            ends.append(position[name])
        source, target = ends
        if source == target:
            raise ModelError(
                f"the graph has a cycle: node {names[source]!r} reads what it makes", "leave that link out"
            )
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


def _number(node: Mapping[str, Any], called: Any, names: tuple[str, ...]) -> tuple[str, float | None]:
    """The first of these attributes that a node has, and its number; None if it has none."""
    for name in names:
        value = node.get(name)
        if value is not None:
            try:
                return name, float(value)
            except (TypeError, ValueError, OverflowError):
                raise _wrong(
                    f"node {called!r} has the {name} {one_line(repr(value), 50)}, which is no number"
                ) from None
    return names[0], None


def _bytes(node: Mapping[str, Any], called: Any, names: tuple[str, ...]) -> int:
    """The bytes of a node; numbers in another unit would be cut to whole ones."""
    name, number = _number(node, called, names)
    if number is None:
        raise _wrong(f"node {called!r} has none of the attributes {', '.join(names)}")
    if not number.is_integer():
        hint = "give bytes, or multiply all sizes by the same number"
        raise _wrong(f"node {called!r} has the {name} {number:g}, and bytes are a whole number", hint)
    return int(number)


def _is_backward(node: Mapping[str, Any], called: Any) -> bool:
    """Whether a node is marked as one of a backward pass; in a text, as tables are exported, by its word."""
    mark = node.get("backward", False)
    said = _MARKS.get(mark.lower()) if isinstance(mark, str) else mark
    if said not in (None, False, True) or (said is None and mark is not None):
        raise _wrong(f"node {called!r} has the mark backward {one_line(repr(mark), 50)}", "give true or false")
    return bool(said)
