"""Take back the outputs that a gradient asked a nested control-flow node for and that nobody reads after all.

Where the body around it is recomputed in the backward pass, only the repeated copy needs them.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import attr_ints
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import needed_nodes


def extra_outputs(graph: ir.Graph) -> dict[ir.Node, int]:
    """Return how many outputs each control-flow node of a graph has, before gradients add some."""
    return {node: len(node.outputs) for node in graph if graphs_in(node)}


def trim(before: dict[ir.Node, int]) -> None:
    """Remove unread outputs that nodes have got since; see :func:`extra_outputs`."""
    for node, count in before.items():
        kept = list(range(count))
        kept += [i for i in range(count, len(node.outputs)) if _is_read(node.outputs[i])]
        if len(kept) < len(node.outputs):
            _keep(node, kept)


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _keep(node: ir.Node, kept: list[int]) -> None:
    surplus = len(node.outputs) - len(kept)
    for place, index in enumerate(kept):
        old, new = node.outputs[index], node.outputs[place]
        if place != index:
            old.name, new.name = new.name, old.name
            new.type, new.shape = old.type, old.shape
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    for body in graphs_in(node):
        before = len(body.outputs) - len(node.outputs)  # the condition of a Loop
        rows = list(body.outputs)
        body.outputs.clear()
        body.outputs.extend([*rows[:before], *(rows[before + index] for index in kept)])
        needed = needed_nodes(body, body.outputs)
        discard(body, [inner for inner in reversed(list(body)) if inner not in needed])
    node.resize_outputs(len(kept))
    for name in ("scan_output_axes", "scan_output_directions"):
        numbers = attr_ints(node, name)
        if numbers is not None:
            # Every output that was added stands at the end and runs along its first axis, forward.
            node.attributes[name] = ir.AttrInt64s(name, numbers[: len(numbers) - surplus])
