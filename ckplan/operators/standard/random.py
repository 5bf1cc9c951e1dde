"""Operators that draw random numbers."""

from __future__ import annotations

from ckplan.operators.costs import per_output
from ckplan.operators.record import Operator

_SAMPLE = "a random sample has no derivative"

OPERATORS = (
    Operator("Bernoulli", cost=per_output(10), random=True, no_gradient=_SAMPLE),
    Operator("Dropout", cost=per_output(10)),
    Operator("Multinomial", random=True, no_gradient=_SAMPLE),
    Operator("RandomNormal", cost=per_output(40), random=True, zero_derivative=True),
    Operator("RandomNormalLike", cost=per_output(40), random=True, zero_derivative=True),
    Operator("RandomUniform", cost=per_output(10), random=True, zero_derivative=True),
    Operator("RandomUniformLike", cost=per_output(10), random=True, zero_derivative=True),
)
