from __future__ import annotations

import json

from ckplan.meter import OutputDifference, Recomputation
from ckplan.report import json as as_json
from ckplan.report.verification import summary, verification
from tests.report import examples
from tests.report.examples import printed

DIFFERENCE = OutputDifference("w_grad", elements=3, first=(0,), base="1", new="2", max_ulp=7, relative_to_scale=0.5)


def squeezed(report: str) -> list[str]:
    return [" ".join(line.split()) for line in report.splitlines()]


def test_the_table_sets_both_files_side_by_side() -> None:
    page = squeezed(printed(verification(examples.verification())))
    for line in (
        "measured: activations 64.0 KiB -> 32.0 KiB (-50.0 %), time +50 %, outputs equal",
        "Measured in onnxruntime 1.31.1 on cpu",
        "activations, peak 64.0 KiB 32.0 KiB 0.50",
        "predicted - 32.0 KiB -",
        "in priority order 64.0 KiB 32.0 KiB 0.50",
        "heap (second meter) 64.1 KiB 32.1 KiB 0.50",
        "all live memory, peak 74.0 KiB 42.0 KiB 0.57",
        "steady state, arena held 128.0 KiB 64.0 KiB 0.50",
        "step time 2.0 ms 3.0 ms 1.50",
        "2 of 2 outputs equal to the bit",
        "only in new: extra",
        "12 of 12 nodes ran again as planned",
        "- inputs are random",
    ):
        assert any(other.startswith(line) for other in page), line
    assert "Problems" not in page


def test_a_difference_is_shown_and_named() -> None:
    found = examples.verification(differences=(DIFFERENCE, OutputDifference("loss", problem="has another shape")))
    page = squeezed(printed(verification(found)))
    assert "0 of 2 outputs equal to the bit" in page
    assert "w_grad 3 7 5.0e-01" in page
    assert "loss has another shape" in page
    assert "Problems" in page
    assert summary(found).endswith("outputs differ")


def test_an_undone_plan_is_a_problem() -> None:
    page = printed(verification(examples.verification(recomputation=Recomputation(12, 0))))
    assert "0 of 12 nodes ran again as planned" in page
    assert "the plan was undone" in page


def test_meters_that_are_missing_leave_no_row() -> None:
    page = squeezed(printed(verification(examples.verification(heap=None, counters=None, priority=None))))
    assert "activations, peak 64.0 KiB - -" in page
    assert not any(line.startswith("without memory pattern - -") for line in page)


def test_json_holds_all_that_was_measured() -> None:
    data = json.loads(json.dumps(as_json.verification(examples.verification())))
    assert data["schema"] == 1
    assert data["command"] == "verify"
    assert data["activation_ratio"] == 0.5
    assert data["base"]["peak_activations"] == 64 * 1024
