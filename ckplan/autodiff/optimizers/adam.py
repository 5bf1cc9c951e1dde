"""Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.optimizers.base import Optimizer

_SMALLEST = 0.1
"""Smallest beta by which states may be divided without a loss of digits or of range."""


@dataclass(frozen=True)
class Adam(Optimizer):
    """Steps scaled by running moments of the gradient, torch.optim.Adam.

    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, in the order of the end of section 2, which
    needs no corrected moments: with u = sqrt(1 - beta2^t),
    ``w' = w - rate u / (1 - beta1^t) m' / (sqrt(v') + epsilon u)``.

    Attributes:
        beta1: share of the running mean of the gradients that is kept.
        beta2: share of the running mean of their squares that is kept.
        epsilon: added to the root of that mean.
    """

    name: ClassVar[str] = "adam"
    states: ClassVar[tuple[str, ...]] = ("moment1", "moment2")
    counts: ClassVar[bool] = True

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("beta1", "beta2"):
            self.check(option, 0 <= getattr(self, option) < 1, "at least 0 and less than 1")
        self.check_least("epsilon")

    def scalars(self, op: Builder, rate: ir.Value, step: ir.Value | None) -> dict[str, ir.Value]:
        """In float64: 1 - 0.999 has three digits left in float32."""
        assert step is not None
        first, second = (op.Sub(1.0, op.Pow(op.constant(_double(beta)), step)) for beta in (self.beta1, self.beta2))
        root = op.Sqrt(second)
        return {"rate": rate, "size": op.Div(op.Mul(rate, root), first), "epsilon": op.Mul(root, self.epsilon)}

    def update(
        self,
        op: Builder,
        parameter: ir.Value,
        gradient: ir.Value,
        states: Sequence[ir.Value],
        scalars: Mapping[str, ir.Value],
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Two tensors of the parameter's size at a time, the gradient or what takes its place among them.

        ``m' = beta1 (m + (1 - beta1) / beta1 g)``: the gradient dies before a second product is there, and none of what
        is made is of the parameter and the states alone, which onnxruntime may make long before it is needed.
        """
        gradient = self.decayed(op, parameter, gradient)
        if min(self.beta1, self.beta2) < _SMALLEST:
            mean = op.Add(op.Mul(states[0], self.beta1), op.Mul(gradient, 1 - self.beta1))
            square = op.Add(op.Mul(states[1], self.beta2), op.Mul(op.Mul(gradient, gradient), 1 - self.beta2))
        else:
            first, second = ((1 - beta) / beta for beta in (self.beta1, self.beta2))
            share = op.Mul(gradient, first)
            mean = op.Mul(op.Add(states[0], share), self.beta1)
            scaled = op.Mul(op.Mul(share, share), second / first**2)
            square = op.Mul(op.Add(states[1], scaled), self.beta2)
        direction = op.Div(mean, op.Add(op.Sqrt(square), scalars["epsilon"]))
        return self.stepped(op, parameter, op.Mul(direction, scalars["size"]), scalars), (mean, square)

    def stepped(self, op: Builder, parameter: ir.Value, step: ir.Value, scalars: Mapping[str, ir.Value]) -> ir.Value:
        """Return the parameter after a step."""
        return op.Sub(parameter, step)


def _double(number: float) -> np.ndarray:
    return np.asarray(number, np.float64)
