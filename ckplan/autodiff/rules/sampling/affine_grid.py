"""Gradient of AffineGrid."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_int, dtype_of, shape_of
from ckplan.autodiff.registry import rule


@rule("AffineGrid", since=20, fixed=[1])
def affine_grid(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Sums dy times each coordinate, axis by axis. Reads no forward value.

    The operator's own body would do, but not for a single image, which it takes for none.
    """
    g = dy[0]
    assert g is not None
    if 0 in shape_of(g):
        return [None]
    images, *sizes, width = shape_of(g)
    aligned = bool(attr_int(node, "align_corners", 0))
    axes = range(1, 1 + len(sizes))
    rows = []
    for axis in reversed(axes):  # the columns of theta begin with the last axis
        others = [other for other in axes if other != axis]
        along = op.reshape(op.reduce_sum(g, others), [images, sizes[axis - 1], width])
        rows.append(op.MatMul(_coordinates(sizes[axis - 1], aligned).astype(dtype_of(g)), along))
    whole = op.reshape(op.reduce_sum(g, axes), [images, 1, width])
    return [op.transpose(op.Concat(*rows, whole, axis=1), (0, 2, 1))]


def _coordinates(size: int, aligned: bool) -> np.ndarray:
    """Return the coordinates along an axis, (1, size), as onnxruntime has them: the last one is 1 if aligned."""
    ends = np.linspace(-1.0, 1.0, size) if size > 1 else np.ones(1)
    return (ends if aligned else ends * (size - 1) / size)[None]
