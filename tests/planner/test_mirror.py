"""Backward mirroring."""

from __future__ import annotations

from hypothesis import given, settings

from ckplan.planner import Kind, Problem
from ckplan.planner.instances import forward_overhead, parse_kusumoto
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.strategies.mirror import Mirror, mirrored_ops
from tests.planner.budgets import check_budgets
from tests.planner.networks import resnet50
from tests.planner.problems import ProblemBuilder, chain, problems


@settings(deadline=None, max_examples=60)
@given(problems())
def test_only_cheap_ops_are_mirrored_and_budgets_are_kept(problem: Problem) -> None:
    mirrored = mirrored_ops(problem)
    assert all(
        problem.ops[index].recomputable and not problem.ops[index].heavy and not problem.ops[index].backward
        for index in mirrored
    )
    check_budgets(Mirror(), problem)


def net(shrink: int, *, fork: bool = False) -> Problem:
    """An expensive op, a cheap op of an output ``shrink`` times smaller, cheap ops on it, an expensive op.

    The backward pass reads the last cheap op's output alone, or, with a fork, the first one's output as well.
    """
    build = ProblemBuilder()
    x, wide = build.tensor(100, Kind.INPUT), build.tensor(100)
    first, second, result = build.tensor(100 // shrink), build.tensor(100 // shrink), build.tensor(10)
    build.op([x], [wide], heavy=True, name="conv")
    build.op([wide], [first], name="cheap1")
    build.op([first], [second], name="cheap2")
    build.op([second], [result], heavy=True, name="matmul")
    gradient = build.tensor(10)
    build.op([], [gradient], backward=True, name="seed")
    reads = [gradient, second] + ([first, wide] if fork else [])
    build.op(reads, [build.tensor(1, Kind.OUTPUT)], backward=True, name="grad")
    return build.build()


def test_a_node_that_releases_as_much_as_it_takes_is_kept() -> None:
    # The backward pass does not need the wide tensor: keeping the narrow one instead releases it.
    assert mirrored_ops(net(2)) == set()
    assert mirrored_ops(net(1)) == set()


def test_a_node_that_releases_nothing_is_mirrored_with_what_follows() -> None:
    # The wide tensor must be held in any case, so that everything cheap can come from it again.
    problem = net(2, fork=True)
    assert {problem.ops[index].name for index in mirrored_ops(problem)} == {"cheap1", "cheap2"}


def test_ops_that_share_an_input_are_judged_together() -> None:
    build = ProblemBuilder()
    x, wide, a, b = build.tensor(8, Kind.INPUT), build.tensor(100), build.tensor(60), build.tensor(60)
    results = [build.tensor(1), build.tensor(1)]
    build.op([x], [wide], heavy=True)
    build.op([wide], [a], name="left")
    build.op([wide], [b], name="right")
    build.op([a], [results[0]], heavy=True)
    build.op([b], [results[1]], heavy=True)
    build.op(results, [build.tensor(1)], heavy=True)
    build.op([a, b], [build.tensor(1, Kind.OUTPUT)], backward=True)
    problem = build.build()
    # Each alone would take 60 and release 100; together they take 120.
    assert {problem.ops[index].name for index in mirrored_ops(problem)} == {"left", "right"}


def repeated_kinds(problem: Problem, budget: int | None = None) -> set[str]:
    schedule = Mirror().solve(problem, budget).schedule
    return {problem.ops[index].name.split("_")[0] for index in set(schedule) if schedule.count(index) > 1}


def test_a_chain_of_matmul_and_tanh_repeats_only_tanh() -> None:
    # The chain's Tanh overwrites its input, so that repeating it only costs: the strategy keeps everything.
    problem = chain(12)
    assert {problem.ops[index].name[:4] for index in mirrored_ops(problem)} == {"loss"}
    assert repeated_kinds(problem) == set()


def test_batch_normalisations_and_relus_of_a_resnet_are_mirrored() -> None:
    problem = parse_kusumoto(resnet50().text())
    plan = Mirror().solve(problem)
    base = peak_of(problem, best_order(problem))
    assert plan.predicted.peak_activations < 0.55 * base
    assert 0 < forward_overhead(problem, plan.schedule) < 0.2
    assert repeated_kinds(problem) == {
        "BatchNormalization",
        "ReLU",
        "Add",
        "MaxPooling2D",
        "AveragePooling2D",
        "Reshape",
    }
    assert repeated_kinds(problem, budget=base) == set()
