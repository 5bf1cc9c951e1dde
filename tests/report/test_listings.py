from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import onnx
import pytest

from ckplan.autodiff.coverage import Coverage, Kind, microsoft_operators, standard_operators
from ckplan.planner import Problem
from ckplan.planner.strategies import STRATEGIES, Strategy
from ckplan.report import docs, listings
from ckplan.report import json as as_json
from docs import operators_page as operators
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


_OPERATORS = [
    Coverage("Sign", 13, Kind.ZERO, "constant between its steps"),
    Coverage("Swirl", 22, Kind.MISSING),
    Coverage("Tanh", 13, Kind.RULE),
    Coverage("ToText", 9, Kind.NOT, "letters | digits"),
    Coverage("Twice", 18, Kind.FUNCTION, "of Add"),
]
_FUSED = [Coverage("BiasGelu", 1, Kind.FUNCTION, "Gelu(A + B)."), Coverage("QGemm", 1, Kind.NOT, "quantised")]


def test_operators_are_listed_by_what_can_be_done_with_them() -> None:
    page = printed(listings.operators(_OPERATORS, _FUSED))
    assert "3 of the 5 operators of ai.onnx are differentiable: 1 have a rule" in page
    assert "Differentiated by a rule (1)\n  Tanh" in page
    assert "Missing (1)\n  Swirl" in page
    assert "letters | digits" in page
    assert "in standard operators (1)\n  BiasGelu" in page
    data = json.loads(json.dumps(as_json.operators(_OPERATORS, _FUSED)))
    assert data["counts"] == {
        "rule": 1,
        "function": 1,
        "resolved": 0,
        "zero derivative": 1,
        "not differentiable": 1,
        "missing": 1,
    }
    assert data["operators"][-1] == {
        "op": "QGemm", "domain": "com.microsoft", "since": 1, "kind": "not differentiable", "remark": "quantised",
    }  # fmt: skip


def test_the_page_of_operators_holds_the_counts_and_a_row_for_each() -> None:
    text = operators.page(_OPERATORS, _FUSED, "1.99", 42)
    assert "onnx 1.99, opset\n42" in text
    assert "| differentiable | 3 |" in text
    assert "| of these missing | 1 |" in text
    assert "| [Tanh](https://onnx.ai/onnx/operators/onnx__Tanh.html) | 13 | rule |  |" in text
    assert "letters \\| digits" in text
    assert "| BiasGelu | standard operators | Gelu(A + B). |" in text


def test_the_page_in_the_documentation_is_up_to_date() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")
    if f"onnx {onnx.__version__}, opset" not in text:
        pytest.skip(f"docs/operators.md was written with another onnx than {onnx.__version__}")
    assert text == operators.current(), "run: python -m docs.generate"


def test_every_operator_of_onnx_is_listed_once_and_none_is_missing() -> None:
    found = standard_operators()
    names = [operator.op_type for operator in found]
    assert len(names) == len(set(names))
    assert {"Conv", "If", "ArgMax", "Round", "SoftmaxCrossEntropyLoss"} <= set(names)
    assert "Upsample" not in names
    assert [operator.op_type for operator in found if operator.kind is Kind.MISSING] == []


def test_operators_of_com_microsoft_are_listed_once() -> None:
    names = [operator.op_type for operator in microsoft_operators()]
    assert len(names) == len(set(names))
    assert {"FastGelu", "GroupQueryAttention", "Inverse", "MatMulNBits"} <= set(names)
