"""Listings for people: strategies and operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from ckplan.report import docs
from ckplan.report.text import counted, page, section, table

if TYPE_CHECKING:
    from ckplan.autodiff.registry import Entry
    from ckplan.plan.strategies import Strategy


def strategies(kinds: Sequence[type[Strategy]]) -> RenderableType:
    """Each strategy with its documentation and its options."""
    parts: list[RenderableType] = []
    for kind in kinds:
        body = "\n\n".join(docs.paragraphs(kind))
        listed = [
            Text(f"{kind.name}:{option.name}={default(option.default)}  {option.text}", overflow="fold")
            for option in docs.options(kind)
        ]
        gap = [""] if listed else []
        parts.append(section(kind.name, Text(body), *gap, *listed))
    return page(*parts)


def default(value: object) -> str:
    """A default as it is written on the command line."""
    return ";".join(map(str, value)) if isinstance(value, tuple) else str(value)


def operators(rules: Sequence[Entry], zero: Iterable[str], refused: Mapping[str, str]) -> RenderableType:
    """Operators with a gradient rule, with a zero derivative, and without any."""
    names = list(dict.fromkeys(qualified(rule) for rule in rules))
    reasons = table("operator", "reason")
    for name, reason in sorted(refused.items()):
        reasons.add_row(Text(name), Text(reason))
    return page(
        section(f"Differentiated by a rule ({len(names)})", Text(", ".join(names))),
        section("Constant between their steps: they pass no gradient on", Text(", ".join(sorted(zero)))),
        section(f"Not differentiated ({counted(len(refused), 'operator')})", reasons),
        Text("Operators that ONNX defines by a function body are differentiated through it."),
    )


def qualified(rule: Entry) -> str:
    """The operator's name, with its domain unless that is ai.onnx."""
    return f"{rule.domain}::{rule.op_type}" if rule.domain else rule.op_type
