"""Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.optimizers.adam import Adam

_NOT_ZERO = 1e-30
"""Added to the share of a parameter that is left, by which the step is divided: all others stay what they are."""


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay does not go through the moments, torch.optim.AdamW.

    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019: the step is taken from
    ``(1 - rate decay) w``, whatever the gradient was.

    Attributes:
        weight_decay: share of a parameter that is taken off it in a step, as a multiple of the learning rate.
    """

    name: ClassVar[str] = "adamw"

    weight_decay: float = 0.01

    def scalars(self, op: Builder, rate: ir.Value, step: ir.Value | None) -> dict[str, ir.Value]:
        """Adam's, and the share of a parameter that is left; the step is counted before that share is taken."""
        shared = super().scalars(op, rate, step)
        if not self.weight_decay:
            return shared
        left = op.Add(op.Sub(1.0, op.Mul(rate, self.weight_decay)), _NOT_ZERO)
        return {**shared, "left": left, "size": op.Div(shared["size"], left)}

    def decayed(self, op: Builder, parameter: ir.Value, gradient: ir.Value) -> ir.Value:
        """The gradient as it is."""
        return gradient

    def stepped(self, op: Builder, parameter: ir.Value, step: ir.Value, scalars: Mapping[str, ir.Value]) -> ir.Value:
        """``left (w - step)``: the product of the parameter alone could be made long before the step is there."""
        changed = super().stepped(op, parameter, step, scalars)
        return op.Mul(changed, scalars["left"]) if self.weight_decay else changed
