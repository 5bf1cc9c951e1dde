"""The fast peak is the peak of the simulated timeline."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckplan.planner import Problem, recompute_schedule, simulate
from ckplan.planner.order import eager_order
from ckplan.planner.peak import peak_of
from tests.planner.problems import problems


@given(problems(), st.data())
def test_equals_the_timelines(problem: Problem, data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(range(len(problem.tensors)))))
    schedule = recompute_schedule(problem, kept)
    assert peak_of(problem, schedule) == simulate(problem, schedule).peak_activations


@given(problems())
def test_eager_order_is_a_valid_order(problem: Problem) -> None:
    order = eager_order(problem)
    assert sorted(order) == list(range(len(problem.ops)))
    simulate(problem, order)
