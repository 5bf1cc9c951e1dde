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
from ckplan.operators.table import STANDARD

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

#: Operators with a floating output that cannot be differentiated, and why; see `ckplan.operators.record.Operator`.
NON_DIFFERENTIABLE: dict[str, str] = {name: known.no_gradient for name, known in STANDARD.items() if known.no_gradient}

#: Operators that pass no gradient on, since their derivative is zero wherever it exists. The loss of a gradient through
#: DequantizeLinear is an error unless it is asked for; see `ckplan.autodiff.quantisation`.
ZERO_DERIVATIVE: frozenset[str] = frozenset(name for name, known in STANDARD.items() if known.zero_derivative)


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
    """Import every module in :mod:`ckplan.autodiff.rules`, once, so that the rules in them are registered."""
    package = importlib.import_module("ckplan.autodiff.rules")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
