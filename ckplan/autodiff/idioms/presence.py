"""Numbers that onnxruntime can compute only once a value exists, for nodes that have to wait for it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of


def there(op: Builder, value: ir.Value) -> ir.Value:
    """Return true, a scalar that is known once a value is there, from none of its elements.

    Of a value of known shape onnxruntime folds Shape away when it loads a file, and keeps Size
    (``core/optimizer/constant_folding.cc``). OptionalHasElement says the same in one node, but other runtimes refuse
    files with it.

    Args:
        op: the builder.
        value: a tensor of any shape and type.
    """
    return op.GreaterOrEqual(op.Size(value), np.int64(0))


def read_after(op: Builder, value: ir.Value, event: ir.Value) -> ir.Value:
    """A view of a value that is there when another value is, and not before; costs nothing."""
    zero = op.Cast(op.Not(there(op, event)), to=ir.DataType.INT64)
    return op.Reshape(value, op.Add(op.constant(shape_of(value)), zero), _shape=shape_of(value))
