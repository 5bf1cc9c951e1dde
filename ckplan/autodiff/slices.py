"""A stretch of a tensor along one axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder


def stretch(op: Builder, value: ir.Value, axis: int, start: int, end: int) -> ir.Value:
    """Emit what stands along an axis from ``start`` to before ``end``, a copy.

    Of several that partition an axis onnxruntime may make one Split: see `ckplan.autodiff.rules.windows.slice_axes`.
    """
    return op.Slice(value, *(np.asarray([number], dtype=np.int64) for number in (start, end, axis)))
