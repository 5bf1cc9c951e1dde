"""Gradient of Dropout."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN
from ckplan.autodiff.reading import dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.registry import rule
from ckplan.errors import ModelError
from ckplan.operators.matching import input_of


@rule("Dropout", since=13, fixed=[1, 2])
def dropout(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the mask, a bool per element, which the node is made to output: it cannot be drawn a second time.

    In inference mode, which is the default, the gradient passes as it is.
    """
    x, ratio, training = required_input(node, 0), input_of(node, 1), input_of(node, 2)
    upstream = dy[0]
    if upstream is None:
        return [None]
    mode = op.constant_of(training)
    if training is None or (mode is not None and not mode.item()):
        return [upstream]
    one = np.ones((), dtype_of(x))
    known = op.constant_of(ratio)
    # Where would work in two more tensors of this size (onnxruntime, CPU).
    kept = op.Mul(upstream, op.CastLike(_mask(op, node), upstream))
    if (ratio is None or known is not None) and mode is not None:
        fraction = 1.0 - (0.5 if known is None else float(known.item()))
        if not 0 < fraction <= 1:
            raise ModelError(
                f"Dropout '{node.name}' drops a share of {1 - fraction:g}", "a ratio is at least 0 and less than 1"
            )
        return [op.Mul(kept, 1.0 / fraction) if fraction != 1.0 else kept]
    # The reciprocal is rounded as the kernel's is: from the ratio in its own type.
    share = op.Sub(1.0, ratio) if ratio is not None else op.constant(np.asarray(0.5, dtype_of(x)))
    factor = op.CastLike(op.Reciprocal(share), upstream)
    if mode is None:
        factor = op.Where(training, factor, one)
    return [op.Mul(kept, factor)]


@rule("TrainingDropout", domain=DOMAIN, leading=1)
def training_dropout(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the mask, a bool per element, and the number that what is left is multiplied by."""
    x, scale = required_input(node, 0), node.inputs[1] or node.outputs[2]
    assert dy[0] is not None
    # Flat, so that nobody takes this for what the forward pass made and keeps it till now.
    flat = [size_of(x)] if len(shape_of(x)) != 1 else [1, size_of(x)]
    share = op.Mul(op.Cast(op.reshape(node.outputs[1], flat), to=x.dtype), scale)
    return [op.reshape(op.Mul(op.reshape(dy[0], flat), share), shape_of(x))]


def _mask(op: Builder, node: ir.Node) -> ir.Value:
    if len(node.outputs) < 2:
        node.resize_outputs(2)
    mask = node.outputs[1]
    if not mask.name:
        mask.name = op.unique_name(f"{node.name}/mask")
        op.infer(node)
    return mask
