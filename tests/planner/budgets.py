"""What every strategy that takes a budget must do with it."""

from __future__ import annotations

from ckplan.errors import InfeasibleError
from ckplan.planner import Problem, simulate
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.strategies import Strategy


def check_budgets(strategy: Strategy, problem: Problem) -> None:
    """Budgets are kept at no more cost than the plan of the lowest peak has, or refused below that peak."""
    base = peak_of(problem, best_order(problem))
    lowest = strategy.solve(problem)
    least = lowest.predicted.peak_activations
    assert least <= base
    for budget in {base, (base + least) // 2, least}:
        plan = strategy.solve(problem, budget)
        assert plan.predicted == simulate(problem, plan.schedule)
        assert plan.predicted.peak_activations <= budget
        if budget >= base:
            assert plan.recomputed == 0
    try:
        found = strategy.solve(problem, least - 1).predicted.peak_activations
    except InfeasibleError:
        return
    assert found < least  # the search near a budget may find what the search without one did not
