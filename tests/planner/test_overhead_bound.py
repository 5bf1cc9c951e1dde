"""The bound on overhead as a function of the room beside an op."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckplan.planner import Kind, Problem
from ckplan.planner.bounds import working_set
from ckplan.planner.eviction.evict import evict
from ckplan.planner.exact.stages import proven_overhead
from ckplan.planner.order import best_order
from ckplan.planner.overhead_bound import bound_at, bound_curve, least_overhead
from ckplan.planner.peak import peak_of
from tests.planner.problems import ProblemBuilder, chain, problems


def lowest_kept(problem: Problem, share: float = 0.0) -> int:
    """A budget that can be kept; below the least of them the bound rises with the price for ever."""
    order = best_order(problem)
    schedule = evict(problem, int(share * peak_of(problem, order)), order)
    assert schedule is not None
    return peak_of(problem, schedule)


@given(problem=problems(max_forward=12), data=st.data())
def test_a_bound_falls_with_the_room_the_slower_the_more_there_is(problem: Problem, data: st.DataObject) -> None:
    # It is the largest of straight lines, one for each price; a price that is not the best one breaks this.
    moment = data.draw(st.integers(0, len(problem.ops) - 1))
    low = lowest_kept(problem) - working_set(problem, moment)
    rooms = sorted(data.draw(st.lists(st.integers(low, 3 * low + 100), min_size=3, max_size=3, unique=True)))
    less, middle, more = (bound_at(problem, moment, room) for room in rooms)
    share = (rooms[1] - rooms[0]) / (rooms[2] - rooms[0])
    assert less >= middle - 1e-6 * problem.cost
    assert middle >= more - 1e-6 * problem.cost
    assert middle <= (1 - share) * less + share * more + 1e-6 * problem.cost


@given(problem=problems(max_forward=12), share=st.floats(0.3, 1))
def test_what_several_moments_prove_one_of_them_proves(problem: Problem, share: float) -> None:
    budget = lowest_kept(problem, share)
    rooms = {index: budget - working_set(problem, index) for index in range(len(problem.ops))}
    bounds = [bound_at(problem, index, room) for index, room in rooms.items() if room >= 0]
    found = least_overhead(problem, budget, moments=10 * len(problem.ops))
    assert min((abs(found - bound) for bound in (0.0, *bounds)), default=0) <= 1e-6 * problem.cost


def test_the_bound_is_no_lower_than_at_any_price_of_the_curve() -> None:
    problem = chain(12)
    peak = peak_of(problem, best_order(problem))
    for budget in range(peak // 4, peak, peak // 16):
        lines = [value - price * (budget - own) for value, price, own in bound_curve(problem) if budget >= own]
        assert least_overhead(problem, budget) >= max(lines, default=0.0) - 1e-6 * problem.cost
    assert least_overhead(problem, peak // 3) > 0


def test_a_forward_op_may_read_what_the_backward_pass_makes() -> None:
    """Instances of others mix the passes, and are bounded like any other."""
    build = ProblemBuilder()
    x, a, b, g, c, h = (build.tensor(8, kind) for kind in (Kind.INPUT, *[Kind.ACTIVATION] * 5))
    build.op([x], [a])
    build.op([a], [b])
    build.op([a, b], [g], backward=True)
    build.op([g], [c])
    build.op([a, c], [h], backward=True)
    build.op([h], [build.tensor(1, Kind.OUTPUT)], backward=True)
    problem = build.build()
    assert proven_overhead(problem, peak_of(problem, range(6))) == 0
