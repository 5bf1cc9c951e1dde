"""Scales and shifts of normalised rows, taken into the weights that alone read them.

    (h s + t) W + b = h (s W) + (b + t W),    h = (x - mean) / deviation

The gradient of the weight is then made of h, and so is that of x, see
:mod:`ckplan.autodiff.rules.normalisation.layer_norm`: x is not kept, and the gradients of s and t are made of those of
the scaled weight and of the bias. In the place of some passes over the rows there are some over the weights: it is done
where there are far more rows than columns in these. A step takes as long as before; the numbers are the same but for
rounding.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import attr_int, required_input, shape_of, size_of, sole_reader
from ckplan.autodiff.rewrites.layer_scales import bias_of, stored
from ckplan.model.inference.infer import static_shape
from ckplan.operators.matching import input_of, is_op

#: So many times the columns of the weights there have to be rows. With 5 to 20 times as many a GPT's step takes less,
#: too, but plans for a fifth of it cost a tenth more.
ROWS = 32


class _Reader(NamedTuple):
    """A linear layer that reads rows: the MatMul by its weight, the Add of its bias, and which input that is."""

    product: ir.Node
    shift: ir.Node
    bias: int


def normalise_for_weights(op: Builder, wanted: Container[ir.Value], held: Container[ir.Value]) -> None:
    """Let weights and biases be scaled and shifted in the place of the normalised rows that they read.

    Args:
        op: builder of the forward graph.
        wanted: what gradients are asked for.
        held: values that have to stay as they are.
    """
    for node in list(op.graph):
        if is_op(node, "LayerNormalization") and (readers := _readers(node, wanted, held)):
            _scale(op, node, readers)


def _readers(node: ir.Node, wanted: Container[ir.Value], held: Container[ir.Value]) -> list[_Reader]:
    """The layers that read what a LayerNormalization makes, if its scale and shift can be taken into all of them."""
    y, affine = node.outputs[0], [value for value in node.inputs[1:] if value is not None]
    if y.dtype != ir.DataType.FLOAT or static_shape(y) is None or y in held or y.is_graph_output() or not size_of(y):
        return []
    rank, width = len(shape_of(y)), shape_of(y)[-1]
    if attr_int(node, "axis", -1) % rank != rank - 1 or not all(_is_row(value, width) for value in affine):
        return []
    trained = any(value in wanted for value in affine)
    readers, columns = [], 0
    for product, slot in y.uses():
        made = product.outputs[0]
        weight = input_of(product, 1) if is_op(product, "MatMul") and slot == 0 else None
        parameter = stored(weight, ("Transpose",))
        if weight is None or parameter is None or len(shape_of(weight)) != 2 or (trained and parameter not in wanted):
            return []
        columns += shape_of(weight)[1]
        shift = None if made in held else sole_reader(made)
        bias = None if shift is None else bias_of(shift, shape_of(weight)[1])
        if shift is None or bias is None:
            return []
        readers.append(_Reader(product, shift, bias))
    return readers if size_of(y) >= ROWS * columns * width else []


def _is_row(value: ir.Value, width: int) -> bool:
    """Whether a value is an initializer with a number for each column, the same for all rows."""
    return stored(value) is not None and size_of(value) == width and shape_of(value)[-1:] == (width,)


def _scale(op: Builder, node: ir.Node, readers: list[_Reader]) -> None:
    """Emit scaled weights and shifted biases, and let nothing be scaled and shifted before them."""
    scale, shift = required_input(node, 1), input_of(node, 2)
    width = size_of(scale)
    for product, add, bias in readers:
        with op.scope(str(product.name), "forward", before=product):
            weight = required_input(product, 1)
            product.replace_input_with(1, op.Mul(weight, op.reshape(scale, [width, 1])))
            if shift is not None:
                more = op.MatMul(op.reshape(shift, [1, width]), weight)
                own = required_input(add, bias)
                add.replace_input_with(bias, op.Add(own, op.reshape(more, shape_of(own))))
    node.resize_inputs(2)
    node.replace_input_with(1, op.constant(np.ones(width, np.float32)))
