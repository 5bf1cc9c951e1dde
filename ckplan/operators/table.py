"""All records of operators: those of ONNX and onnxruntime, and those that others register."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import onnx_ir as ir

from ckplan.arguments import check_kind, check_text
from ckplan.errors import UsageError
from ckplan.extensions import running
from ckplan.operators.gradients import load_rules
from ckplan.operators.record import Operator
from ckplan.operators.standard import (
    convolutions,
    elementwise,
    images,
    normalisation,
    products,
    quantised,
    random,
    recurrent,
    reduction,
    sequences,
    shape,
)

STANDARD: dict[str, Operator] = {
    operator.name: operator
    for group in (
        elementwise,
        products,
        convolutions,
        normalisation,
        reduction,
        shape,
        images,
        recurrent,
        random,
        quantised,
        sequences,
    )
    for operator in group.OPERATORS
}
"""Operators of which something is to be said, by name: no two have one name."""

REDUCTIONS: frozenset[str] = frozenset({one.name for one in reduction.OPERATORS if one.name.startswith("Reduce")})
"""Operators that make one number of many along axes, which an input names."""

ELEMENTWISE: frozenset[str] = frozenset({one.name for one in elementwise.OPERATORS if not one.domain} | {"Identity"})
"""ONNX's operators that make an element of those at its place, in operands stretched to each other's shapes."""

_OTHERS: dict[tuple[str, str], Operator] = {}
_DEFINED = ("", "ai.onnx")
_RUNTIME = ("com.microsoft", "com.ms.")
"""What the domains of onnxruntime's own operators begin with; most are forms of ONNX's, under their names."""


def register_operator(operator: Operator) -> None:
    """Make a record of an operator of another domain known.

    Raises:
        UsageError: it is no `Operator`, has a record already, or is an operator of ONNX or onnxruntime.
    """
    check_kind("the record", operator, Operator, "give a `ckplan.Operator`")
    check_text("the operator's name", operator.name)
    check_text("the operator's domain", operator.domain)
    key = (operator.domain, operator.name)
    if _is_standard(operator.domain) or key in _OTHERS:
        raise UsageError(
            f"there is a record of {operator.name} in domain '{operator.domain}' already",
            "records are for operators of other domains than those of ONNX and onnxruntime; register each once",
        )
    named = f"the record of {operator.domain}::{operator.name}"
    told = {field: getattr(operator, field) for field in ("cost", "workspace") if getattr(operator, field) is not None}
    _OTHERS[key] = replace(operator, **{field: running(f"`{field}` in {named}")(code) for field, code in told.items()})


def operator_of(node: ir.Node) -> Operator:
    """What is known of a node's operator."""
    if _is_standard(node.domain):
        return STANDARD.get(node.op_type) or _plain(node.op_type, node.domain)
    load_rules()  # who registers rules of a domain registers its records as well
    return _OTHERS.get((node.domain, node.op_type)) or _plain(node.op_type, node.domain)


@cache
def _plain(name: str, domain: str) -> Operator:
    """An operator of which nothing is to be said."""
    return Operator(name, domain)


@cache
def _is_standard(domain: str) -> bool:
    return domain in _DEFINED or domain.startswith(_RUNTIME)
