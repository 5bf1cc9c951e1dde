"""Which operators can be differentiated, and how: what the registry says, for every operator of the installed onnx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import onnx

from ckplan.autodiff.registry import NON_DIFFERENTIABLE, ZERO_DERIVATIVE, entries, lookup
from ckplan.model.contrib import MICROSOFT, REFUSED, expansion_rules
from ckplan.model.sequences.resolved import RESOLVED
from ckplan.model.traits import LOSS_OPERATORS

_FLOATS = frozenset({"tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"})


class Kind(Enum):
    """How the derivative of an operator is found, or why there is none."""

    RULE = "rule"
    FUNCTION = "function"
    RESOLVED = "resolved"
    ZERO = "zero derivative"
    NOT = "not differentiable"
    MISSING = "missing"


#: The kinds that count as differentiable operators.
DIFFERENTIABLE = (Kind.RULE, Kind.FUNCTION, Kind.RESOLVED, Kind.MISSING)


@dataclass(frozen=True)
class Coverage:
    """What is known of one operator.

    Attributes:
        op_type: its name.
        since: the opset version of its newest definition.
        kind: see :class:`Kind`.
        remark: why, or through which operators.
    """

    op_type: str
    since: int
    kind: Kind
    remark: str = ""


def standard_operators() -> list[Coverage]:
    """Return the coverage of every operator of ai.onnx that the installed onnx does not call deprecated, by name."""
    version = onnx.defs.onnx_opset_version()
    newest = {schema.name: schema for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    return [_coverage(schema, version) for _, schema in sorted(newest.items()) if not schema.deprecated]


def counts(operators: Sequence[Coverage]) -> dict[Kind, int]:
    """Return how many operators are of each kind."""
    found = Counter(operator.kind for operator in operators)
    return {kind: found[kind] for kind in Kind}


def microsoft_operators() -> list[Coverage]:
    """Return the same for the operators of com.microsoft that ckplan knows."""
    known = [Coverage(name, 1, Kind.FUNCTION, _first_line(rule)) for name, rule in expansion_rules().items()]
    rules = [entry for entry in entries() if entry.domain == MICROSOFT]
    known += [Coverage(entry.op_type, entry.since, Kind.RULE, _first_line(entry.function)) for entry in rules]
    known += [Coverage(name, 1, Kind.NOT, reason) for name, reason in REFUSED.items()]
    return sorted(known, key=lambda operator: operator.op_type)


def _coverage(schema: Any, version: int) -> Coverage:
    name, since = schema.name, schema.since_version
    if name in LOSS_OPERATORS:
        return Coverage(name, since, Kind.RULE, "replaced by simpler nodes that are differentiated as one")
    if name in ZERO_DERIVATIVE:
        return Coverage(name, since, Kind.ZERO, "constant between its steps")
    if name in RESOLVED and name in NON_DIFFERENTIABLE:
        return Coverage(name, since, Kind.RESOLVED, f"refused if {NON_DIFFERENTIABLE[name]}")
    if name in NON_DIFFERENTIABLE:
        return Coverage(name, since, Kind.NOT, NON_DIFFERENTIABLE[name])
    if not schema.inputs:
        return Coverage(name, since, Kind.NOT, "reads nothing")
    if not _puts_out_floats(schema):
        return Coverage(name, since, Kind.NOT, "outputs no floating-point numbers")
    if lookup(name, version) is not None:
        return Coverage(name, since, Kind.RULE)
    if schema.has_function or schema.has_context_dependent_function:
        return Coverage(name, since, Kind.FUNCTION, _body(schema))
    return Coverage(name, since, Kind.MISSING)


def _puts_out_floats(schema: onnx.defs.OpSchema) -> bool:
    allowed: dict[str, Sequence[str]] = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    kinds = {kind for output in schema.outputs for kind in allowed.get(output.type_str, [output.type_str])}
    return any(float_type in kind for kind in kinds for float_type in _FLOATS)


def _body(schema: Any) -> str:
    """Name the operators of a function body that does not depend on its node."""
    if not schema.has_function:
        return ""
    body = schema.function_body
    return "of " + ", ".join(dict.fromkeys(node.op_type for node in body.node if node.op_type != "Constant"))


def _first_line(function: object) -> str:
    return (function.__doc__ or "").strip().split("\n")[0]
