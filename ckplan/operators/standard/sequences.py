"""Sequences, optionals and strings."""

from __future__ import annotations

from ckplan.operators.costs import free
from ckplan.operators.record import Operator

_SEQUENCE = "what the sequence holds, or which element is meant, is only known at run time"

OPERATORS = (
    Operator("ConcatFromSequence", no_gradient=_SEQUENCE),
    Operator("Optional", no_gradient=_SEQUENCE),
    Operator("OptionalGetElement", no_gradient=_SEQUENCE, cost=free, view=True),
    Operator("SequenceAt", no_gradient=_SEQUENCE),
    Operator("SequenceConstruct", no_gradient=_SEQUENCE),
    Operator("SequenceEmpty", no_gradient=_SEQUENCE),
    Operator("SequenceErase", no_gradient=_SEQUENCE),
    Operator("SequenceInsert", no_gradient=_SEQUENCE),
    Operator("SequenceMap", no_gradient=_SEQUENCE),
    Operator("SplitToSequence", no_gradient=_SEQUENCE),
    Operator("StringNormalizer", no_gradient="strings have no derivative"),
    Operator("TfIdfVectorizer", no_gradient="counts of tokens have no derivative"),
)
