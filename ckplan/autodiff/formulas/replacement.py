"""What formulas that become one node again have in common: what is inside of one, and taking its place."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import onnx_ir as ir

from ckplan.autodiff.composites import become
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import shape_of
from ckplan.model.node_reads import fixed_integers
from ckplan.model.torch_files.detached import detached_inputs

TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Element types in which the CPU's kernels of Softmax, LogSoftmax and LayerNormalization compute."""


def reduced_axis(reduction: ir.Node) -> int | None:
    """The axis that a reduction goes along, if it is a single one that the file fixes."""
    source, axes = reduction.inputs[0], fixed_integers(reduction, 1)
    if source is None or axes is None or len(axes) != 1:
        return None
    return axes[0] % len(shape_of(source))


def nodes_inside(ends: Container[ir.Value | None], last: ir.Node) -> set[ir.Node]:
    """The nodes on the ways from some values to a node, with it; beyond these only what is fixed is read."""
    found: set[ir.Node] = set()
    pending = [last]
    while pending:
        node = pending.pop()
        found.add(node)
        makers = (None if value is None or value in ends else value.producer() for value in node.inputs)
        pending += [maker for maker in makers if maker is not None and maker not in found]
    return found


def is_private(nodes: set[ir.Node], last: ir.Node, held: Container[ir.Value]) -> bool:
    """Whether nobody else reads or knows what nodes make, the last of them left out, and gradients pass all of them.

    Args:
        nodes: those inside of a formula.
        last: the node that makes its result.
        held: values that gradients are asked for, or that are differentiated.
    """
    inner = (value for node in nodes if node is not last for value in node.outputs)
    return not any(detached_inputs(node) for node in nodes) and all(
        value not in held and not value.is_graph_output() and all(use.node in nodes for use in value.uses())
        for value in inner
    )


def replace_formula(
    graph: ir.Graph,
    nodes: set[ir.Node],
    last: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value],
    attributes: Iterable[ir.Attr],
) -> None:
    """Make one node of several.

    Args:
        graph: that holds them.
        nodes: those inside of a formula; they go.
        last: the node that makes its result, and becomes the operator.
        op_type: an operator of ONNX's own domain.
        inputs: what it reads.
        attributes: of it.
    """
    become(last, ("", op_type, ""), inputs, attributes)
    discard(graph, reversed([node for node in graph if node in nodes and node is not last]))
