"""Functions of each element, and arithmetic between tensors of one shape."""

from __future__ import annotations

from ckplan.operators.costs import per_output, sum_of_all
from ckplan.operators.record import MICROSOFT, Operator

_ORDINARY = (
    *("Abs", "Add", "And", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Equal", "Greater"),
    *("GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Mul", "Neg", "Not", "Or", "PRelu", "Sub", "Where"),
    "Xor",
)
"""Of which nothing else is to be said."""

OPERATORS = (
    *map(Operator, _ORDINARY),
    Operator("Acos", cost=per_output(20)),
    Operator("Acosh", cost=per_output(30)),
    Operator("Asin", cost=per_output(20)),
    Operator("Asinh", cost=per_output(30)),
    Operator("Atan", cost=per_output(20)),
    Operator("Atanh", cost=per_output(30)),
    Operator("BiasGelu", domain=MICROSOFT, cost=per_output(31)),
    Operator("Cast", in_place=True),
    Operator("Ceil", zero_derivative=True),
    Operator("Celu", cost=per_output(30), in_place=True),
    Operator("Clip", in_place=True),
    Operator("Cos", cost=per_output(40)),
    Operator("Cosh", cost=per_output(30)),
    Operator("Div", cost=per_output(4)),
    Operator("Elu", cost=per_output(20), in_place=True, in_place_on_cuda=True),
    Operator("Erf", cost=per_output(25)),
    Operator("Exp", cost=per_output(10)),
    Operator("FastGelu", domain=MICROSOFT, cost=per_output(20)),
    Operator("Floor", zero_derivative=True),
    Operator("Gelu", cost=per_output(30)),
    Operator("HardSigmoid", cost=per_output(3), in_place=True, in_place_on_cuda=True),
    Operator("HardSwish", cost=per_output(4)),
    Operator("LeakyRelu", cost=per_output(2), in_place=True, in_place_on_cuda=True),
    Operator("Log", cost=per_output(20)),
    Operator("Max", cost=sum_of_all),
    Operator("Mean", cost=sum_of_all),
    Operator("Min", cost=sum_of_all),
    Operator("Mish", cost=per_output(100)),
    Operator("Mod", cost=per_output(10)),
    Operator("Pow", cost=per_output(40)),
    Operator("QuickGelu", domain=MICROSOFT, cost=per_output(16)),
    Operator("Reciprocal", cost=per_output(4)),
    Operator("Relu", in_place=True, in_place_on_cuda=True),
    Operator("Round", zero_derivative=True),
    Operator("Selu", cost=per_output(20), in_place=True, in_place_on_cuda=True),
    Operator("Shrink", in_place=True, in_place_on_cuda=True),
    Operator("Sigmoid", cost=per_output(15), in_place=True, in_place_on_cuda=True),
    Operator("Sign", zero_derivative=True),
    Operator("Sin", cost=per_output(40)),
    Operator("Sinh", cost=per_output(30)),
    Operator("Softplus", cost=per_output(100), in_place=True, in_place_on_cuda=True),
    Operator("Softsign", cost=per_output(5), in_place=True, in_place_on_cuda=True),
    Operator("Sqrt", cost=per_output(6)),
    Operator("Sum", cost=sum_of_all),
    Operator("Swish", cost=per_output(16)),
    Operator("Tan", cost=per_output(40)),
    Operator("Tanh", cost=per_output(15), in_place=True, in_place_on_cuda=True),
    Operator("ThresholdedRelu", cost=per_output(2), in_place=True, in_place_on_cuda=True),
)
