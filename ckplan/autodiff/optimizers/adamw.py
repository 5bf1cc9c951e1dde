"""Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.optimizers.adam import Adam


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
        """Adam's, and the share of a parameter that is left."""
        shared = super().scalars(op, rate, step)
        return {**shared, "left": op.Sub(1.0, op.Mul(rate, self.weight_decay))} if self.weight_decay else shared

    def decayed(self, op: Builder, parameter: ir.Value, gradient: ir.Value) -> ir.Value:
        """The gradient as it is."""
        return gradient

    def shrunk(self, op: Builder, parameter: ir.Value, scalars: Mapping[str, ir.Value]) -> ir.Value:
        """The parameter less its decay."""
        return op.Mul(parameter, scalars["left"]) if self.weight_decay else parameter
