"""Dropout that drops, in two parts: a mask that is drawn once, and its use, which a plan may repeat.

The mask, a bool per element, is kept for the backward pass. What was dropped out of is not: it is recomputed from its
input and the mask. (The operator itself outputs both at once and would draw anew.)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.autodiff.builder import Builder, Operand
from ckplan.autodiff.composites import outline
from ckplan.autodiff.idioms.presence import there
from ckplan.autodiff.reading import attr_int, dtype_of, required_input, shape_of
from ckplan.errors import ModelError
from ckplan.model.normal_form.generators import NEWEST_GENERATORS, seed_of
from ckplan.operators.matching import input_of


def dropout(op: Builder, node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Emit a Dropout in training form as one composite.

    The mask comes from a generator with a seed: two files made from one model draw the same masks, a new one in each
    step. The seed is the node's own, or else one that depends on its name.

    Args:
        op: the builder, in a scope of its own.
        node: a Dropout in either form; it stays as it is.

    Returns:
        What is left of x, scaled; and the mask, true where x is kept. None for a ratio of 0.

    Raises:
        ModelError: the ratio is a constant outside of [0, 1).
    """
    x, ratio = required_input(node, 0), input_of(node, 1)
    known = np.asarray(0.5) if ratio is None else op.constant_of(ratio)
    fixed = None if known is None else float(known.reshape(()))
    if fixed == 0:
        return None
    if fixed is not None and not 0 < fixed < 1:
        raise ModelError(f"Dropout '{node.name}' drops a share of {fixed:g}", "a ratio is at least 0 and less than 1")
    single = ir.DataType.FLOAT
    with op.recording() as nodes:
        threshold = np.asarray(fixed, np.float32) if fixed is not None else op.Cast(ratio, to=single)
        mask = _draw(op, x, threshold, attr_int(node, "seed", seed_of(str(node.name))))
        if fixed is not None:
            scale = op.constant(np.asarray(1 / (1 - fixed), np.float64).astype(dtype_of(x)))
        else:
            scale = op.CastLike(op.Reciprocal(op.Sub(1.0, threshold)), x)
        # A number that a matrix product could take over would be rounded there or here, as onnxruntime sees fit.
        y = op.Mul(x, op.Mul(op.Cast(mask, to=x.dtype), scale))
    maker = mask.producer()
    assert maker is not None
    # Recomputing it from the numbers that were drawn would keep those, which are four times as large.
    maker.metadata_props[keys.ONCE] = "mask"
    inputs, outputs = ([x, scale], [y, mask]) if fixed is not None else ([x, None], [y, mask, scale])
    y, mask, *_ = outline(op, "TrainingDropout", nodes, inputs, outputs)
    return y, mask


def _draw(op: Builder, x: ir.Value, ratio: Operand, seed: int) -> ir.Value:
    """Emit a bool per element of x, false for a share of ``ratio``.

    Of the random operators of opset 22 onnxruntime has a kernel for Dropout only. That one begins each step with the
    next seed; a generator that goes on where it stopped is better.
    """
    single = ir.DataType.FLOAT
    if op.opset_imports[""] <= NEWEST_GENERATORS:
        return op.GreaterOrEqual(op.RandomUniformLike(x, dtype=single, seed=float(seed)), ratio)
    ones = op.expand(op.Cast(there(op, x), to=single), shape_of(x))
    left, mask = op.Dropout(ones, ratio, np.asarray(True), seed=seed, _outputs=2)
    # What nobody reads is held to the end of the step. (Without its mask, onnxruntime would remove the Dropout.)
    return op.And(op.Cast(left, to=ir.DataType.BOOL), mask)
