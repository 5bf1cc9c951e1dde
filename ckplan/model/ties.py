"""Weights that are in a file twice, once transposed: exporters fold the Transpose of a tied weight.

A language model reads its table of tokens and multiplies by its transpose. With the transpose computed beforehand, the
file holds two weights where the model has one; trained apart they would drift apart, each with a part of the gradient.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.model.literals import is_numbered
from ckplan.model.structure import are_equal, structure_of

_MATRIX = 2


def join_transposed(model: ir.Model) -> tuple[str, ...]:
    """Let readers of a transposed copy of a weight read the weight, through a Transpose, in place.

    A copy has a name that its exporter made up, the weight has one of its own, and they hold the same values. Those of
    large tensors are sampled.

    Returns:
        Notes.
    """
    graph = model.graph
    matrices = [value for value in graph.initializers.values() if _is_matrix(value)]
    by_shape: dict[tuple[ir.DataType | None, tuple[object, ...]], list[ir.Value]] = {}
    for value in matrices:
        if not is_numbered(value.name or "") and value.uses():
            by_shape.setdefault((value.dtype, tuple(value.shape or ())), []).append(value)
    joined = []
    for copy in matrices:
        if not is_numbered(copy.name or "") or not copy.uses() or copy.is_graph_output():
            continue
        for weight in by_shape.get((copy.dtype, tuple(reversed(copy.shape or ()))), ()):
            if _holds_transposed(copy, weight):
                joined.append(f"'{copy.name}' is '{weight.name}'")
                _join(graph, copy, weight)
                break
    if not joined:
        return ()
    listed = "; ".join(joined[:3]) + ("; ..." if len(joined) > 3 else "")
    return (f"{len(joined)} weight(s) that the file holds twice, once transposed, are one again: {listed}",)


def _is_matrix(value: ir.Value) -> bool:
    floating = value.dtype is not None and value.dtype.is_floating_point()
    return floating and value.shape is not None and len(value.shape) == _MATRIX and value.const_value is not None


def _holds_transposed(copy: ir.Value, weight: ir.Value) -> bool:
    one, other = copy.const_value, weight.const_value
    return one is not None and other is not None and are_equal(one, other, (1, 0)) and structure_of(one) is None


def _join(graph: ir.Graph, copy: ir.Value, weight: ir.Value) -> None:
    node = ir.node("Transpose", inputs=[weight], attributes={"perm": [1, 0]}, name=f"{copy.name}_transpose")
    name = copy.name
    result = node.outputs[0]
    result.type, result.shape = copy.type, copy.shape
    graph.insert_before(graph[0], node)
    copy.replace_all_uses_with(result)
    del graph.initializers[str(name)]
    result.name = name
