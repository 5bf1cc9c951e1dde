"""The simulator against hand-made cases and against a slow, independent liveness count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckplan.errors import UsageError
from ckplan.planner import Kind, Problem, live_at, lower_bound, recompute_schedule, simulate, working_set
from ckplan.planner.peak import live_bytes
from tests.planner.problems import ProblemBuilder, chain, problems


def count_liveness(problem: Problem, schedule: Sequence[int]) -> list[int]:
    """Live activation bytes by step, by asking at each step which copies are read later. No sharing of buffers."""
    copies: list[tuple[int, int, int]] = []  # tensor, born, last read
    latest: dict[int, int] = {}
    returned: set[int] = set()
    for step, index in enumerate(schedule):
        for tensor in problem.ops[index].inputs:
            if tensor in latest:
                name, born, _ = copies[latest[tensor]]
                copies[latest[tensor]] = (name, born, step)
        for tensor in problem.ops[index].outputs:
            first_output = problem.tensors[tensor].kind is Kind.OUTPUT and tensor not in returned
            latest[tensor] = len(copies)
            copies.append((tensor if not first_output else -1, step, step))
            returned.add(tensor)
    return [
        sum(problem.tensors[t].bytes for t, born, died in copies if t >= 0 and born <= step <= died)
        + problem.ops[index].workspace
        for step, index in enumerate(schedule)
    ]


def without_sharing(problem: Problem) -> Problem:
    ops = tuple(
        type(op)(op.name, op.inputs, op.outputs, op.cost, op.workspace, op.backward, op.recomputable, op.heavy)
        for op in problem.ops
    )
    return Problem(ops, problem.tensors)


@given(problems(), st.data())
def test_matches_an_independent_count(problem: Problem, data: st.DataObject) -> None:
    plain = without_sharing(problem)
    kept = data.draw(st.sets(st.sampled_from(range(len(plain.tensors)))))
    schedule = recompute_schedule(plain, kept)
    timeline = simulate(plain, schedule)
    assert [step.activations for step in timeline.steps] == count_liveness(plain, schedule)


@given(problems())
def test_sharing_only_saves_and_the_bound_holds(problem: Problem) -> None:
    order = range(len(problem.ops))
    shared = simulate(problem, order).peak_activations
    assert lower_bound(problem)[0] <= shared <= simulate(without_sharing(problem), order).peak_activations
    bound, index = lower_bound(problem)
    assert working_set(problem, index) == bound


@given(problems())
def test_the_peak_is_the_sum_of_what_is_alive_there(problem: Problem) -> None:
    order = range(len(problem.ops))
    timeline = simulate(problem, order)
    at = timeline.peak_step
    alive = sum(size for _, size in live_at(problem, order, at))
    assert timeline.steps[at].activations == alive + problem.ops[at].workspace


def test_an_overwritten_input_costs_nothing() -> None:
    build = ProblemBuilder()
    x, a, b = build.tensor(8, Kind.INPUT), build.tensor(8), build.tensor(8)
    build.op([x], [a])
    build.op([a], [b], inplace={b: (a,)})
    build.op([b], [build.tensor(1, Kind.OUTPUT)])
    assert [step.activations for step in simulate(build.build(), range(3)).steps] == [8, 8, 8]


def test_an_input_that_is_read_again_or_twice_is_not_overwritten() -> None:
    for reads in ([0, 0], [0]):
        build = ProblemBuilder()
        x, a, b = build.tensor(8, Kind.INPUT), build.tensor(8), build.tensor(8)
        build.op([x], [a])
        build.op([a for _ in reads], [b], inplace={b: (a,)})
        build.op([b, *([a] if len(reads) == 1 else [])], [build.tensor(1, Kind.OUTPUT)])
        assert simulate(build.build(), range(3)).peak_activations == 16


def test_a_view_holds_the_memory_of_its_source() -> None:
    build = ProblemBuilder()
    x, a, view = build.tensor(8, Kind.INPUT), build.tensor(8), build.tensor(8)
    build.op([x], [a])
    build.op([a], [view], views={view: a})
    build.op([x], [build.tensor(4)])
    build.op([view], [build.tensor(1, Kind.OUTPUT)])
    assert [step.activations for step in simulate(build.build(), range(4)).steps] == [8, 8, 12, 8]


def test_a_dead_buffer_is_held_for_the_next_tensor_of_its_shape() -> None:
    build = ProblemBuilder()
    x, a, b, c = build.tensor(8, Kind.INPUT), build.tensor(8), build.tensor(100), build.tensor(8)
    build.op([x], [a])
    build.op([a], [b])
    build.op([b], [build.tensor(1)])
    build.op([x], [c])
    build.op([c], [build.tensor(1, Kind.OUTPUT)])
    problem = build.build()
    assert [step.activations for step in simulate(problem, range(5)).steps] == [8, 108, 101, 8, 8]
    shapes = ["small" if tensor.bytes == 8 else None for tensor in problem.tensors]
    # The byte that nobody reads is held to the end as well.
    assert [step.activations for step in simulate(problem, range(5), shapes).steps] == [8, 108, 109, 9, 9]


def test_what_nobody_reads_takes_no_dead_buffer_but_leaves_one() -> None:
    build = ProblemBuilder()
    x, a, b, unread, c = (build.tensor(8, kind) for kind in (Kind.INPUT, *[Kind.ACTIVATION] * 4))
    build.op([x], [a])
    build.op([a], [b])
    build.op([b], [unread])
    build.op([x], [c])
    build.op([c], [build.tensor(1, Kind.OUTPUT)])
    problem = build.build()
    # `a` is free when the unread tensor is made, which is allocated all the same; `c` then lies where it did.
    assert [step.activations for step in simulate(problem, range(5), ["s"] * 5 + [None]).steps] == [8, 16, 16, 8, 8]
    lone = ProblemBuilder()
    x, unread, c = lone.tensor(8, Kind.INPUT), lone.tensor(8), lone.tensor(8)
    lone.op([x], [unread])
    lone.op([x], [c])
    lone.op([c], [lone.tensor(1, Kind.OUTPUT)])
    assert [step.activations for step in simulate(lone.build(), range(3), ["s"] * 3 + [None]).steps] == [8, 8, 8]


def test_a_late_output_in_a_buffer_that_is_there_saves_nothing() -> None:
    build = ProblemBuilder()
    x, a, b, late = build.tensor(8, Kind.INPUT), build.tensor(8), build.tensor(1), build.tensor(8)
    build.op([x], [a])
    build.op([a], [b])
    build.op([b], [late])
    build.op([late], [build.tensor(1, Kind.OUTPUT)])
    problem = build.build()
    ops = [replace(op, workspace=2, late=(late,), early=10) if late in op.outputs else op for op in problem.ops]
    problem = replace(problem, ops=tuple(ops))
    # Alone, the 10 early bytes are gone when the 8 of the output come; in the dead buffer of `a`, they stand beside it.
    assert simulate(problem, range(4)).steps[2].activations == 1 + 8 + 2
    assert simulate(problem, range(4), ["s", "s", None, "s", None]).steps[2].activations == 1 + 8 + 10


def test_what_a_late_output_of_the_file_is_made_from_counts_as_activations() -> None:
    build = ProblemBuilder()
    x, a, late = build.tensor(8, Kind.INPUT), build.tensor(8), build.tensor(8, Kind.OUTPUT)
    build.op([x], [a])
    build.op([a], [late])
    problem = build.build()
    ops = (problem.ops[0], replace(problem.ops[1], workspace=2, late=(late,), early=10))
    problem = replace(problem, ops=ops)
    step = simulate(problem, range(2)).steps[1]
    assert (step.activations, step.live) == (8 + 10, 8 + 8 + 8 + 2)
    assert live_bytes(problem, (0, 1)).tolist() == [8, 8 + 10]
    assert working_set(problem, 1) == 8 + 10


@pytest.mark.parametrize(("shapes", "peak"), [(("a", "a"), 8), (("a", "b"), 16), ((None, None), 16)])
def test_an_input_is_overwritten_if_its_shape_is_known_to_be_the_same(
    shapes: tuple[str | None, ...], peak: int
) -> None:
    build = ProblemBuilder()
    x, a, b = build.tensor(8, Kind.INPUT), build.tensor(8), build.tensor(8)
    build.op([x], [a])
    build.op([a], [b], inplace={b: (a,)})
    build.op([b], [build.tensor(1, Kind.OUTPUT)])
    assert simulate(build.build(), range(3)).peak_activations == 8
    assert simulate(build.build(), range(3), [None, *shapes, None]).peak_activations == peak


def test_outputs_count_as_total_only() -> None:
    timeline = simulate(chain(4), range(len(chain(4).ops)))
    assert timeline.steps[-1].live - timeline.steps[-1].activations == 100 + 4 * 10 + 1


def test_schedules_that_cannot_run_are_refused() -> None:
    problem = chain(2)
    with pytest.raises(ValueError, match="never run"):
        simulate(problem, range(len(problem.ops) - 1))
    with pytest.raises(ValueError, match="before it is made"):
        simulate(problem, list(reversed(range(len(problem.ops)))))
    for alien in (-1, len(problem.ops)):
        with pytest.raises(ValueError, match=f"there is no op {alien}, the ids of {len(problem.ops)} ops begin at 0"):
            simulate(problem, [*range(len(problem.ops)), alien])
    for alien_id in ("0", 0.5, True, None):
        with pytest.raises(UsageError, match=f"an op id of the schedule is {alien_id!r}; give whole numbers from 0 on"):
            simulate(problem, [alien_id])  # type: ignore[list-item]
    ids = [np.int64(op) for op in range(len(problem.ops))]
    assert simulate(problem, ids) == simulate(problem, range(len(ids)))  # type: ignore[arg-type]


def test_what_must_not_run_again_is_not_run_again() -> None:
    """A second draw of a mask is another mask: the gradient would be that of another step."""
    build = ProblemBuilder()
    x, mask, y = build.tensor(8, Kind.INPUT), build.tensor(8), build.tensor(8)
    build.op([x], [mask], name="draw", recomputable=False)
    build.op([x, mask], [y], name="times")
    assert len(simulate(build.build(), [0, 1, 1]).steps) == 3
    with pytest.raises(ValueError, match="op 'draw' stands there twice, and may run only once"):
        simulate(build.build(), [0, 1, 0, 1])
