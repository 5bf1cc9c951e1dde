"""Experts read the tokens of others as they are, where all that they compute is defined anywhere.

What is not chosen is filled with another number as a rule: it may be no number, which is why it is not chosen, and
behind a logarithm or a quotient it would be none; that would come through the gradient of a Where. But tokens that ask
for other experts are as good as those that ask for this one. So all experts read one tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from ckplan.model.masks.at_most_one import tells_who_asked
from ckplan.model.masks.mask_rewriting import Rewriting
from ckplan.model.node_reads import fixed_tensor
from ckplan.operators.matching import made_by

_DEFINED = frozenset(
    {
        *("Abs", "Add", "Atan", "Cast", "Celu", "Clip", "Cos", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish"),
        *("Identity", "LeakyRelu", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Relu", "Selu", "Sigmoid", "Sin"),
        *("Softplus", "Softsign", "Sub", "Swish", "Tanh", "ThresholdedRelu"),
        *("Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "RMSNormalization", "Softmax"),
        *("Concat", "Expand", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
        *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"),
    }
)
"""Operators whose results and slopes are finite wherever their inputs are, within reason."""
_WHOLE_POWERS = (2.0, 3.0)


def take_fillings_out(rewriting: Rewriting, along: Mapping[ir.Node, Iterable[ir.Value]]) -> None:
    """Let what is chosen by who asked for it be read among all others, as these are, where that is as good.

    Args:
        rewriting: a model that works on all elements.
        along: nodes that work on each element by itself -> what they read of such.
    """
    filled = {value: {value} for value, root in rewriting.chosen.items() if _is_filled(value) and tells_who_asked(root)}
    origins: dict[ir.Value, set[ir.Value]] = dict(filled)
    unsafe: set[ir.Value] = set()
    for node, read in along.items():
        of = set().union(*(origins.get(value, set()) for value in read))
        if not _is_defined(node, read):
            unsafe |= of
        for output in node.outputs:
            origins[output] = of | origins.get(output, set())
    for value in filled:
        filling = value.producer()
        whole = None if filling is None else filling.inputs[1]
        if value not in unsafe and whole is not None:
            ir.convenience.replace_all_uses_with(value, whole)


def _is_filled(value: ir.Value) -> bool:
    """Whether a value is a computed tensor with fillings; of zeros that are written into one takes nothing out.

    They would be added to products as they are, as only the shifts of layers are.
    """
    node = made_by(value, "Where")
    if node is None or value.dtype is None or not value.dtype.is_floating_point():
        return False
    whole = node.inputs[1]
    while whole is not None and (shaper := made_by(whole, "Reshape")) is not None:
        whole = shaper.inputs[0]
    return whole is not None and whole.producer() is not None


def _is_defined(node: ir.Node, read: Iterable[ir.Value]) -> bool:
    """Whether a node's results are finite wherever what it reads is; a quotient by what is the same for all is."""
    if node.op_type in _DEFINED:
        return True
    if node.op_type == "Div":
        return node.inputs[1] not in set(read)
    power = fixed_tensor(node.inputs[1]) if node.op_type == "Pow" else None
    return power is not None and bool(np.isin(power.numpy().astype(float), _WHOLE_POWERS).all())
