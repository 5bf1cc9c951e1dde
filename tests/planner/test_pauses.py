"""Pauses come the cheapest first, though what one costs is found out late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckplan.planner import Problem
from ckplan.planner.copies import Copies
from ckplan.planner.order import best_order
from ckplan.planner.pauses import Pauses
from ckplan.planner.peak import peak_of
from tests.planner.problems import problems


@given(problem=problems(max_forward=16), share=st.floats(0.4, 1), scattered=st.booleans())
def test_the_cheapest_come_first(problem: Problem, share: float, scattered: bool) -> None:
    order = best_order(problem)
    copies = Copies(problem, order)

    def factors(count: int) -> list[float]:
        return [1.0 + 7 * number % 3 for number in range(count)]

    pauses = Pauses(
        problem, copies, copies.live(), int(share * peak_of(problem, order)), factors if scattered else None
    )
    found = list(pauses.cheapest_first())
    assert [pause.price for pause in found] == sorted(pause.price for pause in found)
    assert all(pause.cost == problem.schedule_cost(pause.again) for pause in found)


@given(problem=problems(max_forward=16), share=st.floats(0.4, 1), part=st.floats(0, 0.5))
def test_what_cannot_be_paid_is_left_out(problem: Problem, share: float, part: float) -> None:
    order = best_order(problem)
    copies = Copies(problem, order)
    budget, most = int(share * peak_of(problem, order)), part * problem.cost
    everything = Pauses(problem, copies, copies.live(), budget).cheapest_first()
    payable = Pauses(problem, copies, copies.live(), budget, most_cost=most).cheapest_first()
    assert list(payable) == [pause for pause in everything if pause.cost <= most]


@given(problem=problems(max_forward=16), share=st.floats(0.4, 1), most=st.integers(1, 8))
def test_each_of_some_together_lowers_what_the_others_leave(problem: Problem, share: float, most: int) -> None:
    order = best_order(problem)
    copies = Copies(problem, order)
    budget = int(share * peak_of(problem, order))
    pauses = Pauses(problem, copies, copies.live(), budget)
    chosen = pauses.together(most)
    assert len(chosen) <= most
    assert chosen[:1] == list(pauses.cheapest_first())[:1]
    left = copies.live() - budget
    for pause in chosen:
        spanned = left[pause.start + 1 : pause.stop]
        assert spanned.max() > 0
        spanned -= pause.bytes
