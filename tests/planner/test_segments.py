"""Checkpoints and the segments between them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from ckplan.errors import UsageError
from ckplan.planner import Kind, Problem, simulate
from ckplan.planner.strategies import parse_strategy
from ckplan.planner.strategies.segments import Segments
from tests.planner.budgets import check_budgets
from tests.planner.problems import ProblemBuilder, chain, problems


@settings(deadline=None, max_examples=60)
@given(problems())
def test_budgets(problem: Problem) -> None:
    check_budgets(Segments(), problem)


@settings(deadline=None, max_examples=60)
@given(problems())
def test_any_checkpoints_give_a_valid_schedule(problem: Problem) -> None:
    plan = Segments(checkpoints=(".*[13579]",), reserved=("t.*2",)).solve if has_both(problem) else Segments().solve
    assert simulate(problem, plan(problem).schedule) == plan(problem).predicted


def has_both(problem: Problem) -> bool:
    names = {problem.tensors[tensor].name for index in problem.forward for tensor in problem.ops[index].outputs}
    return any(name[-1] in "13579" for name in names) and any(name[-1] == "2" for name in names)


def recomputed(problem: Problem, text: str) -> list[str]:
    """Names of the ops that run again, in order."""
    seen: set[int] = set()
    again = []
    for index in parse_strategy(text).solve(problem).schedule:
        if index in seen:
            again.append(problem.ops[index].name)
        seen.add(index)
    return again


def test_segments_run_again_one_by_one_from_the_last() -> None:
    problem = chain(6)
    # What stands after the last checkpoint is kept; checkpoints themselves are not recomputed.
    assert recomputed(problem, "segments:checkpoints=a1;a3") == ["matmul2", "tanh2", "matmul0", "tanh0"]


def test_checkpoints_in_any_order_mean_the_same() -> None:
    problem = chain(6)
    assert recomputed(problem, "segments:checkpoints=a3;a1") == recomputed(problem, "segments:checkpoints=a1;a3")


def test_reserved_values_and_segments_that_are_not_recomputed() -> None:
    problem = chain(6)
    assert recomputed(problem, "segments:checkpoints=a1;a3,reserved=a0") == ["matmul2", "tanh2"]
    assert recomputed(problem, "segments:checkpoints=a1;a3,no_recompute=0") == ["matmul2", "tanh2"]
    assert recomputed(problem, "segments:checkpoints=a1;a3,no_recompute=-1") == ["matmul0", "tanh0"]
    assert recomputed(problem, "segments:checkpoints=a1;a3,no_recompute=0;1") == []


def test_the_models_own_collection_is_the_default() -> None:
    problem = chain(6)
    marked = Problem(problem.ops, problem.tensors, collection=("a1", "a3"))
    assert recomputed(marked, "segments") == recomputed(problem, "segments:checkpoints=a1;a3")


def test_without_checkpoints_a_chain_is_divided_evenly() -> None:
    plan = Segments().solve(chain(36))
    assert plan.predicted.peak_activations < 2000
    assert plan.recomputed > 30


def test_values_that_cross_a_segment_are_held_and_reported() -> None:
    build = ProblemBuilder()
    x = build.tensor(8, Kind.INPUT)
    names = ["skip", "a", "mid", "b", "end"]
    skip, a, mid, b, end = (build.tensor(8, name=name) for name in names)
    for made, reads in ((skip, [x]), (a, [skip]), (mid, [a]), (b, [mid]), (end, [b, skip])):
        build.op(reads, [made], name=build.tensors[made].name)
    build.op([a, b, skip], [build.tensor(8, Kind.OUTPUT)], backward=True)
    problem = build.build()
    found = Segments(checkpoints=("mid", "end")).segmentation(problem)
    assert found.segments == ((0, 1, 2), (3, 4))
    assert found.crossing == ("skip",)
    assert recomputed(problem, "segments:checkpoints=mid;end") == ["a", "b"]
    assert Segments(checkpoints=("mid", "skip", "end")).segmentation(problem).crossing == ()


def test_random_ops_are_held() -> None:
    build = ProblemBuilder()
    x, mask, y, z = (build.tensor(8, kind) for kind in (Kind.INPUT, Kind.ACTIVATION, Kind.ACTIVATION, Kind.ACTIVATION))
    build.op([x], [mask], recomputable=False, name="random")
    build.op([mask], [y], name="y")
    build.op([y], [z], name="z")
    build.op([mask, y], [build.tensor(8, Kind.OUTPUT)], backward=True)
    assert recomputed(build.build(), "segments:checkpoints=t3") == ["y"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("segments:checkpoints=nothing", "no forward tensor matches"),
        ("segments:checkpoints=a1,reserved=nothing", "no forward tensor matches"),
        ("segments:checkpoints=a1,no_recompute=7", "there are 1"),
        ("segments:checkpoints=a1,no_recompute=first", "not the number of a segment"),
    ],
)
def test_bad_options_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_strategy(text).solve(chain(3))
