"""Which repeats of a schedule serve something, told by the copies that are read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckplan.planner import Problem
from ckplan.planner.copies import Copies
from tests.planner.problems import problems


def needed(problem: Problem, schedule: list[int]) -> list[bool]:
    """The same step by step, by definition."""
    made: dict[int, int] = {}
    reads: list[set[int]] = []
    for step, index in enumerate(schedule):
        reads.append({made[tensor] for tensor in problem.ops[index].inputs if tensor in made})
        made.update(dict.fromkeys(problem.ops[index].outputs, step))
    found = [index not in schedule[:step] for step, index in enumerate(schedule)]
    for step in reversed(range(len(schedule))):
        if found[step]:
            for maker in reads[step]:
                found[maker] = True
    return found


@given(problem=problems(max_forward=10), data=st.data())
def test_repeats_are_needed_that_lead_to_a_first_run(problem: Problem, data: st.DataObject) -> None:
    schedule = list(range(len(problem.ops)))
    for _ in range(data.draw(st.integers(0, 12))):
        step = data.draw(st.integers(1, len(schedule)))
        schedule.insert(step, data.draw(st.sampled_from(schedule[:step])))
    assert Copies(problem, schedule).needed().tolist() == needed(problem, schedule)
