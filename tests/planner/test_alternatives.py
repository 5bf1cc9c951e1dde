"""The opposite of a decision is a valid schedule in which that decision, and as little else as can be, is another."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckplan.planner import Kind, Op, Problem, Tensor, recompute_schedule, simulate
from ckplan.planner.alternatives import copies_of, keeping_instead, recomputed_with, recomputing_instead
from tests.planner.problems import problems


def chain() -> Problem:
    """x -> a -> b -> c, and a backward pass that reads b, then a."""
    names = ("x", "a", "b", "c", "dc", "db", "da")
    tensors = [Tensor(name, 8, Kind.INPUT if name == "x" else Kind.ACTIVATION) for name in names]
    x, a, b, c, dc, db, da = range(7)
    ops = (
        Op("A", (x,), (a,)),
        Op("B", (a,), (b,)),
        Op("C", (b,), (c,)),
        Op("dC", (c,), (dc,), backward=True),
        Op("dB", (dc, b), (db,), backward=True),
        Op("dA", (db, a), (da,), backward=True),
    )
    return Problem(ops, tuple(tensors))


def test_copies_of_a_recomputed_tensor() -> None:
    schedule = [0, 1, 2, 3, 0, 1, 4, 5]
    first, second = copies_of(chain(), schedule, 1)
    assert (first.made, first.reads, first.last) == (0, (1,), 1)
    assert (second.made, second.reads, second.last) == (4, (5, 7), 7)
    assert recomputed_with(chain(), schedule, 1) == [0, 1]
    assert recomputed_with(chain(), schedule, 0) == [0]
    assert recomputed_with(chain(), schedule, 2) == []


def test_keeping_drops_what_was_repeated_for_it_alone() -> None:
    assert keeping_instead(chain(), [0, 1, 2, 3, 0, 1, 4, 5], 1) == [0, 1, 2, 3, 0, 4, 5]
    # Then `a` is kept only if `dA` does not need it again; here it does.
    assert keeping_instead(chain(), [0, 1, 2, 3, 0, 1, 4, 5], 0) == [0, 1, 2, 3, 1, 4, 5]


def test_recomputing_makes_what_is_gone_as_well() -> None:
    plain = list(range(6))
    assert recomputing_instead(chain(), plain, 1) == ([0, 1, 2, 3, 1, 4, 5], [1])  # `a` is still needed: it is there
    assert recomputing_instead(chain(), [0, 1, 2, 3, 4, 0, 5], 1) == ([0, 1, 2, 3, 0, 1, 4, 0, 5], [0, 1])
    assert recomputing_instead(chain(), plain, 2) == ([0, 1, 2, 2, 3, 4, 5], [2])


def test_what_only_the_forward_pass_reads_has_no_opposite() -> None:
    tensors = (Tensor("x", 8, Kind.INPUT), Tensor("a", 8), Tensor("b", 8))
    problem = Problem((Op("A", (0,), (1,)), Op("B", (1,), (2,))), tensors)
    assert recomputing_instead(problem, [0, 1], 0) is None


def test_a_copy_includes_its_views() -> None:
    tensors = (Tensor("x", 8, Kind.INPUT), Tensor("a", 8), Tensor("v", 8), Tensor("b", 8), Tensor("db", 8))
    ops = (
        Op("A", (0,), (1,)),
        Op("V", (1,), (2,), views={2: 1}),
        Op("B", (2,), (3,)),
        Op("dB", (3, 2), (4,), backward=True),
    )
    problem = Problem(ops, tensors)
    for tensor in (1, 2):
        (copy,) = copies_of(problem, range(4), tensor)
        assert copy.reads == (1, 2, 3)
    schedule, added = recomputing_instead(problem, range(4), 0) or ([], [])
    assert added == [0, 1]
    assert schedule == [0, 1, 2, 0, 1, 3]


@settings(max_examples=100, deadline=None)
@given(problems(), st.data())
def test_opposites_are_valid_and_about_one_op(problem: Problem, data: st.DataObject) -> None:
    forward = [i for i in problem.forward if problem.ops[i].recomputable]
    if not forward:
        return
    kept = data.draw(st.sets(st.sampled_from(sorted(problem.stashed)))) if problem.stashed else set()
    schedule = recompute_schedule(problem, kept)
    index = data.draw(st.sampled_from(forward))
    runs = Counter(schedule)
    if runs[index] > 1:
        other = keeping_instead(problem, schedule, index)
        assert Counter(other)[index] == 1
        assert not Counter(other) - runs, "keeping runs nothing that did not run before"
    else:
        made = recomputing_instead(problem, schedule, index)
        if made is None:
            return
        other, added = made
        assert index in added
        assert Counter(other) == runs + Counter(added)
        assert all(problem.ops[i].recomputable and not problem.ops[i].backward for i in added if i != index)
    simulate(problem, other)


@pytest.mark.parametrize("tensor", [1, 2])
def test_copies_agree_with_the_simulator(tensor: int) -> None:
    """A copy ends with its last reader: with one buffer more, what is alive then is more by its bytes."""
    problem, schedule = chain(), [0, 1, 2, 3, 0, 1, 4, 5]
    live = [step.activations for step in simulate(problem, schedule).steps]
    per_step = [
        sum(copy.made <= step <= copy.last for other in range(1, 7) for copy in copies_of(problem, schedule, other))
        for step in range(len(schedule))
    ]
    assert live == [8 * count for count in per_step]
    assert copies_of(problem, schedule, tensor)
