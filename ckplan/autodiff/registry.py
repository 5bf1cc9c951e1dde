"""Which rule differentiates which operator, and which operators have no derivative.

Modules in :mod:`ckplan.autodiff.rules` register theirs on import (see :mod:`ckplan.operators.gradients`);
:func:`collect` imports them all, so that importing this module costs nothing and no rule depends on the order of
imports.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from ckplan.operators import gradients
from ckplan.operators.gradients import Entry, Factor, NoGradientError, rule

__all__ = [
    "NON_DIFFERENTIABLE",
    "ZERO_DERIVATIVE",
    "Entry",
    "Factor",
    "NoGradientError",
    "collect",
    "entries",
    "lookup",
    "rule",
]

_SAMPLE = "a random sample has no derivative"
_QUANTISED = "quantised arithmetic has no useful derivative"
_SEQUENCE = "what the sequence holds, or which element is meant, is only known at run time"

#: Operators with a floating output that cannot be differentiated, and why. Operators whose outputs are integers,
#: booleans or strings need no entry: nothing flows back through those.
NON_DIFFERENTIABLE: dict[str, str] = {
    "SequenceMap": _SEQUENCE,
    "ConcatFromSequence": _SEQUENCE,
    "SequenceAt": _SEQUENCE,
    "SequenceConstruct": _SEQUENCE,
    "SequenceEmpty": _SEQUENCE,
    "SequenceErase": _SEQUENCE,
    "SequenceInsert": _SEQUENCE,
    "SplitToSequence": _SEQUENCE,
    "Optional": _SEQUENCE,
    "OptionalGetElement": _SEQUENCE,
    "Bernoulli": _SAMPLE,
    "Multinomial": _SAMPLE,
    "BitCast": "reinterpreted bits have no derivative",
    "ConvInteger": _QUANTISED,
    "MatMulInteger": _QUANTISED,
    "QLinearConv": _QUANTISED,
    "QLinearMatMul": _QUANTISED,
    "Hardmax": "a one-hot choice has no derivative",
    "NonMaxSuppression": "a choice of boxes has no derivative",
    "Unique": "the number of results depends on the data",
    "NonZero": "the number of results depends on the data",
    "StringNormalizer": "strings have no derivative",
    "TfIdfVectorizer": "counts of tokens have no derivative",
}

#: Operators that are constant between their steps: their derivative is zero wherever it exists, so they pass no
#: gradient on, which is an answer and not an error.
ZERO_DERIVATIVE: frozenset[str] = frozenset(
    {
        "Ceil",
        "ConstantOfShape",
        # The loss of a gradient through these is an error unless it is asked for; see ckplan.autodiff.quantisation.
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "EyeLike",
        "Floor",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Round",
        "Sign",
        "HannWindow",
        "HammingWindow",
        "BlackmanWindow",
        "MelWeightMatrix",
        "QuantizeLinear",
    }
)


def lookup(op_type: str, version: int, domain: str = "") -> Entry | None:
    """Return the rule for an operator at an opset version, or None."""
    collect()
    return gradients.find(op_type, version, domain)


def entries() -> list[Entry]:
    """Return all rules, by domain, operator and version."""
    collect()
    return gradients.entries()


@functools.cache
def collect() -> None:
    """Import every module of :mod:`ckplan.autodiff.rules`, once, so that the rules in them are registered."""
    package = importlib.import_module("ckplan.autodiff.rules")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
