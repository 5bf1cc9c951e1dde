"""Operators that neither ONNX nor onnxruntime defines: the shapes of their outputs are what the file declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from ckplan.model.contrib import MICROSOFT
from ckplan.model.inference.infer import is_known
from ckplan.model.sizes.expressions import evaluate

_DEFINED_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", MICROSOFT)

Declared = Mapping[str, tuple[ir.TypeProtocol | None, ir.Shape]]


def is_own(node: ir.Node) -> bool:
    """Whether a node's operator is of a domain that neither ONNX nor onnxruntime defines."""
    return node.domain not in _DEFINED_DOMAINS


def declared_shapes(model: ir.Model) -> Declared:
    """The types and shapes that a file declares (in ``value_info``) for outputs of such operators, by name."""
    return {
        value.name: (value.type, value.shape)
        for value in _outputs_of_own(model)
        if value.name is not None and value.shape is not None
    }


def declare(model: ir.Model, declared: Declared, sizes: Mapping[str, int]) -> None:
    """Put declared shapes back where nothing is known, with the names of dimensions turned into numbers, in place.

    Args:
        model: after its operator set was lifted.
        declared: from `declared_shapes`.
        sizes: dimension name -> size; a shape with any other name stays unknown.
    """
    for value in _outputs_of_own(model):
        kind, shape = declared.get(value.name or "", (None, None))
        if shape is None or is_known(value):
            continue
        numbers = [dim if isinstance(dim, int) else evaluate(dim.value or "", sizes) for dim in shape]
        value.type = value.type or kind
        if None not in numbers:
            value.shape = ir.Shape(numbers)


def _outputs_of_own(model: ir.Model) -> Iterator[ir.Value]:
    return (value for node in model.graph.all_nodes() if is_own(node) for value in node.outputs)
