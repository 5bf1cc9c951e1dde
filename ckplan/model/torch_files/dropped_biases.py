"""Biases of zeros that torch's default exporter dropped are there again.

Modules begin with biases of zeros (the last layer of an attention, the convolutions of a VGG), and the optimiser of the
exporter takes a bias of zeros off a Conv, a ConvTranspose or a Gemm: it would never be trained. So it does with the
shift of a normalisation that it folded into one. The line of the program that such a node was made of still names the
bias, and the weight tells how many numbers it has: those of a convolution and of a normalisation are one for each
channel, but what a product is added to may be one number, or a matrix, unless a module is known for what it does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ckplan.model.constants import add_initializer, unused_name
from ckplan.model.inference.infer import static_shape
from ckplan.model.torch_files.exporter_metadata import KIND, OPERAND, Operand, class_around, line_of
from ckplan.operators.matching import is_op

_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_BIAS = 2
"""The input of each that holds its bias."""
_OF_CHANNELS = re.compile(r"aten\.(?:conv\w*|\w*batch_norm\w*)\.\w+\]\(args = \(%\w+, %\w+, %(\w+)[,)]")
"""A line whose third operand has a number for each channel."""
_OF_PRODUCT = re.compile(r"aten\.(?:linear\.\w+\]\(args = \(%\w+, %\w+, |addmm\.\w+\]\(args = \()%(\w+)[,)]")
"""A line whose third operand, or first, is added to a product."""
_LINEAR = re.compile(r"torch\.nn\.modules\..*|.*(Linear|Conv1D)\w*")
"""Classes of modules that add a vector: torch's, others that are called as its are, and that of GPT-2."""


def restore_biases(graph: ir.Graph, operands: Mapping[str, Operand], present: dict[str, ir.Value]) -> int:
    """Give layers the biases that their lines name and the file does not have, in place.

    Args:
        graph: the model's.
        operands: the tensors of the program.
        present: those of them that the file has; gets those that it has from now on.

    Returns:
        How many biases there are.
    """
    restored: dict[str, ir.Value] = {}
    layers = [node for node in graph if is_op(node, _LAYERS)]
    of_line = Counter(map(line_of, layers))
    for node in layers:
        line, weight = line_of(node), node.inputs[1]
        name = _bias_of(node, operands)
        if name is None or name in present or of_line[line] > 1 or weight is None or weight.dtype is None:
            continue
        units = _units(node, static_shape(weight))
        if units is None or any(value is not None for value in node.inputs[_BIAS:]):
            continue
        if name not in restored:
            target = unused_name(graph, operands[name].target)
            zeros = ir.Tensor(np.zeros(units, weight.dtype.numpy()), dtype=weight.dtype, name=target)
            restored[name] = add_initializer(graph, target, zeros)
            restored[name].metadata_props.update({KIND: operands[name].kind, OPERAND: name})
        if static_shape(restored[name]) == (units,):
            node.resize_inputs(_BIAS + 1)
            node.replace_input_with(_BIAS, restored[name])
    present.update(restored)
    return len(restored)


def _bias_of(node: ir.Node, operands: Mapping[str, Operand]) -> str | None:
    """What the program calls the parameter that a layer adds as a vector; None if it may add none."""
    line = line_of(node)
    found = _OF_CHANNELS.search(line)
    if found is None and _LINEAR.fullmatch(class_around(node)):
        found = _OF_PRODUCT.search(line)
    name = found[1] if found else ""
    return name if name in operands and operands[name].is_parameter else None


def _units(node: ir.Node, weight: tuple[int, ...] | None) -> int | None:
    """How many numbers the bias of a layer has, whose weight has such a shape; None if that is not known."""
    if weight is None:
        return None
    if node.op_type == "ConvTranspose":
        return weight[1] * node.attributes.get_int("group", 1)
    by_rows = node.op_type == "Conv" or bool(node.attributes.get_int("transB", 0))
    return weight[0] if by_rows else weight[1]
