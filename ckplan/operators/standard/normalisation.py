"""Normalisations, softmax, and losses."""

from __future__ import annotations

from ckplan.operators.costs import per_input
from ckplan.operators.record import MICROSOFT, Operator

OPERATORS = (
    Operator("BatchNormalization", cost=per_input(4)),
    Operator("GroupNormalization", cost=per_input(8)),
    Operator("Hardmax", cost=per_input(3), no_gradient="a one-hot choice has no derivative"),
    Operator("InstanceNormalization", cost=per_input(8)),
    Operator("LayerNormalization", cost=per_input(8)),
    Operator("LogSoftmax", cost=per_input(25), in_place=True),
    Operator("LpNormalization", cost=per_input(6)),
    Operator("MeanVarianceNormalization", cost=per_input(8)),
    Operator("NegativeLogLikelihoodLoss", cost=per_input(1)),
    Operator("RMSNormalization", cost=per_input(6)),
    Operator("SimplifiedLayerNormalization", domain=MICROSOFT, cost=per_input(6)),
    Operator("SkipLayerNormalization", domain=MICROSOFT, cost=per_input(9)),
    Operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT, cost=per_input(7)),
    Operator("Softmax", cost=per_input(15), in_place=True),
    Operator("SoftmaxCrossEntropyLoss", cost=per_input(25)),
)
