"""Eviction with the future known: a schedule that stays within a budget, made in one pass over the graph.

The ops run in a given order. Before an op allocates, tensors are evicted until it fits; before it runs, what it reads
and is gone is recomputed, with what that needs. Which tensor goes is decided in `ckplan.planner.eviction.weights`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from ckplan.planner.eviction.buffer_graph import Course, buffer_graph
from ckplan.planner.eviction.state import Eviction
from ckplan.planner.eviction.weights import PLAIN, Weights
from ckplan.planner.problem import Problem


def evict(
    problem: Problem,
    budget: int,
    order: Sequence[int],
    weights: Weights = PLAIN,
    most_cost: float = float("inf"),
) -> list[int] | None:
    """A schedule that keeps to a budget where eviction can do that.

    O(n log n) for n reads, times the recomputations.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations. Where what an op needs at once is more, the schedule goes on above it; so may
            chains of recomputations that hold each other's inputs. Judge it with `ckplan.planner.peak.peak_of`.
        order: all ops once, in a topological order.
        weights: what to evict first.
        most_cost: give up when the schedule costs more seconds than this, as soon as that is certain: of what is still
            to come the ops that have not run yet are known, and those that made what is gone and is read again.

    Returns:
        Op ids in execution order, or None if it was given up.
    """
    found = evicting(problem, budget, order, weights, most_cost).schedule
    return None if found is None else found.copy()


@dataclass(frozen=True)
class Pass:
    """What a pass came to.

    Attributes:
        schedule: op ids in execution order, or None if it was given up.
        evicted: the roots that it evicted, those until then if it was given up.
        contenders: those that it can have judged.
    """

    schedule: list[int] | None
    evicted: frozenset[int]
    contenders: frozenset[int]

    def is_same(self, dearer: Set[int], instead_of: Set[int]) -> bool:
        """Whether a pass comes to the same that makes other roots dearer to evict, by the same factor.

        It does where all that was evicted gets dearer by one ratio, and nothing else by less.

        Args:
            dearer: the roots that the other pass makes dearer.
            instead_of: those that this one made dearer.
        """
        more, less = dearer - instead_of, instead_of - dearer
        if self.evicted <= less or (self.evicted <= more and self.contenders <= more):
            return True
        return self.evicted.isdisjoint(more) and self.contenders.isdisjoint(less)


def evicting(problem: Problem, budget: int, order: Sequence[int], weights: Weights, most_cost: float) -> Pass:
    """The same as `evict`, with what was evicted; see there for the arguments."""
    run = _run if weights.bias else _lately
    return run(problem, budget, tuple(order), weights, most_cost)


def _run(problem: Problem, budget: int, order: tuple[int, ...], weights: Weights, most_cost: float) -> Pass:
    state = _beginning(_along(problem, order), budget).judged_by(weights, most_cost)
    finished = state.run()
    state.score = None  # it refers to the state, and would keep dozens of megabytes for the garbage collector to find
    return Pass(state.schedule if finished else None, frozenset(state.evicted), state.contenders)


_lately = lru_cache(maxsize=16)(_run)
"""The same, kept for a while: whoever makes some tensors dearer to evict asks what was evicted without that."""


@lru_cache(maxsize=4)
def _along(problem: Problem, order: tuple[int, ...]) -> Course:
    return Course(buffer_graph(problem), order)


@lru_cache(maxsize=8)
def _beginning(course: Course, budget: int) -> Eviction:
    """The state of all passes with a budget when memory first runs out."""
    state = Eviction(course, budget)
    state.run()
    # What is read no more by then is freed, and not kept when it is made again.
    left = (base for base in course.graph.repeatable if course.last_use[base] >= state.now)
    state.contenders = frozenset(left)
    return state
