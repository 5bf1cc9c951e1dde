"""Recurrent layers."""

from __future__ import annotations

from ckplan.operators.costs import recurrent
from ckplan.operators.record import Operator

OPERATORS = (
    Operator("GRU", cost=recurrent(3), heavy=True),
    Operator("LSTM", cost=recurrent(4), heavy=True),
    Operator("RNN", cost=recurrent(1), heavy=True),
)
