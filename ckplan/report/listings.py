"""Listings for people: strategies and operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from ckplan.autodiff.coverage import DIFFERENTIABLE, Coverage, Kind, counts
from ckplan.report import docs
from ckplan.report.text import page, section, table

if TYPE_CHECKING:
    from ckplan.planner.strategies import Strategy


def strategies(kinds: Sequence[type[Strategy]]) -> RenderableType:
    """Each strategy with its documentation and its options."""
    parts: list[RenderableType] = []
    for kind in kinds:
        body = [line for paragraph in docs.paragraphs(kind) for line in ("", *paragraph.splitlines())][1:]
        listed = [
            Text(f"{kind.name}:{option.name}={default(option.default)}  {option.text}", overflow="fold")
            for option in docs.options(kind)
        ]
        gap = [""] if listed else []
        parts.append(section(kind.name, *map(Text, body), *gap, *listed))
    return page(*parts)


def default(value: object) -> str:
    """A default as it is written on the command line."""
    return ";".join(map(str, value)) if isinstance(value, tuple) else str(value)


def operators(standard: Sequence[Coverage], microsoft: Sequence[Coverage]) -> RenderableType:
    """How many operators can be differentiated, and how each is or why it is not."""
    found = counts(standard)
    parts: list[RenderableType] = [Text(summary(standard))]
    for kind, heading in HEADINGS.items():
        named = [operator for operator in standard if operator.kind is kind]
        if not named:
            continue
        if kind in _EXPLAINED:
            rows = table("operator", "remark")
            for operator in named:
                rows.add_row(Text(operator.op_type), Text(operator.remark))
            parts.append(section(f"{heading} ({found[kind]})", rows))
        else:
            parts.append(section(f"{heading} ({found[kind]})", Text(", ".join(o.op_type for o in named))))
    written = [operator.op_type for operator in microsoft if operator.kind is not Kind.NOT]
    refused = [operator.op_type for operator in microsoft if operator.kind is Kind.NOT]
    parts.append(section(f"Of com.microsoft, in standard operators ({len(written)})", Text(", ".join(written))))
    parts.append(section(f"Of com.microsoft, not differentiated ({len(refused)})", Text(", ".join(refused))))
    return page(*parts)


#: What the kinds of coverage are called in listings, in their order there.
HEADINGS = {
    Kind.RULE: "Differentiated by a rule",
    Kind.FUNCTION: "Differentiated through the function that defines them",
    Kind.RESOLVED: "Resolved when a model is loaded: sequences and optionals",
    Kind.MISSING: "Missing",
    Kind.ZERO: "Constant between their steps: they pass no gradient on",
    Kind.NOT: "Not differentiable",
}
_EXPLAINED = (Kind.NOT, Kind.FUNCTION)


def summary(standard: Sequence[Coverage]) -> str:
    """One line of counts."""
    found = counts(standard)
    differentiable = sum(found[kind] for kind in DIFFERENTIABLE)
    return (
        f"{differentiable} of the {len(standard)} operators of ai.onnx are differentiable: {found[Kind.RULE]} have a "
        f"rule, {found[Kind.FUNCTION]} are differentiated through the function that defines them, "
        f"{found[Kind.RESOLVED]} give way to the elements they hold, "
        f"{found[Kind.MISSING]} are missing."
    )
