"""Quantisation, and arithmetic with quantised numbers."""

from __future__ import annotations

from ckplan.operators.costs import matmul
from ckplan.operators.record import Operator

_QUANTISED = "quantised arithmetic has no useful derivative"

OPERATORS = (
    Operator("ConvInteger", heavy=True, no_gradient=_QUANTISED),
    Operator("DequantizeLinear", zero_derivative=True),
    Operator("DynamicQuantizeLinear", zero_derivative=True),
    Operator("MatMulInteger", cost=matmul, no_gradient=_QUANTISED),
    Operator("QLinearConv", no_gradient=_QUANTISED),
    Operator("QLinearMatMul", no_gradient=_QUANTISED),
    Operator("QuantizeLinear", zero_derivative=True),
)
