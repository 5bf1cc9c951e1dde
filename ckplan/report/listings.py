"""Listings as documents: strategies and operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckplan.autodiff.coverage import DIFFERENTIABLE, Coverage, Kind, counts
from ckplan.report import docs
from ckplan.report.document import ALL, Block, Cell, Document, Line, Row, Section, Table

if TYPE_CHECKING:
    from ckplan.planner.strategies import Strategy


def strategies(kinds: Sequence[type[Strategy]]) -> Document:
    """Each strategy with its documentation and its options."""
    sections = []
    for kind in kinds:
        body = [line for paragraph in docs.paragraphs(kind) for line in ("", *paragraph.splitlines())][1:]
        options = [
            f"{kind.name}:{option.name}={default(option.default)}  {option.text}" for option in docs.options(kind)
        ]
        sections.append(Section(kind.name, tuple(map(Line, [*body, *([""] if options else []), *options]))))
    return Document("", tuple(sections))


def default(value: object) -> str:
    """A default as it is written on the command line."""
    return ";".join(map(str, value)) if isinstance(value, tuple) else str(value)


def operators(standard: Sequence[Coverage], microsoft: Sequence[Coverage]) -> Document:
    """How many operators can be differentiated, and how each is or why it is not."""
    found = counts(standard)
    sections = [Section("", (Line(summary(standard)),))]
    for kind, heading in HEADINGS.items():
        operators = [operator for operator in standard if operator.kind is kind]
        if not operators:
            continue
        block: Block = Line(", ".join(operator.op_type for operator in operators))
        if kind in _EXPLAINED:
            rows = tuple(Row((Cell(operator.op_type), Cell(operator.remark))) for operator in operators)
            block = Table(("operator", "remark"), rows, top=ALL)
        sections.append(Section(f"{heading} ({found[kind]})", (block,)))
    written = [operator.op_type for operator in microsoft if operator.kind is not Kind.NOT]
    refused = [operator.op_type for operator in microsoft if operator.kind is Kind.NOT]
    for heading, names in (("in standard operators", written), ("not differentiated", refused)):
        sections.append(Section(f"Of com.microsoft, {heading} ({len(names)})", (Line(", ".join(names)),)))
    return Document("", tuple(sections))


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
