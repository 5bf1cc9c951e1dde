"""Gradient of Det."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import dtype_of, required_input, shape_of
from ckplan.autodiff.registry import rule


@rule("Det")
def determinant(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The matrix of cofactors, each a determinant of one row and column less; right for singular matrices too.

    ONNX has no operator that inverts or solves. For a matrix of n rows this takes n^4 numbers, 4 MiB in float32 at 32.
    """
    x, g = required_input(node, 0), dy[0]
    assert g is not None
    *batch, n, _ = shape_of(x)
    if 0 in shape_of(x):
        return [None]
    upstream = op.reshape(g, [*batch, 1, 1])
    if n == 1:
        return [upstream]
    signs = (1.0 - 2.0 * (np.indices((n, n)).sum(axis=0) % 2)).astype(dtype_of(x))
    if n == 2:
        turned = op.reshape(op.Gather(op.reshape(x, [*batch, 4]), np.asarray([3, 2, 1, 0]), axis=-1), shape_of(x))
        return [op.Mul(op.Mul(turned, signs), upstream)]
    rest = np.asarray([[other for other in range(n) if other != index] for index in range(n)])
    elements = rest[:, None, :, None] * n + rest[None, :, None, :]
    minors = op.Gather(op.reshape(x, [*batch, n * n]), elements.reshape(-1), axis=-1)
    cofactors = op.Det(op.reshape(minors, [*batch, n, n, n - 1, n - 1]))
    return [op.Mul(op.Mul(cofactors, signs), upstream)]
