"""What a strategy's docstring says, taken apart: paragraphs, and a text per option."""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckplan.planner.strategies import Strategy


@dataclass(frozen=True)
class Option:
    """An option of a strategy: a field of its dataclass."""

    name: str
    default: Any
    text: str


def paragraphs(kind: type[Strategy]) -> list[str]:
    """The docstring without its sections, each paragraph on one line."""
    prose = re.split(r"\n\s*Attributes:\n", inspect.getdoc(kind) or "")[0]
    return [" ".join(paragraph.split()) for paragraph in prose.split("\n\n")]


def options(kind: type[Strategy]) -> list[Option]:
    """The fields of a strategy with their defaults and what the docstring says of them."""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    texts = {
        match[1]: " ".join(match[2].split())
        for match in re.finditer(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    }
    return [Option(field.name, field.default, texts.get(field.name, "")) for field in dataclasses.fields(kind)]
