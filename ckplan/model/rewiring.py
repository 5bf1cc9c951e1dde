"""What a node makes is made by another one from now on, under the same name."""

from __future__ import annotations

import onnx_ir as ir


def output_copy(output: ir.Value, source: ir.Value) -> ir.Node:
    """Let a copy of a value be an output of its graph in the place of another, and the value itself what nodes read.

    Args:
        output: among the outputs of its graph.
        source: what is the same; has another name.

    Returns:
        The node that copies, in no graph yet.
    """
    name = output.name
    copy = ir.node("Identity", inputs=[source])
    copied = copy.outputs[0]
    copied.type, copied.shape = output.type, output.shape
    for use in list(output.uses()):
        use.node.replace_input_with(use.idx, source)
    ir.convenience.replace_all_uses_with(output, copied, replace_graph_outputs=True)
    output.name, copied.name = None, name
    return copy


def put_in_place(node: ir.Node, result: ir.Value) -> None:
    """Let a value of the same graph be what a node makes, under its name; the node goes.

    Args:
        node: with one output.
        result: made by nodes before it.
    """
    output, graph = node.outputs[0], node.graph
    assert graph is not None
    name = output.name
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    result.name = name


def put_behind(node: ir.Node, behind: ir.Node, title: str, index: int = 0) -> None:
    """Let what one more node makes of a node's result be read in its place, under its name.

    Args:
        node: with one output, which is called by its name and ``title`` from now on.
        behind: in no graph; reads that output.
        title: what the output is.
        index: which of its inputs the output is.
    """
    output, made, graph = node.outputs[0], behind.outputs[0], node.graph
    assert graph is not None
    name = output.name
    ir.convenience.replace_all_uses_with(output, made, replace_graph_outputs=True)
    behind.replace_input_with(index, output)
    output.name, made.name = f"{name}/{title}", name
    graph.insert_after(node, behind)
