"""The linear layer before a loss: which nodes make the logits, and whether they may vanish with them."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import attr_float, attr_int, required_input, shape_of
from ckplan.operators.matching import input_of, is_op

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Element types of the layer; half precision would sum in half precision."""


@dataclass(frozen=True)
class Layer:
    """The linear layer that makes logits.

    Attributes:
        x: its input; what counts is its rows, along all axes but the last.
        weight: [classes, features] if ``by_rows``, else [features, classes].
        bias: one number per class, None without.
        by_rows: whether the weight has a row per class.
        nodes: the nodes that the composite takes the place of.
    """

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    by_rows: bool
    nodes: tuple[ir.Node, ...]


def layer_of(loss: ir.Node, shown: int = 1) -> Layer | None:
    """Find the linear layer before a loss, None if there is none that may vanish.

    Args:
        loss: a node that reads logits.
        shown: how many of its outputs others may read.
    """
    logits = required_input(loss, 0)
    rank = len(shape_of(logits))
    if not rank or attr_int(loss, "axis", -1) % rank != rank - 1 or logits.dtype not in _TYPES:
        return None
    if any(value.uses() or value.is_graph_output() for value in loss.outputs[shown:]):
        return None
    nodes: list[ir.Node] = []
    bias: ir.Value | None = None
    at = logits
    while True:
        maker = at.producer()
        if maker is None or maker.domain or len(at.uses()) != 1 or at.is_graph_output():
            return None
        nodes.append(maker)
        if maker.op_type == "Reshape" and shape_of(required_input(maker, 0))[-1:] == shape_of(at)[-1:]:
            at = required_input(maker, 0)
        elif maker.op_type == "Add" and bias is None and (found := _bias_of(maker, shape_of(logits)[-1])) is not None:
            at, bias = found
        else:
            break
    layer = _product(maker, bias)
    if layer is None:
        return None
    return Layer(layer.x, layer.weight, layer.bias, layer.by_rows, tuple(reversed(nodes)))


def _bias_of(add: ir.Node, classes: int) -> tuple[ir.Value, ir.Value] | None:
    """The summand that is a product and the one that is a vector of biases."""
    left, right = required_input(add, 0), required_input(add, 1)
    for value, bias in ((left, right), (right, left)):
        if shape_of(bias) == (classes,) and shape_of(value) == shape_of(add.outputs[0]) and value is not bias:
            return value, bias
    return None


def _product(node: ir.Node, bias: ir.Value | None) -> Layer | None:
    """The layer that a product is, with a bias that is added behind it."""
    if node.op_type == "MatMul":
        x, weight, by_rows = required_input(node, 0), required_input(node, 1), False
    elif node.op_type == "Gemm" and bias is None:
        x, weight, by_rows = required_input(node, 0), required_input(node, 1), bool(attr_int(node, "transB", 0))
        bias = input_of(node, 2)
        plain = attr_float(node, "alpha", 1.0) == 1 == attr_float(node, "beta", 1.0) and not attr_int(node, "transA", 0)
        if not plain or (bias is not None and shape_of(bias) != (shape_of(node.outputs[0])[-1],)):
            return None
    else:
        return None
    if len(shape_of(weight)) != 2 or not shape_of(x):
        return None
    maker = weight.producer()
    if not by_rows and is_op(maker, "Transpose"):
        weight, by_rows = required_input(maker, 0), True
    return Layer(x, weight, bias, by_rows, ())


def product(op: Builder, x: ir.Value, weight: ir.Value, bias: ir.Value | None, by_rows: bool) -> ir.Value:
    """``x weight + bias``, or with ``by_rows`` ``x weightᵀ + bias``; all of rank 2, the bias of rank 1 or None."""
    if bias is None and not by_rows:
        return op.MatMul(x, weight)
    return op.Gemm(x, weight, bias, transB=int(by_rows) or None)
