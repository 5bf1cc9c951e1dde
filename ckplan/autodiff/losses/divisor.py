"""What a loss that is a mean is divided by: how many labels of a batch count, or what their classes weigh together."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.paths import depends
from ckplan.autodiff.reading import size_of
from ckplan.operators.matching import is_op

_LINEAR = ("Cast", "Div", "Identity", "Mul", "Neg", "Reshape", "Squeeze", "Unsqueeze")
"""What a mean stays one behind, where one operand is read of the data."""
_SUMS = ("Add", "Sub", "Sum")


def divisor_of(loss: ir.Value, data: Container[ir.Value], trained: Container[ir.Value]) -> ir.Value | None:
    """The number that a loss is divided by and that is another in other batches; None if none is found.

    The mean of the losses of several batches, weighed by these numbers, is the loss of all of them at once. Terms that
    no data are read for, such as a penalty, may stand beside what is divided.

    Args:
        loss: a value of one element.
        data: inputs of the graph that are fed with each batch.
        trained: what a training changes: a number that depends on it is no count.
    """
    node = loss.producer()
    if node is None:
        return None
    read = [value for value in node.inputs if value is not None and depends(value, data)]
    if is_op(node, "Div") and node.inputs[1] in read:
        divisor = node.inputs[1]
        return divisor if size_of(divisor) == 1 and not depends(divisor, trained) else None
    if is_op(node, (*_LINEAR, *_SUMS)) and len(read) == 1:
        return divisor_of(read[0], data, trained)
    if is_op(node, _SUMS) and read:
        found = {divisor_of(value, data, trained) for value in read}
        return found.pop() if len(found) == 1 else None
    return None
