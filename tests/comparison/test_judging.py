from __future__ import annotations

from dataclasses import replace

import pytest

from ckplan.comparison import Check, Comparison, Level, Limits, judge
from ckplan.comparison.snapshot import WORKSPACE, PeakBuffer
from ckplan.errors import CheckFailedError, ModelError, UsageError
from tests.comparison.examples import KIB, MARK, measured, snapshot


def test_what_does_not_grow_passes() -> None:
    check = judge("net", "net.onnx", snapshot(("a", 4)), snapshot(("a", 4)))
    assert check.level is Level.PASSED
    assert not check.growth
    assert Comparison((check,)).failure is None


def test_one_byte_more_fails_by_default() -> None:
    base, head = snapshot(("a", 4)), snapshot(("a", 4), peak_activations=4 * KIB + 1)
    assert judge("net", "net.onnx", base, head).level is Level.FAILED


@pytest.mark.parametrize(("allowed", "level"), [(0.5, Level.PASSED), (0.49, Level.FAILED), (None, Level.PASSED)])
def test_the_limit_itself_is_kept(allowed: float | None, level: Level) -> None:
    check = judge("net", "net.onnx", snapshot(("a", 4)), snapshot(("a", 6)), Limits(max_regression=allowed))
    assert check.level is level


def test_limits_in_percent_are_exact() -> None:
    base, head = snapshot(peak_activations=100), snapshot(peak_activations=103)
    assert judge("net", "net.onnx", base, head, Limits(max_regression=0.03)).level is Level.PASSED


def test_a_warning_is_no_failure() -> None:
    limits = Limits(max_regression=1.0, warn_regression=0.1, budget=64 * KIB, warn_budget=5 * KIB)
    check = judge("net", "net.onnx", snapshot(("a", 4)), snapshot(("a", 6)), limits)
    assert [finding.rule for finding in check.findings] == ["regression", "budget"]
    assert check.level is Level.WARNED
    assert Comparison((check,)).failure is None


def test_buffers_that_grew_and_appeared_are_named_with_their_bytes() -> None:
    base, head = snapshot(("a", 4), ("b", 8), ("gone", 1)), snapshot(("new", 3), ("a", 9), ("b", 8))
    check = judge("net", "net.onnx", base, head)
    found = [(growth.alive.tensor, growth.before // KIB, growth.after // KIB) for growth in check.growth]
    assert found == [("a", 4, 9), ("new", 0, 3), ("gone", 1, 0)]
    assert [growth.alive.tensor for growth in check.grown] == ["a", "new"]
    assert sum(growth.change for growth in check.growth) == head.peak_activations - base.peak_activations
    failure = Comparison((check,), accept="take it").failure
    assert isinstance(failure, CheckFailedError)
    assert "peak of activations 13.0 KiB -> 20.0 KiB (+53.8 %, +7,168 B) exceeds the limit of +0 %" in str(failure)
    assert "'a' of Conv 'a/node' takes 5.0 KiB more of it; take it" in str(failure)


def test_a_workspace_is_not_a_tensor_of_the_same_name() -> None:
    work = PeakBuffer("a", 2 * KIB, "a", "Conv", WORKSPACE, WORKSPACE)
    base, head = snapshot(("a", 4)), snapshot(("a", 4))
    head = snapshot(peak_activations=6 * KIB, at_peak=(*head.at_peak, work))
    growth = judge("net", "net.onnx", base, head).growth
    assert [(entry.alive.shape, entry.before, entry.after) for entry in growth] == [(WORKSPACE, 0, 2 * KIB)]


def test_a_dropped_checkpoint_is_named() -> None:
    base = snapshot(("a", 4), recomputed={"b": 7})
    head = snapshot(("c", 6), recomputed={"a": 4, "b": 7, "d": 9})
    check = judge("net", "net.onnx", base, head)
    assert check.dropped == {"a": 4, "d": 9}, "what was there at the base's peak comes first"
    assert "'a' is not kept any more" in str(Comparison((check,)).failure)


def test_a_tensor_that_is_new_was_not_kept_before() -> None:
    base = snapshot(("a", 4), fingerprint=replace(MARK, digest="4567"))
    told = [
        str(Comparison((judge("net", "net.onnx", side, snapshot(("c", 6), recomputed={"d": 9})),)).failure)
        for side in (base, replace(base, fingerprint=MARK))
    ]
    assert "'d' is recomputed now" in told[0]
    assert "'d' is not kept any more" in told[1], "of the same graph"


def test_a_budget_holds_without_a_base() -> None:
    check = judge("net", "net.onnx", None, snapshot(("a", 4)), Limits(budget=3 * KIB))
    assert check.level is Level.FAILED
    failure = Comparison((check,), accept="take it").failure
    assert "4.0 KiB exceeds the budget of 3.0 KiB by 1,024 B; save memory, or raise the budget" in str(failure)


def test_a_budget_in_percent_is_one_of_the_peak_without_a_plan() -> None:
    head = snapshot(("a", 4), unplanned=10 * KIB)
    assert judge("net", "net.onnx", None, head, Limits(budget=0.4)).level is Level.PASSED
    assert judge("net", "net.onnx", None, head, Limits(budget=0.39)).level is Level.FAILED
    with pytest.raises(UsageError, match=r"a budget of 40 % .* which 'net.onnx' lacks; give it in bytes"):
        judge("net", "net.onnx", None, snapshot(("a", 4), unplanned=None), Limits(budget=0.4))


def test_the_measured_peak_decides_only_if_asked() -> None:
    base, head = snapshot(("a", 4), measured=measured(4)), snapshot(("a", 4), measured=measured(8))
    assert judge("net", "net.onnx", base, head).level is Level.PASSED
    failed = judge("net", "net.onnx", base, head, Limits(measured=True))
    assert failed.level is Level.FAILED
    assert failed.findings[0].message.startswith("measured peak of activations 4.0 KiB -> 8.0 KiB")
    assert judge("net", "net.onnx", base, head, Limits(measured=True, tolerance=1.0)).level is Level.PASSED
    with pytest.raises(ModelError, match="holds no measured peak; save the baseline again with --measured"):
        judge("net", "net.onnx", snapshot(("a", 4)), head, Limits(measured=True))


def test_an_error_outweighs_a_failure() -> None:
    failed = judge("one", "one.onnx", snapshot(("a", 4)), snapshot(("a", 6)))
    broken = Check("two", "two.onnx", None, None, Limits(), error=ModelError("two.onnx is damaged", "export it again"))
    found = Comparison((failed, broken))
    assert found.level is Level.ERROR
    assert found.failure is not None
    assert found.failure.exit_code == 3
    assert str(found.failure) == "two: two.onnx is damaged; export it again"
