"""Clipping of gradients by the norm of all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder

_TINY = 1e-6
"""What torch adds to the norm before it divides by it."""


def clip_factor(op: Builder, gradients: Sequence[ir.Value], norm: float) -> ir.Value:
    """Emit ``min(1, norm / (|g| + 1e-6))``, |g| the norm of all gradients together, as torch.nn.utils.clip_grad_norm_.

    Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, algorithm 1.

    Args:
        op: the builder.
        gradients: of any shapes; float32 or float64.
        norm: the largest norm that is left as it is.

    Returns:
        A float64 scalar.
    """
    squares = [op.Cast(op.ReduceSumSquare(gradient, keepdims=0), to=ir.DataType.DOUBLE) for gradient in gradients]
    total = squares[0] if len(squares) == 1 else op.Sum(*squares)
    factor = op.Div(np.float64(norm), op.Add(op.Sqrt(total), _TINY))
    return op.Min(factor, np.float64(1))
