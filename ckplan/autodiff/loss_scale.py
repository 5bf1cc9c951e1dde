"""Loss scaling: gradients of half precision are kept away from zero on their way through the backward pass.

The gradients that the reverse sweep starts from are multiplied by a scale, so that small ones do not vanish in float16
(smallest positive number 6e-8), and the gradients that come out are divided by it in float32 (Micikevicius et al.,
"Mixed Precision Training", 2018, section 3.2). The loss itself stays as it is. Where the scale was too large, the
gradients hold infinities or NaN, also after the division: skip that step and lower the scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.precision import NARROW
from ckplan.autodiff.reading import shape_of
from ckplan.errors import UsageError

INPUT = "input"
"""The loss scale that stands for "fed at run time"."""

_HALF = ("float16", 2.0**-14, float(np.finfo(np.float16).max))
_SINGLE = ("float32", 2.0**-126, 2.0**126)
"""Element types, and the scales that they can hold; in single precision the reciprocals of these, too."""


@dataclass(frozen=True)
class LossScale:
    """A scale, in the form in which the sweep needs it.

    Attributes:
        constant: the scale if it is fixed, else 1.
        fed: the float32 scalar input that holds the scale, if it is fed.
    """

    constant: float = 1.0
    fed: ir.Value | None = None

    @property
    def text(self) -> str:
        """The scale, or the name of its input."""
        return f"{self.constant:g}" if self.fed is None else str(self.fed.name)

    def seeds(self, op: Builder, targets: Mapping[ir.Value, ir.Value | None]) -> dict[ir.Value, ir.Value | None]:
        """Return what the sweep starts from, multiplied by the scale where it is fed."""
        if self.fed is None:
            return dict(targets)
        scaled: dict[ir.Value, ir.Value | None] = {}
        for target, seed in targets.items():
            with op.scope(f"{target.name}/grad"):
                scale = op.cast(self.fed, target.dtype)
                scaled[target] = op.expand(scale, shape_of(target)) if seed is None else op.Mul(seed, scale)
        return scaled

    def finish(self, op: Builder, gradient: ir.Value, factor: float) -> ir.Value:
        """Divide a gradient by the scale: in float32, and in float64 where it is that."""
        gradient = gradient if gradient.dtype not in NARROW else op.Cast(gradient, to=finished_type(gradient))
        gradient = op.scale(gradient, factor / self.constant)
        if self.fed is None:
            return gradient
        scale = op.cast(self.fed, gradient.dtype)
        return op.Div(gradient, scale)


def finished_type(value: ir.Value) -> ir.DataType | None:
    """Return the element type in which a gradient of this value is divided by the scale."""
    return ir.DataType.FLOAT if value.dtype in NARROW else value.dtype


def add_loss_scale(op: Builder, spec: float | str, targets: Iterable[ir.Value]) -> LossScale:
    """Read a loss scale, adding the input ``loss_scale`` (a float32 scalar) if it is to be fed.

    Args:
        op: builder of the forward graph.
        spec: the scale, or ``input``.
        targets: what is differentiated.

    Raises:
        UsageError: the scale is no positive number, or one that gradients of the loss cannot be multiplied by.
    """
    if spec == INPUT:
        fed = ir.Value(name=op.unique_name("loss_scale"), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
        op.graph.inputs.append(fed)
        return LossScale(fed=fed)
    try:
        scale = float(spec)
    except ValueError:
        scale = math.nan
    if not (math.isfinite(scale) and scale > 0):
        raise UsageError(f"`--loss-scale {spec}` is not a positive number", f"give a number such as 1024, or `{INPUT}`")
    for target in targets:
        name, least, most = _HALF if target.dtype == ir.DataType.FLOAT16 else _SINGLE
        if not least <= scale <= most:
            size, remedy = ("more", f"{most:g} at most") if scale > most else ("less", f"{least:g} at least")
            raise UsageError(
                f"`--loss-scale {scale:g}` is {size} than {name} can hold, in which gradients of '{target.name}' are",
                f"scale by {remedy}",
            )
    return LossScale(scale)
