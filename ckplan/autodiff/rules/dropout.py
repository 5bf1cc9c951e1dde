"""Gradient of Dropout."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients, input_of, shape_of
from ckplan.autodiff.registry import NoGradientError, rule


@rule("Dropout", since=12, fixed=[1, 2])
def dropout(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The gradient where elements were kept, scaled as they were; asks Dropout for its mask if nobody did before."""
    training, ratio = input_of(node, 2), input_of(node, 1)
    known = op.constant_of(training)
    if training is None or (known is not None and not known.any()):
        return [dy[0]]
    share = op.constant_of(ratio)
    if known is None or (ratio is not None and share is None):
        raise NoGradientError("its ratio or training_mode is computed at run time")
    if len(node.outputs) == 1:
        node.resize_outputs(2)
        mask = node.outputs[1]
        mask.name = op.unique_name(f"{node.outputs[0].name}_mask")
        mask.type, mask.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape(shape_of(node.outputs[0]))
    dropped = 0.5 if share is None else float(share)
    kept = op.Cast(node.outputs[1], to=node.outputs[0].dtype)
    return [op.scale(op.Mul(dy[0], kept), 1 / (1 - dropped) if dropped < 1 else 0.0)]
