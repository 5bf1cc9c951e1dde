"""What rules emit can be differentiated in turn; all cases: ``python -m benchmarks.node_tests --second``."""

from __future__ import annotations

import pytest

from ckplan.autodiff.registry import entries
from tests.node_cases.cases import Case
from tests.node_cases.check import FAILED, MISSING, SKIPPED
from tests.node_cases.second import check_second
from tests.node_cases.test_node_cases import chosen

RULED = {entry.op_type for entry in entries() if not entry.domain}


def by_operator() -> list[Case]:
    """One case for each operator with a rule, the smallest."""
    best: dict[str, Case] = {}
    for case in chosen():
        operator = "".join(case.operators)
        if operator in RULED and operator not in best:
            best[operator] = case
    return list(best.values())


@pytest.mark.parametrize("case", by_operator(), ids=lambda case: "".join(case.operators))
def test_what_rules_emit_can_be_differentiated(case: Case) -> None:
    outcome = check_second(case)
    if outcome.status == SKIPPED:
        pytest.skip(outcome.reason)
    assert outcome.status not in (FAILED, MISSING), outcome.reason
