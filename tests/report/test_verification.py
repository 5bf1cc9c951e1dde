from __future__ import annotations

import json

from ckplan.meter import OutputDifference, Prediction, Recomputation
from ckplan.report import json as as_json
from ckplan.report.documents.verifications import recomputation, summary, verification
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
        "step time, one thread 2.0 ms 3.0 ms 1.50 ± 0.50",
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
    assert "w_grad 3 7 5.0e-01 - differs" in page
    assert "loss - - - - has another shape" in page
    assert "Problems" in page
    assert summary(found).endswith("outputs differ")


def test_an_undone_plan_is_a_problem() -> None:
    promised = Prediction(16 << 10, 20 << 10)
    found = examples.verification(recomputation=Recomputation(12, 0, merged=12), prediction=promised)
    page = printed(verification(found))
    assert "0 of 12 nodes ran again as planned; 12 merged with the nodes that they repeat" in page
    assert "the plan was undone" in page


def test_the_headline_tells_order_from_recomputation() -> None:
    predicted = Prediction(32 << 10, 42 << 10, order_peak=48 << 10)
    told = summary(examples.verification(prediction=predicted))
    assert "64.0 KiB -> 32.0 KiB (-50.0 %: order -25 %, recompute -25 %)" in told


def test_merged_nodes_are_no_problem_where_no_memory_is_lost() -> None:
    page = printed(verification(examples.verification(recomputation=Recomputation(12, 0, merged=12))))
    assert "0 of 12 nodes ran again as planned" in page
    assert "Problems" not in page


def test_memory_that_is_lost_has_a_cause() -> None:
    promised = {"prediction": Prediction(1 << 20, 2 << 20)}
    lost = examples.measurement("new.onnx", 4096, recomputation=Recomputation(12, 9, merged=3), **promised)
    (problem,) = lost.problems
    assert "300% more" in problem
    assert "merged 3 of 12 recomputed nodes" in problem
    lost = examples.measurement("new.onnx", 4096, recomputation=Recomputation(12, 12), **promised)
    assert "fuses it otherwise, or runs it in another order" in lost.problems[0]


def test_nodes_that_run_as_parts_of_others_are_told() -> None:
    told = recomputation(Recomputation(104, 104, fused=(("FusedMatMul", 4), ("Gelu", 2))))
    assert told == "104 of 104 nodes ran again as planned; 6 of them as part of FusedMatMul, Gelu"


def test_meters_that_are_missing_leave_no_row() -> None:
    page = squeezed(printed(verification(examples.verification(readings={}, counters=None, priority=None))))
    assert "activations, peak 64.0 KiB - -" in page
    assert not any(line.startswith("without memory pattern - -") for line in page)


def test_json_holds_all_that_was_measured() -> None:
    data = json.loads(json.dumps(as_json.verification(examples.verification())))
    assert data["schema"] == 1
    assert data["command"] == "verify"
    assert data["activation_ratio"] == 0.5
    assert data["base"]["peak_activations"] == 64 * 1024
