"""A bound on overhead from several moments of a contraction at once, with activations held whole or not at all.

As in `ckplan.planner.exact.stages` the moments are ops of which each depends on the one before, and their first runs
divide any schedule into stages, whatever its order. Variables say which ops run in a stage and which activations are
held at a moment. An op runs in a stage where each activation that it reads was held before or is made in that stage;
what is held through a whole stage, or up to the op at its end, takes its place beside every op that runs in between.
Every schedule satisfies this. A contraction has so few ops that constraint programming finds the optimum of the model
in tenths of a second; four moments in a row prove as much as seven or ten.

One op aside that runs once, such as the gradient of a weight, may need more than the moments do. Its run divides the
stage that it falls into, whichever that is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ckplan.planner.exact.contraction import Contraction, bits, dependence
from ckplan.planner.exact.heaviest_path import heaviest_path

_MOMENTS: Final = 4
"""How many moments are taken into account."""
_UNITS: Final = 1_000_000
"""The budget in the integers of the solver, rounded down as all bytes are."""
_COST_UNITS: Final = 100_000_000
"""The cost of all ops in the integers of the solver, rounded down."""


def overhead_of_stages(
    small: Contraction, budget: int, bounds: Mapping[int, float], work: float, seconds: float = math.inf
) -> float:
    """Seconds of recomputation that no schedule of a contraction within a budget can avoid.

    Args:
        small: the contraction, none of whose ops needs more than the budget by itself.
        budget: bytes of activations.
        bounds: by op the seconds that its moment by itself proves; the moments with most are taken, along one path.
        work: what the solver may do, in its own deterministic units of about a second.
        seconds: time limit of the solver.
    """
    before = dependence(small)

    def dependents(index: int) -> list[int]:
        return [other for other in sorted(bounds, reverse=True) if other > index and before[other] >> index & 1]

    path = heaviest_path(sorted(bounds), bounds, dependents)
    moments = sorted(path[:_MOMENTS])
    return _Stages(small, budget, moments).bound(work, seconds) if len(moments) > 1 else 0.0


class _Stages:
    """The model of some moments, each of which depends on the one before.

    Each stage but the last ends with an op: that of a moment for the first time, or the one aside if it runs before the
    next moment. If it does not, the stage that would end with it is empty.
    """

    def __init__(self, small: Contraction, budget: int, moments: list[int]) -> None:
        from ortools.sat.python import cp_model  # half a second

        self.ops, self.before, self.moments = small.ops, dependence(small), moments
        unit = max(1, budget // _UNITS)
        self.sizes, self.own = [size // unit for size in small.sizes], [op.own // unit for op in small.ops]
        self.budget = budget // unit
        self.maker = {place: index for index, op in enumerate(small.ops) for place in bits(op.makes)}
        self.unit = _COST_UNITS / max(sum(op.cost for op in small.ops), 1e-30)
        self.aside = self._aside()
        self.ends = self._ends()
        """By stage the op that it ends with; the last stage has none."""
        self.last = len(self.ends)
        self.model: Any = cp_model.CpModel()
        self.runs: list[dict[int, Any]] = [{} for _ in range(self.last + 1)]
        """By stage and op."""
        self.holds: list[dict[int, Any]] = [{} for _ in range(self.last)]
        """By stage and activation: while the op runs that the stage ends with, and of what that overwrites, then."""
        self._runs()
        self._holds()
        for stage in range(1, self.last):
            self._held_through(stage)

    def bound(self, work: float, seconds: float) -> float:
        """What the solver proves, in seconds of recomputation."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.linearization_level = 2
        solver.parameters.max_deterministic_time = work
        solver.parameters.max_time_in_seconds = max(seconds, 0.0)
        known = solver.solve(self.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        # Where the budget is too small for any schedule, that is for others to say.
        return max(solver.best_objective_bound, 0.0) / self.unit if known else 0.0

    def _depends(self, index: int) -> int:
        """How many moments an op depends on."""
        return sum(moment != index and self.before[index] >> moment & 1 for moment in self.moments)

    def _aside(self) -> int | None:
        """The op that needs most of those that run once, after some moments and perhaps before another."""
        needed = 0
        for moment in self.moments:
            needed |= self.before[moment]
        candidates = [
            index
            for index, op in enumerate(self.ops)
            if not op.again and not needed >> index & 1 and 0 < self._depends(index) < len(self.moments)
        ]
        return max(candidates, key=lambda index: self.own[index], default=None)

    def _ends(self) -> list[int]:
        ends: list[int] = []
        for number, moment in enumerate(self.moments):
            if self.aside is not None and self._depends(self.aside) <= number:
                ends.append(self.aside)
            ends.append(moment)
        return ends

    def _runs(self) -> None:
        """Each op runs in one of the stages that its place allows, and one that may run again in any later one."""
        stage_of = [self.ends.index(moment) for moment in self.moments]
        self.first: list[int] = []
        objective: Any = 0
        for index, op in enumerate(self.ops):
            depends = self._depends(index)
            first = stage_of[depends - 1] + 1 if depends else 0
            by = [
                stage for stage, moment in zip(stage_of, self.moments, strict=True) if self.before[moment] >> index & 1
            ]
            latest = min(by, default=self.last)
            if index in self.moments:
                first = latest
            self.first.append(first)
            for stage in range(first, self.last + 1 if op.again else latest + 1):
                if index != self.aside or stage == self.last or self.ends[stage] == index:
                    self.runs[stage][index] = self.model.new_bool_var("")
            windows = [self.runs[stage][index] for stage in range(first, latest + 1) if index in self.runs[stage]]
            if op.again:
                self.model.add_bool_or(windows)
                runs = sum(self.runs[stage][index] for stage in range(first, self.last + 1))
                objective += int(op.cost * self.unit) * (runs - 1)
            else:
                self.model.add_exactly_one(windows)
        self.model.minimize(objective)

    def _holds(self) -> None:
        """What is held or read was held before or is made in the stage; what is held at its end fits in there."""
        for stage, holds in enumerate(self.holds):
            for place in range(len(self.sizes)):
                if self.first[self.maker[place]] <= stage:
                    holds[place] = self.model.new_bool_var("")
        for stage, holds in enumerate(self.holds):
            for place, held in holds.items():
                self.model.add_bool_or([*self._there(stage, place), ~held])
            end = self.ends[stage]
            ran, counted = self.runs[stage][end], self._counted(end)
            for place in bits(counted):
                self.model.add_implication(ran, holds[place])
            beside = sum(self.sizes[place] * held for place, held in holds.items() if not counted >> place & 1)
            self.model.add(beside <= self.budget - self.own[end]).only_enforce_if(ran)
            if end == self.aside:
                for index, run in self.runs[stage].items():
                    if index != end:
                        self.model.add_implication(run, ran)
        for stage, runs in enumerate(self.runs):
            for index, run in runs.items():
                for place in bits(self.ops[index].reads):
                    self.model.add_bool_or([*self._there(stage, place), ~run])

    def _counted(self, index: int) -> int:
        """What the working set of an op counts."""
        op = self.ops[index]
        return (op.reads & ~op.beside) | op.makes

    def _there(self, stage: int, place: int) -> list[Any]:
        """What an activation may be there in a stage by: held before it, or made in it."""
        there = [self.holds[stage - 1][place]] if stage and place in self.holds[stage - 1] else []
        made = self.runs[stage].get(self.maker[place])
        return there if made is None else [*there, made]

    def _held_through(self, stage: int) -> None:
        """What is held before a stage, and at its end or read there, is alive beside each op unless made in it."""
        end, through = self.ends[stage], {}
        for place, before in self.holds[stage - 1].items():
            made = self.runs[stage].get(self.maker[place])
            otherwise = [~before] if made is None else [~before, made]
            through[place] = alive = self.model.new_bool_var("")
            self.model.add_bool_or([alive, ~self.holds[stage][place], *otherwise])
            if self.ops[end].reads >> place & 1:
                self.model.add_bool_or([alive, *otherwise])
        for index, run in self.runs[stage].items():
            counted, room = self._counted(index), self.budget - self.own[index]
            beside = [place for place in through if not counted >> place & 1]
            if index != end and sum(self.sizes[place] for place in beside) > room:
                used = sum(self.sizes[place] * through[place] for place in beside)
                self.model.add(used <= room).only_enforce_if(run)
