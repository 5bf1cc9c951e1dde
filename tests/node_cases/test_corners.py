"""A share of the corner cases and of the older forms; all: ``python -m benchmarks.node_tests --sets corners older``."""

from __future__ import annotations

import pytest

from tests.node_cases.cases import Case
from tests.node_cases.check import REFUSED, RIGHT, check, verdict
from tests.node_cases.corners import corner_cases
from tests.node_cases.older import older_forms
from tests.node_cases.test_second import by_operator

_SHARE = 12
"""One in so many corner cases is checked here."""


def oldest() -> list[Case]:
    """The oldest form of the smallest case of each operator that has one."""
    forms = (next(older_forms(case), None) for case in by_operator())
    return [case for case in forms if case is not None]


@pytest.mark.parametrize("case", corner_cases(_SHARE), ids=lambda case: case.name)
def test_corner(case: Case) -> None:
    outcome = check(case)
    assert verdict(outcome) in (RIGHT, REFUSED), outcome.reason


@pytest.mark.parametrize("case", oldest(), ids=lambda case: case.name)
def test_an_old_form_is_what_it_was(case: Case) -> None:
    outcome = check(case)
    assert verdict(outcome) in (RIGHT, REFUSED), outcome.reason


def test_a_case_is_told_in_older_words() -> None:
    """What was an attribute then is one again: the axes of a sum."""
    case = next(case for case in by_operator() if case.operators == ("ReduceSum",))
    old = next(older_forms(case))
    assert old.model.opset_import[0].version < 13
    assert len(old.model.graph.node[0].input) == 1
