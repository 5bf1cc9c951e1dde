"""A bound on overhead from several moments of a step at once.

`ckplan.planner.overhead_bound` looks at one moment. Here the moments are backward ops along a path,
whose first runs divide any schedule into stages, whatever its order. For each stage and op a variable says whether the
op runs in it, for each moment and activation one whether it is held through it; as in Checkmate (Jain et al., MLSys
2020), but with a stage for a moment, not for each op, so that nothing is assumed about the order within. What is held
through a whole stage is alive beside each op that runs in it. Every schedule satisfies all constraints, so the least
cost of recomputation in the model, and of its linear relaxation, is one that no schedule within the budget avoids.

The linear relaxation by itself is weak: half of an op may run in each of two stages from half of an input. So for each
pair of moments a further variable says whether an op runs anywhere between them; for the last stages alone
these are the constraints of the minimum cut, which is exact.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ckplan.planner.bounds import working_set
from ckplan.planner.exact.contracted_bound import contracted_overhead
from ckplan.planner.exact.heaviest_path import heaviest_path
from ckplan.planner.overhead_bound import bound_at, is_closed, least_overhead, whole_overhead
from ckplan.planner.problem import Kind, Problem

_TOLERANCE: Final = 1e-5
"""What the solvers may be wrong by, in the cost of a step."""
_ATTEMPTS: Final = ((6, False), (2, True), (4, True), (10, False), (6, True), (14, False), (8, True))
"""How many moments are taken into account, and whether in the integral model or its relaxation, one after the other."""
_QUICK: Final = 6
"""How many moments are taken into account where the bound is to be had soon."""
_MOST_OPS: Final = 100
"""Ops of the largest graph for which that is soon."""
_PAIR: Final = 2
"""How many are taken into account for larger graphs."""
_MOST_OPS_OF_PAIR: Final = 600
"""Ops of the largest graph for which that is soon."""
_WHOLE: Final = 3
"""At how many moments activations are held whole or not at all."""
_SHARE: Final = 0.5
"""Of the time left, what one of these may take."""
_STATES: Final = 4e6
"""Ops times states that a search may look at where the bound is to be had soon: two to three seconds."""


def proven_overhead(problem: Problem, budget: int, most: float = math.inf) -> float:
    """Seconds of recomputation that no schedule within a budget can avoid: the best bound that is had soon.

    For graphs of up to 600 ops that of one moment at which activations are held whole or not at all; where it leaves a
    gap to a schedule, that of what few ops stand for the graph, and that of two moments of the graph itself, up to 100
    ops of several. For larger graphs that of one moment. The same every time.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        most: seconds of recomputation of the schedule that the bound is to stand beside.
    """
    if len(problem.ops) > _MOST_OPS_OF_PAIR:
        return float(least_overhead(problem, budget))
    best, values = _at_moments(problem, budget)
    if not is_closed(problem, best, most):
        best = max(best, contracted_overhead(problem, budget, most, work=_STATES))
    path = _path(problem, values)
    # Without a schedule to stand beside, as where time is short, this is worth its tenths of a second.
    if path and best > 0 and not (most and is_closed(problem, best, most)):
        count = _QUICK if len(problem.ops) <= _MOST_OPS else _PAIR
        best = max(best, _Stages(problem, budget, sorted(path[:count]), False).bound())
    return best


def _at_moments(problem: Problem, budget: int, deadline: float = math.inf) -> tuple[float, dict[int, float]]:
    """The best bound of any one moment, and those of backward ops; of as many as there is time for."""
    values: dict[int, float] = {}
    for index in problem.backward:
        room = budget - working_set(problem, index)
        if room >= 0:
            values[index] = float(bound_at(problem, index, room))
        if time.monotonic() > deadline:
            break
    highest = sorted((index for index, value in values.items() if value > 0), key=lambda index: (-values[index], index))
    return max(float(whole_overhead(problem, budget, highest[:_WHOLE])), *values.values(), 0.0), values


def staged_overhead(problem: Problem, budget: int, seconds: float = 60.0, most: float = math.inf) -> float:
    """Seconds of recomputation that no schedule within a budget can avoid.

    Never less than `whole_overhead`. Holds for any order and any number of recomputations of forward ops.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        seconds: time limit; the bound is what was proven until then.
        most: seconds of recomputation of a schedule that is known: more than these need not be proven.
    """
    deadline = time.monotonic() + seconds
    best, values = _at_moments(problem, budget, deadline)
    left = deadline - time.monotonic()
    if left > 0 and not is_closed(problem, best, most):
        best = max(best, contracted_overhead(problem, budget, most, seconds=left * _SHARE))
    path = _path(problem, values)
    if not path or best <= 0:
        return best
    for count, integral in _ATTEMPTS:
        left = deadline - time.monotonic()
        if left <= 0 or is_closed(problem, best, most):
            break
        best = max(best, _Stages(problem, budget, sorted(path[:count]), integral).bound(left * _SHARE))
    return best


def _path(problem: Problem, values: Mapping[int, float]) -> list[int]:
    """The heaviest path of backward ops along what they read from each other, heaviest first."""

    def readers(index: int) -> list[int]:
        read = (reader for tensor in problem.ops[index].outputs for reader in problem.consumers[tensor])
        return [reader for reader in read if problem.ops[reader].backward]  # instances of others mix the passes

    return heaviest_path(problem.backward, values, readers)


class _Stages:
    """The model for some moments, each of which depends on the one before."""

    def __init__(self, problem: Problem, budget: int, moments: Sequence[int], integral: bool) -> None:
        from ortools.linear_solver.python import model_builder  # a tenth of a second

        self.problem, self.budget, self.moments, self.integral = problem, budget, moments, integral
        model: Any = model_builder.Model  # which has no types
        self.model = model()
        self.last = len(moments)
        root, tensors = problem.view_root, problem.tensors
        self.held = [
            tensor
            for tensor, producer in enumerate(problem.producer)
            if producer >= 0 and root[tensor] == tensor and tensors[tensor].kind is Kind.ACTIVATION
        ]
        counted = set(self.held)
        self.reads = [sorted({root[tensor] for tensor in op.inputs} & counted) for op in problem.ops]
        self.runs: list[dict[int, Any]] = [{} for _ in range(self.last + 1)]
        """By stage and op; the stage of a moment ends with it."""
        self.holds: list[dict[int, Any]] = [{} for _ in moments]
        """By moment and activation."""
        self._runs()
        self._holds()
        self._needs(self.runs, lambda stage, tensor: self._before(stage, tensor))
        for start in range(self.last):
            for stop in range(start + 2, self.last + 1):
                self._between(start, stop)
        for stage in range(1, self.last):
            self._held_through(stage)

    def bound(self, seconds: float = math.inf) -> float:
        """What the solver proves within a time, in seconds of recomputation."""
        from ortools.linear_solver.python import model_builder

        solver = model_builder.Solver("SCIP" if self.integral else "GLOP")
        if seconds < math.inf:
            solver.set_time_limit_in_seconds(seconds)
        status = solver.solve(self.model)
        if status == model_builder.SolveStatus.OPTIMAL:
            proven = float(solver.objective_value)
        elif self.integral and status == model_builder.SolveStatus.FEASIBLE:
            proven = float(solver.best_objective_bound)
        else:
            return 0.0  # also where the budget is infeasible, which is for others to say
        return max(0.0, proven - _TOLERANCE) * self.problem.cost if math.isfinite(proven) else 0.0

    def _variable(self) -> Any:
        return self.model.new_bool_var("") if self.integral else self.model.new_num_var(0, 1, "")

    def _at_most(self, left: Any, right: Any) -> None:
        if not (isinstance(left, int) and isinstance(right, int)):
            self.model.add(left <= right)

    def _runs(self) -> None:
        """Each op runs in one of the stages that its place allows, and a forward op in any later one again."""
        ops = self.problem.ops
        before = [_reaching(self.problem, moment) for moment in self.moments]
        after = [_reached(self.problem, moment) for moment in self.moments]
        self.first = [sum(index in found for found in after) for index in range(len(ops))]
        objective: Any = 0
        for index, op in enumerate(ops):
            first = self.first[index]
            latest = next((stage for stage, found in enumerate(before) if index in found), self.last)
            for stage in range(first, self.last + 1 if op.repeatable else latest + 1):
                self.runs[stage][index] = 1 if first == latest == stage else self._variable()
            if first < latest:
                self.model.add(sum(self.runs[stage][index] for stage in range(first, latest + 1)) >= 1)
            again = sum(runs[index] for runs in self.runs if index in runs) - 1
            objective += op.cost / self.problem.cost * again
        self.model.minimize(objective)

    def _holds(self) -> None:
        """What is held at a moment was held before or made in its stage, and fits beside the moment's working set."""
        problem = self.problem
        for stage, moment in enumerate(self.moments):
            own = self._own(moment)
            room = self.budget - working_set(problem, moment)
            row: Any = 0
            for tensor in self.held:
                size = problem.tensors[tensor].bytes
                if self.first[problem.producer[tensor]] <= stage and (tensor in own or size <= room):
                    self.holds[stage][tensor] = held = self._variable()
                    made = self.runs[stage].get(problem.producer[tensor], 0)
                    self._at_most(held, self._before(stage, tensor) + made)
                    if tensor not in own:
                        row += size / self.budget * held
            if not isinstance(row, int):
                self.model.add(row <= room / self.budget)

    def _own(self, index: int) -> set[int]:
        op, root = self.problem.ops[index], self.problem.view_root
        return {root[tensor] for tensor in (*op.inputs, *op.outputs)}

    def _before(self, stage: int, tensor: int) -> Any:
        return self.holds[stage - 1].get(tensor, 0) if stage else 0

    def _needs(self, runs: Sequence[dict[int, Any]], before: Any) -> None:
        """An op runs where what it reads was held before or is made in the same stage."""
        for stage, row in enumerate(runs):
            for index, run in row.items():
                for tensor in self.reads[index]:
                    self._at_most(run, before(stage, tensor) + row.get(self.problem.producer[tensor], 0))

    def _between(self, start: int, stop: int) -> None:
        """The same for the stages after one moment and up to another taken together."""
        stages: dict[int, Any] = {}
        for index in range(len(self.problem.ops)):
            runs = [self.runs[stage][index] for stage in range(start + 1, stop + 1) if index in self.runs[stage]]
            if any(isinstance(run, int) for run in runs):
                stages[index] = 1
            elif runs:
                stages[index] = anywhere = self.model.new_num_var(0, 1, "")
                self.model.add(anywhere <= sum(runs))
                for run in runs:
                    self.model.add(run <= anywhere)
        self._needs([stages], lambda _, tensor: self.holds[start].get(tensor, 0))

    def _held_through(self, stage: int) -> None:
        """What is held at both ends of a stage and not made in it is alive beside each op of the stage."""
        problem, through = self.problem, {}
        for tensor, held in self.holds[stage].items():
            before = self._before(stage, tensor)
            if not isinstance(before, int):
                through[tensor] = alive = self.model.new_num_var(0, 1, "")
                made = self.runs[stage].get(problem.producer[tensor], 0)
                self.model.add(alive >= before + held - 1 - made)
        for index, run in self.runs[stage].items():
            own = self._own(index)
            room = self.budget - working_set(problem, index)
            beside = [tensor for tensor in through if tensor not in own]
            total = sum(problem.tensors[tensor].bytes for tensor in beside)
            if total > room and index not in self.moments:
                used = sum(problem.tensors[tensor].bytes / self.budget * through[tensor] for tensor in beside)
                self.model.add(used <= room / self.budget + (total - room) / self.budget * (1 - run))


def _reaching(problem: Problem, moment: int) -> set[int]:
    """Ops on which an op depends, itself included."""
    found = {moment}
    wanted = set(problem.ops[moment].inputs)
    for index in range(moment - 1, -1, -1):
        if not wanted.isdisjoint(problem.ops[index].outputs):
            found.add(index)
            wanted.update(problem.ops[index].inputs)
    return found


def _reached(problem: Problem, moment: int) -> set[int]:
    """Ops that depend on an op, without itself."""
    found: set[int] = set()
    made = set(problem.ops[moment].outputs)
    for index in range(moment + 1, len(problem.ops)):
        if not made.isdisjoint(problem.ops[index].inputs):
            found.add(index)
            made.update(problem.ops[index].outputs)
    return found
