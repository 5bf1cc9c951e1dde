"""Convolutions and pooling."""

from __future__ import annotations

from ckplan.operators.costs import conv, conv_transpose, deformed, per_input, pool, reduce, regions, squares_in_window
from ckplan.operators.record import MICROSOFT, Operator

OPERATORS = (
    Operator("AveragePool", cost=pool),
    Operator("Col2Im", cost=per_input(2)),
    Operator("Conv", cost=conv, heavy=True),
    Operator("ConvTranspose", cost=conv_transpose, heavy=True),
    Operator("DeformConv", cost=deformed, heavy=True),
    Operator("FusedConv", domain=MICROSOFT, cost=conv),
    Operator("GlobalAveragePool", cost=reduce),
    Operator("GlobalLpPool", cost=reduce),
    Operator("GlobalMaxPool", cost=reduce),
    Operator("LRN", cost=squares_in_window),
    Operator("LpPool", cost=pool),
    Operator("MaxPool", cost=pool),
    Operator("MaxRoiPool", cost=per_input(2)),
    Operator("RoiAlign", cost=regions),
)
