"""Reductions, running sums, and choices."""

from __future__ import annotations

from ckplan.operators.costs import per_input, reduce, top_k
from ckplan.operators.record import Operator

OPERATORS = (
    Operator("ArgMax", cost=per_input(2)),
    Operator("ArgMin", cost=per_input(2)),
    Operator("CumProd", cost=per_input(1)),
    Operator("CumSum", cost=per_input(1)),
    Operator("NonMaxSuppression", no_gradient="a choice of boxes has no derivative"),
    Operator("NonZero", no_gradient="the number of results depends on the data"),
    Operator("ReduceL1", cost=reduce),
    Operator("ReduceL2", cost=per_input(2)),
    Operator("ReduceLogSum", cost=per_input(2)),
    Operator("ReduceLogSumExp", cost=per_input(15)),
    Operator("ReduceMax", cost=reduce),
    Operator("ReduceMean", cost=reduce),
    Operator("ReduceMin", cost=reduce),
    Operator("ReduceProd", cost=reduce),
    Operator("ReduceSum", cost=reduce),
    Operator("ReduceSumSquare", cost=reduce),
    Operator("TopK", cost=top_k),
    Operator("Unique", no_gradient="the number of results depends on the data"),
)
