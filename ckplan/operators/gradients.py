"""Gradient rules, by operator: those of ckplan, and those that others register for operators of their own.

A rule is found by operator, domain and opset version: the one with the highest ``since`` that is not above the
model's opset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ckplan.arguments import check_number, check_text, shown
from ckplan.errors import UsageError
from ckplan.extensions import load_group

if TYPE_CHECKING:
    import onnx_ir as ir

    # The first argument is a `ckplan.autodiff.builder.Builder`.
    Rule = Callable[[Any, ir.Node, Sequence[ir.Value | None]], Sequence[ir.Value | None]]

GROUP = "ckplan.rules"
"""Entry points of installed packages: modules that register gradient rules when they are imported."""

Factor = Literal["apply", "pass", "absorb", "leave"]


class NoGradientError(Exception):
    """Raised by a rule for a form of its operator that it cannot differentiate.

    The engine catches it, so that all such nodes of a model are reported together.

    Args:
        reason: why, as it will stand in brackets after the node's name, e.g. ``"'axes' is computed at run time"``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Entry:
    """A registered rule.

    Attributes:
        function: the rule itself.
        op_type: the operator's name.
        domain: the operator's domain, empty for ai.onnx.
        since: first opset version of that domain the rule is written for.
        factor: what the rule does with a constant factor of the gradients it is given. Rules are linear, so a factor
            may wait: ``pass`` leaves it to the results, for rules that cost next to nothing, and what a rule multiplies
            ``op.factor`` by, as well; ``absorb`` promises to
            multiply by ``op.factor`` on the way; with ``apply`` the gradients are multiplied before the rule runs.
            ``leave`` is for losses: the rule multiplies ``op.factor`` by what its results lack, and the factor of a
            constant, which is the seed itself, waits with that.
        fixed: indices of inputs that never get a gradient although they may be floating point: hyperparameters and
            statistics, such as the ratio of Dropout. What only such an input reads is not a parameter.
        settings: indices of inputs that get a gradient only where they are computed, such as the statistics of
            BatchNormalization: those in the file are settings of the model and not parameters.
        leading: only so many inputs, from the first, can have a gradient; None: all. A composite reads constants of its
            nodes behind them.
        by_definition: indices of inputs that the rule has no gradient for: a node that has to pass one to such an input
            is replaced by the function that ONNX defines it as.
    """

    function: Rule
    op_type: str
    domain: str
    since: int
    fixed: frozenset[int]
    factor: Factor
    settings: frozenset[int] = frozenset()
    leading: int | None = None
    by_definition: frozenset[int] = frozenset()


_RULES: dict[tuple[str, str], list[Entry]] = {}


def rule(
    op_type: str,
    since: int = 1,
    domain: str = "",
    fixed: Iterable[int] = (),
    factor: Factor = "apply",
    settings: Iterable[int] = (),
    leading: int | None = None,
    by_definition: Iterable[int] = (),
) -> Callable[[Rule], Rule]:
    """Register the decorated function as the gradient rule of an operator; decorators may be stacked.

    The function gets the op builder, the forward node and the gradients of the node's outputs (None where an output
    got none) and returns one gradient, or None, for each of the node's inputs. It may read the node's inputs and
    outputs: what it reads has to be kept (or recomputed) until the backward pass, so it should read what is small or
    kept anyway.

    Args:
        op_type: the operator's name.
        since: first opset version the rule is written for.
        domain: the operator's domain, empty for ai.onnx.
        fixed: see :class:`Entry`.
        factor: see :class:`Entry`.
        settings: see :class:`Entry`.
        leading: see :class:`Entry`.
        by_definition: see :class:`Entry`.

    Raises:
        UsageError: it has a rule since that version already, or an argument or what is decorated is of another kind.
    """
    check_text("the operator's name", op_type)
    check_text("the operator's domain", domain)
    check_number("the version that a rule is since", since, 1, whole=True)

    def register(function: Rule) -> Rule:
        if not callable(function):
            raise UsageError(f"the rule is {shown(function)}", "give a function of the builder, a node and gradients")
        entries = _RULES.setdefault((domain, op_type), [])
        if any(entry.since == since for entry in entries):
            raise UsageError(
                f"two gradient rules for {op_type} since {since} in domain '{domain}'",
                "give one another version (`since`), and register each once",
            )
        sets = {"settings": frozenset(settings), "by_definition": frozenset(by_definition)}
        entry = Entry(function, op_type, domain, since, frozenset(fixed), factor, leading=leading, **sets)
        entries.append(entry)
        entries.sort(key=lambda entry: entry.since, reverse=True)
        return function

    return register


def find(op_type: str, version: int, domain: str = "") -> Entry | None:
    """Return the registered rule for an operator at an opset version, or None."""
    _load_others(domain)
    for entry in _RULES.get((domain, op_type), ()):
        if entry.since <= version:
            return entry
    return None


def entries() -> list[Entry]:
    """Return all rules that are registered, by domain, operator and version."""
    load_group(GROUP)
    return sorted((entry for group in _RULES.values() for entry in group), key=lambda e: (e.domain, e.op_type, e.since))


def load_rules() -> None:
    """Import what installed packages register."""
    load_group(GROUP)


def _load_others(domain: str) -> None:
    """Other packages have rules for domains of their own: an operator of ONNX is no reason to look for them."""
    if domain:
        load_group(GROUP)
