from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ckplan.autodiff.registry import entries
from ckplan.plan import Problem
from ckplan.plan.strategies import STRATEGIES, Strategy
from ckplan.report import docs, listings
from ckplan.report import json as as_json
from tests.report.examples import printed


@dataclass(frozen=True)
class Example(Strategy):
    """Keep what is kept.

    Not a real
    strategy.

    Attributes:
        limit: largest
            number of things.
        names: which ones.
    """

    name: ClassVar[str] = "example"
    limit: int = 3
    names: tuple[str, ...] = ("a", "b")

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        return []


def test_a_docstring_is_taken_apart() -> None:
    assert docs.paragraphs(Example) == ["Keep what is kept.", "Not a real strategy."]
    assert docs.options(Example) == [
        docs.Option("limit", 3, "largest number of things."),
        docs.Option("names", ("a", "b"), "which ones."),
    ]


def test_options_are_listed_as_they_are_written() -> None:
    page = printed(listings.strategies([Example]))
    assert "example:limit=3  largest number of things." in page
    assert "example:names=a;b  which ones." in page


def test_every_strategy_documents_itself_and_its_options() -> None:
    for kind in STRATEGIES:
        assert len(docs.paragraphs(kind)) >= 2, kind.name
        assert all(option.text for option in docs.options(kind)), kind.name
    assert all(kind.name in printed(listings.strategies(STRATEGIES)) for kind in STRATEGIES)
    data = json.loads(json.dumps(as_json.strategies(STRATEGIES)))
    assert [entry["name"] for entry in data["strategies"]] == [kind.name for kind in STRATEGIES]


def test_operators_are_listed_by_what_can_be_done_with_them() -> None:
    tanh = next(entry for entry in entries() if entry.op_type == "Tanh")
    rules = [tanh, replace(tanh, since=13), replace(tanh, op_type="Gelu", domain="com.example")]
    page = printed(listings.operators(rules, {"Sign"}, {"If": "control flow"}))
    assert "Differentiated by a rule (2)\n  Tanh, com.example::Gelu" in page
    assert "Sign" in page
    assert "control flow" in page
    data = json.loads(json.dumps(as_json.operators(rules, {"Sign"}, {"If": "control flow"})))
    assert [rule["since"] for rule in data["rules"]] == [1, 13, 1]
    assert data["not_differentiated"] == {"If": "control flow"}
