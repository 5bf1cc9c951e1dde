"""Gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.optimizers.base import Optimizer


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Heavy ball: ``b' = momentum b + g + decay w``, ``w' = w - rate b'``, torch.optim.SGD with momentum.

    Polyak, "Some methods of speeding up the convergence of iteration methods", 1964, in the form of Sutskever et al.,
    "On the importance of initialization and momentum in deep learning", 2013, with the rate outside of the sum.

    Attributes:
        momentum: share of the last step's direction that is kept.
    """

    name: ClassVar[str] = "momentum"
    states: ClassVar[tuple[str, ...]] = ("momentum",)

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("momentum", 0 <= self.momentum < 1, "at least 0 and less than 1")

    def update(
        self,
        op: Builder,
        parameter: ir.Value,
        gradient: ir.Value,
        states: Sequence[ir.Value],
        scalars: Mapping[str, ir.Value],
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """The gradient is dead once the new momentum is there."""
        direction = op.Add(op.Mul(states[0], self.momentum), self.decayed(op, parameter, gradient))
        return op.Sub(parameter, op.Mul(direction, scalars["rate"])), (direction,)
