"""Keeps onnxruntime from fusing in a planned file what it does not fuse without a plan.

Where a forward node runs again, the backward pass reads the later copy, so that the earlier one may have a single
reader left, as most fusions ask for. A fused kernel rounds otherwise than the nodes that it replaces, and makes none of
the values between them: so the last of them reads one of those through an alias that no optimiser sees through.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.keys import RECOMPUTE_OF
from ckplan.runtime.executing.unfused import PARTS
from ckplan.writer.control_edges import ControlEdges, is_control, read_instead

_MOVING = frozenset(
    {"Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that only move data: in whose place onnxruntime runs another of them, the values are the same."""

_QUANTISING = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Operators that onnxruntime moves past those that only move data, aliases among them: the values are the same."""

_WAVES = frozenset({"Erf", "Tanh"})
"""What the sum in a Gelu is made with."""

_BECOME_PART_OF_A_CONVOLUTION = frozenset({"Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})
"""What onnxruntime merges with a convolution before it (``core/optimizer/conv_activation_fusion.cc``)."""

_FOLDING = frozenset(
    {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum"}
    | {"ReduceSumSquare"}
)
"""Operators whose results depend on the order of what they add or multiply."""


def fence_alone(nodes: Sequence[ir.Node], edges: ControlEdges) -> None:
    """Hide the values whose only reader left onnxruntime would fuse with their maker, as plans commonly leave them.

    These are the sum of a Gelu, the Sigmoid of a SiLU, what an activation reads of a convolution, and what is quantised
    and runs again, which onnxruntime would compute in integers. Any other fusion shows in what onnxruntime makes of the
    file (`fence`), which costs a session more.

    Args:
        nodes: the nodes of the file.
        edges: maker of the aliases.
    """
    again = {node.metadata_props[RECOMPUTE_OF] for node in nodes if RECOMPUTE_OF in node.metadata_props}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            maker = None if value is None else value.producer()
            if value is None or maker is None or len(value.uses()) > 1 or value.is_graph_output():
                continue
            if node.op_type == "QuantizeLinear":
                # Of two copies one is read by what tells where numbers were cut off, the other by what quantises alone.
                is_fused = RECOMPUTE_OF in maker.metadata_props or maker.name in again
            else:
                is_fused = not {PARTS}.intersection((*node.meta, *maker.meta)) and _is_fused(node, maker)
            if is_fused:
                read_instead(node, value, _hidden(node, value, edges))


def _is_fused(node: ir.Node, maker: ir.Node) -> bool:
    """Whether onnxruntime fuses a node with the maker of what it reads, if nothing else reads that."""
    if maker.op_type == "Conv":
        return node.op_type in _BECOME_PART_OF_A_CONVOLUTION
    if node.op_type != "Mul":
        return False
    made_with = {producer.op_type for value in maker.inputs if value is not None and (producer := value.producer())}
    return maker.op_type == "Sigmoid" or (maker.op_type == "Add" and bool(_WAVES & made_with))


def fence(nodes: Sequence[ir.Node], executed: ir.Model, edges: ControlEdges) -> int:
    """Hide a value inside of each fusion that was not planned, or not planned so.

    Args:
        nodes: the nodes of the file.
        executed: what onnxruntime executes of it.
        edges: maker of the aliases.

    Returns:
        How many nodes were made to read an alias, a new one or one that another node reads already.
    """
    makers = {str(value.name): node for node in executed.graph for value in node.outputs if value.name}
    count = 0
    for node in nodes:
        made = makers.get(str(node.outputs[0].name)) if node.outputs else None
        if made is None or is_control(node):
            continue
        if PARTS in node.meta and _runs_otherwise(node, made):
            # What it reads was merged with a neighbour, or its addition became part of a convolution that it reads.
            for value in dict.fromkeys(node.inputs):
                if value is not None and _is_bare(value):
                    read_instead(node, value, edges.hide(value))
                    count += 1
            continue
        if _folds_otherwise(node, made):
            value = node.inputs[0]
            if value is not None and _is_bare(value):
                read_instead(node, value, edges.hide(value))
                count += 1
            continue
        if (made.domain, made.op_type) == (node.domain, node.op_type):
            continue
        if made.op_type == "Cast" or (made.op_type in _MOVING and node.op_type in {*_MOVING, *_QUANTISING}):
            continue
        inner = [v for v in node.inputs if v is not None and str(v.name) not in makers and _is_bare(v)]
        if inner:
            read_instead(node, inner[0], _hidden(node, inner[0], edges))
            count += 1
    return count


def _hidden(node: ir.Node, value: ir.Value, edges: ControlEdges) -> ir.Value:
    """An alias of a value for the node that reads it; one that is to be quantised has a second reader besides.

    What quantises an alias is moved before it by onnxruntime, and is then fused with what has no other reader.
    """
    return edges.alias(value, value) if node.op_type == "QuantizeLinear" else edges.hide(value)


def _is_bare(value: ir.Value) -> bool:
    """Whether a node makes a value and no alias hides it yet: a second one would show onnxruntime no less."""
    maker = value.producer()
    return maker is not None and not is_control(maker)


def _runs_otherwise(node: ir.Node, made: ir.Node) -> bool:
    """Whether a fused node is not what makes its output, by its operator, its attributes or its weight."""
    if (made.domain, made.op_type) != (node.domain, node.op_type):
        return True
    if node.op_type == "FusedConv" and _name(node, 1) != _name(made, 1):
        return True
    return any(key in made.attributes and made.attributes[key].value != a.value for key, a in node.attributes.items())


def _folds_otherwise(node: ir.Node, made: ir.Node) -> bool:
    """Whether a Transpose before a sum or product moved behind it, so that its numbers come in another order.

    The output is then made by that Transpose or, where the reduced axes are not kept, by the node of another input.
    """
    if node.op_type not in _FOLDING:
        return False
    return made.op_type == "Transpose" or (made.op_type == node.op_type and _name(node, 0) != _name(made, 0))


def _name(node: ir.Node, place: int) -> str | None:
    value = node.inputs[place]
    return None if value is None else value.name
