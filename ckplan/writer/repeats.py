"""From a schedule to a node sequence: each repeat becomes a clone that reads the latest copies.

Where addresses count, the sequence is put into the very order in which a file was seen to run.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.keys import RECOMPUTE_OF, ROLE
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_copies import copy_attribute
from ckplan.model.node_reads import captured
from ckplan.runtime.executing.execution_order import by_rank, predecessors
from ckplan.runtime.executing.unfused import PARTS
from ckplan.runtime.problem_of import FIGURES


def with_repeats(nodes: Sequence[ir.Node], schedule: Sequence[int]) -> list[ir.Node]:
    """The nodes of a graph in the order of a schedule, later occurrences as clones.

    The first occurrence is the node itself; its inputs are redirected to the latest copies. Clones are named
    ``<node>/recompute<k>`` and so are their outputs.

    Args:
        nodes: the graph's nodes; schedule entries are positions in this list.
        schedule: op ids in execution order.
    """
    latest: dict[ir.Value, ir.Value] = {}
    times = [0] * len(nodes)
    sequence: list[ir.Node] = []
    for position in schedule:
        original = nodes[position]
        inputs = [None if value is None else latest.get(value, value) for value in original.inputs]
        if times[position] == 0:
            for index, value in enumerate(inputs):
                original.replace_input_with(index, value)
            _redirect_captured(original, latest)
            sequence.append(original)
        else:
            clone = _clone(original, inputs, f"/recompute{times[position]}", latest)
            latest.update(zip(original.outputs, clone.outputs, strict=True))
            sequence.append(clone)
        times[position] += 1
    return sequence


def _clone(node: ir.Node, inputs: Sequence[ir.Value | None], suffix: str, latest: dict[ir.Value, ir.Value]) -> ir.Node:
    outputs = [
        ir.Value(name=f"{value.name}{suffix}" if value.name else "", shape=value.shape, type=value.type)
        for value in node.outputs
    ]
    attributes = list(node.attributes.values())
    if graphs_in(node):  # else the attributes are shared: to copy what has been made so far takes longer than a clone
        attributes = [copy_attribute(one, dict(latest), lambda name: f"{name}{suffix}", {}) for one in attributes]
    clone = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        attributes,
        overload=node.overload,
        outputs=outputs,
        version=node.version,
        name=f"{node.name}{suffix}",
        metadata_props={**node.metadata_props, ROLE: "recompute", RECOMPUTE_OF: node.name or ""},
    )
    if PARTS in node.meta:
        clone.meta.update({key: node.meta[key] for key in (PARTS, FIGURES)})
    return clone


def _redirect_captured(node: ir.Node, latest: dict[ir.Value, ir.Value]) -> None:
    stale = {value for value in captured(node) if value in latest}
    if not stale:
        return
    for graph in graphs_in(node):
        for member in graph:
            for index, value in enumerate(member.inputs):
                if value in stale:
                    member.replace_input_with(index, latest[value])
            _redirect_captured(member, latest)


def in_order(nodes: Sequence[ir.Node], order: Sequence[str]) -> list[ir.Node]:
    """A sequence in the order in which tensors are to be made.

    Args:
        nodes: the nodes, each behind those that it reads from.
        order: names of tensors; a node none of whose tensors is named comes right before the first that reads it.
    """
    named = {name: place for place, name in enumerate(order)}
    makers = predecessors(nodes)
    rank = [len(order)] * len(nodes)
    for place in reversed(range(len(nodes))):
        if own := [named[value.name] for value in nodes[place].outputs if value.name in named]:
            rank[place] = min(own)
        for maker in makers[place]:
            rank[maker] = min(rank[maker], rank[place])
    return [nodes[place] for place in by_rank(makers, rank)]
