"""A share of the variants by schema; all: ``python -m benchmarks.node_tests --sets variants``."""

from __future__ import annotations

import pytest

from tests.node_cases.cases import Case
from tests.node_cases.check import REFUSED, RIGHT, check, verdict
from tests.node_cases.variants import rows, variant_cases

_SHARE = 9
"""One in so many variants is checked here."""


@pytest.mark.parametrize("case", variant_cases(_SHARE, older=False), ids=lambda case: case.name)
def test_variant(case: Case) -> None:
    outcome = check(case)
    assert verdict(outcome) in (RIGHT, REFUSED), outcome.reason


def test_every_attribute_of_an_operator_is_varied() -> None:
    tried = {row.name.partition("=")[0].rpartition(" ")[2] for row in rows(older=False) if row.op_type == "Gemm"}
    assert {"alpha", "beta", "transA", "transB"} <= tried
