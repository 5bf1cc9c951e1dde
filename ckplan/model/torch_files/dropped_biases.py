"""Biases of zeros that torch's default exporter dropped are there again.

Modules begin with biases of zeros (the last layer of an attention, the convolutions of a VGG), and the optimiser of the
exporter takes a bias of zeros off a Conv, a ConvTranspose or a Gemm: it would never be trained. So it does with the
shift of a normalisation that it folded into one. The line of the program that such a node was made of still names the
bias, and the weight tells how many numbers it has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ckplan.model.constants import add_initializer, unused_name
from ckplan.model.infer import static_shape
from ckplan.model.torch_files.exporter_metadata import KIND, LINE, OPERAND, Operand
from ckplan.operators.matching import is_op

_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_BIAS = 2
"""The input of each that holds its bias."""
_THIRD = re.compile(r"aten\.(?:conv\w*|linear|\w*batch_norm\w*)\.\w+\]\(args = \(%\w+, %\w+, %(\w+)[,)]")
"""A line whose third operand is a bias."""
_FIRST = re.compile(r"aten\.addmm\.\w+\]\(args = \(%(\w+), ")
"""A line whose first operand is added to a product: where it is called a bias, it is a vector."""


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
    of_line = Counter(node.metadata_props.get(LINE, "") for node in layers)
    for node in layers:
        line, weight = node.metadata_props.get(LINE, ""), node.inputs[1]
        name = _bias_in(line, operands)
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


def _bias_in(line: str, operands: Mapping[str, Operand]) -> str | None:
    """What the program calls the parameter that a line adds as a bias; None if it adds none."""
    found = _THIRD.search(line) or _FIRST.search(line)
    name = found[1] if found else ""
    if name not in operands or not operands[name].is_parameter:
        return None
    return name if _THIRD.search(line) or "bias" in operands[name].target.rpartition(".")[2] else None


def _units(node: ir.Node, weight: tuple[int, ...] | None) -> int | None:
    """How many numbers the bias of a layer has, whose weight has such a shape; None if that is not known."""
    if weight is None:
        return None
    if node.op_type == "ConvTranspose":
        return weight[1] * node.attributes.get_int("group", 1)
    by_rows = node.op_type == "Conv" or bool(node.attributes.get_int("transB", 0))
    return weight[0] if by_rows else weight[1]
