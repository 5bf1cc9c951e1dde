"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.optimizers.base import Optimizer


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Step against the gradient: ``w - rate (g + decay w)``, torch.optim.SGD without momentum.

    Robbins and Monro, "A Stochastic Approximation Method", 1951.
    """

    name: ClassVar[str] = "sgd"

    def update(
        self,
        op: Builder,
        parameter: ir.Value,
        gradient: ir.Value,
        states: Sequence[ir.Value],
        scalars: Mapping[str, ir.Value],
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """One temporary of the parameter's size."""
        step = op.Mul(self.decayed(op, parameter, gradient), scalars["rate"])
        return op.Sub(parameter, step), ()
