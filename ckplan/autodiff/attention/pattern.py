"""Attentions of a forward graph: two products, and what stands between them, ``softmax(q kᵀ · scale + mask) v``."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.paths import depends
from ckplan.autodiff.reading import attr_int, required_input, shape_of
from ckplan.operators.table import ELEMENTWISE

_DROPOUTS = frozenset({"Dropout", "TrainingDropout"})


@dataclass(frozen=True)
class Attention:
    """The nodes of an attention.

    Attributes:
        nodes: from the product that makes the scores to the one with the values, in the order of the graph.
        scores: the first of them.
        result: the last of them.
        softmax: the one in between that gives its name.
        outside: what the nodes between the products read from outside.
    """

    nodes: tuple[ir.Node, ...]
    scores: ir.Node
    result: ir.Node
    softmax: ir.Node
    outside: tuple[ir.Value, ...]

    @property
    def name(self) -> str:
        """What to call it by."""
        return str(self.softmax.name)

    @property
    def readers(self) -> tuple[tuple[ir.Node, int], ...]:
        """Who reads queries, keys and values, and as which input."""
        return (self.scores, 0), (self.scores, 1), (self.result, 1)

    @property
    def operands(self) -> tuple[ir.Value, ...]:
        """Queries, keys and values, as the two products read them."""
        return tuple(required_input(node, place) for node, place in self.readers)

    @property
    def by_rows(self) -> list[ir.Value]:
        """What has a row for each query, of what is read from outside."""
        rows = shape_of(self.softmax.outputs[0])[-2:-1]
        return [value for value in self.outside if shape_of(value)[-2:-1] == rows]


def attention_of(result: ir.Node, wanted: Container[ir.Value]) -> Attention | str:
    """The attention that a product is the end of; else why it is none that can be cut, if that is worth a note."""
    weights, values = required_input(result, 0), required_input(result, 1)
    shape = shape_of(weights)
    if len(shape) < 3 or len(shape_of(values)) < 2 or shape[-2] < 2:
        return ""
    members, outside = _between(weights, shape)
    products = [node for node in members if node.op_type == "MatMul"]
    softmaxes = [node for node in members if node.op_type == "Softmax"]
    if len(softmaxes) == 1 and any(_is_dropout(value.producer()) for value in (weights, *outside)):
        return f"the attention of '{softmaxes[0].name}' stays whole: a Dropout in it draws one mask for all queries"
    if len(products) != 1 or len(softmaxes) != 1 or len(shape_of(required_input(products[0], 0))) != len(shape):
        return _dropped_out(weights)
    inside, made = {result, *members}, [value for node in members for value in node.outputs]
    if any(value.is_graph_output() or value in wanted for value in made):
        return ""
    if any(use.node not in inside for value in made for use in value.uses()):
        return ""
    graph = result.graph
    assert graph is not None
    ordered = tuple(node for node in graph if node in inside)
    attention = Attention(ordered, products[0], result, softmaxes[0], tuple(outside))
    if any(depends(value, wanted) for value in attention.by_rows):
        return f"the attention of '{attention.name}' stays whole: what is added to its scores is trained"
    return attention


def _dropped_out(weights: ir.Value) -> str:
    """The note on an attention whose softmax goes through a Dropout before it meets the values."""
    node = weights.producer()
    if not _is_dropout(node) or node is None:
        return ""
    softmax = required_input(node, 0).producer()
    if softmax is None or softmax.op_type != "Softmax":
        return ""
    return f"the attention of '{softmax.name}' stays whole: a Dropout in it draws one mask for all queries"


def _is_dropout(node: ir.Node | None) -> bool:
    return node is not None and node.op_type in _DROPOUTS


def _between(weights: ir.Value, shape: tuple[int, ...]) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes on the way from the product that makes the scores, and what those behind it read from outside."""
    known: dict[ir.Value, bool] = {}

    def comes_from_scores(value: ir.Value) -> bool:
        if value not in known:
            node = value.producer()
            known[value] = False
            if node is not None and not node.domain and shape_of(value) == shape:
                along_keys = node.op_type == "Softmax" and attr_int(node, "axis", -1) % len(shape) == len(shape) - 1
                may_stand = along_keys or node.op_type in ELEMENTWISE
                read = [comes_from_scores(v) for v in node.inputs if v is not None] if may_stand else []
                known[value] = node.op_type == "MatMul" or any(read)
        return known[value]

    comes_from_scores(weights)
    members: list[ir.Node] = []
    outside: list[ir.Value] = []
    for value, inside in known.items():
        node = value.producer()
        if not inside or node is None:
            continue
        members.append(node)
        if node.op_type != "MatMul":
            outside += [v for v in node.inputs if v is not None and not known.get(v, False) and v not in outside]
    return members, outside
