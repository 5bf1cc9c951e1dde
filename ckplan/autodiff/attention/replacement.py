"""What takes the place of an attention, whatever its pieces are: a Scan that keeps nothing of a piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from ckplan.autodiff.attention.pattern import Attention
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, copy_nodes, emit_scan, new_value
from ckplan.autodiff.control_flow.policy import keep_patterns
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import shape_of
from ckplan.keys import PHASE, PIECES

Shape = tuple[int, ...]


def fill_body(
    inner: BodyBuilder,
    attention: Attention,
    operands: Sequence[ir.Value],
    parts: dict[ir.Value, ir.Value],
    shape_of_part: Callable[[Shape], Shape],
) -> None:
    """Copy an attention into the body of its Scan, where it makes a piece of the result.

    Args:
        inner: builder of the body.
        attention: the attention.
        operands: what its products read there instead of queries, keys and values. These may be one tensor, so that
            they are told apart by who reads them.
        parts: what its other nodes read there instead of values from outside; what the copies make is added.
        shape_of_part: from the shape of what a node makes of all pieces to that of one.
    """
    copies = dict(zip(attention.nodes, copy_nodes(inner, attention.nodes, parts, "forward"), strict=True))
    for (reader, place), operand in zip(attention.readers, operands, strict=True):
        copies[reader].replace_input_with(place, operand)
    for node, copy in copies.items():
        for output, made in zip(node.outputs, copy.outputs, strict=True):
            made.shape = ir.Shape(shape_of_part(shape_of(output)))
    inner.graph.extend(copies.values())
    inner.graph.outputs.append(parts[attention.result.outputs[0]])
    close_body(inner)


def emit_pieces(
    op: Builder, attention: Attention, inputs: Sequence[ir.Value], body: ir.Graph, shape: Shape
) -> ir.Value:
    """Emit a Scan over pieces; return their results.

    Args:
        op: builder of the forward graph.
        attention: the attention.
        inputs: what the Scan goes over, for each input of its body.
        body: what makes a piece.
        shape: that of the results, the number of pieces ahead.
    """
    name = attention.name
    output = new_value(op, f"{name}/pieces", attention.result.outputs[0].dtype, shape)
    about = {PHASE: "forward", PIECES: str(shape[0])}
    keep_patterns(emit_scan(op, f"{name}/Scan", body, [], inputs, [output], about), [])
    return output


def replace(op: Builder, attention: Attention, new: ir.Value) -> ir.Value:
    """Put what pieces have made in the place of an attention's result; return it."""
    old = attention.result.outputs[0]
    new.name, old.name = old.name, None
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    discard(op.graph, list(reversed(attention.nodes)))
    return new
