"""Retention intervals: the cheapest schedule along an order by constraint programming.

As in Moccasin (Bartan et al., ICML 2023): each op runs for the first time in a given order, and up to so many times
again; each copy of what it makes is held for an interval of time, a cumulative constraint keeps the sum of all that
is held within the budget. Time is ``stage x (n + 1) + rank``: stage j ends with the first run of the j-th op, and
before it ops of lower rank may run again: not before memory can run out, and not after the last op that may read what
they make. There are O(n) variables for n ops, where Checkmate (Jain et al., MLSys 2020) has O(n^2); none for what is
made once and read by ops that run once, as most gradients are. Views are made anew where what they are views of was; a
kernel that overwrites its input in place frees it one moment earlier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from ckplan.planner.problem import Kind, Problem
from ckplan.planner.recompute import with_views

_UNITS: Final = 1_000_000
"""The budget in the integers of the solver."""
_COST_UNITS: Final = 10_000_000
"""The cost of the step in the integers of the solver."""


@dataclass(frozen=True)
class _Run:
    """One run of an op: its time, and for repeats the stage and whether it takes place."""

    index: int
    number: int
    start: Any
    stage: Any = None
    present: Any = None


class IntervalModel:
    """The model of one problem, budget and order.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        order: all ops once.
        repeats: for each op how often it may run again, if it may at all.
    """

    def __init__(self, problem: Problem, budget: int, order: Sequence[int], repeats: Sequence[int]) -> None:
        from ortools.sat.python import cp_model  # half a second

        self.problem, self.order, self.repeats = problem, list(order), repeats
        self.rank = {index: position for position, index in enumerate(self.order)}
        self.span = len(self.order) + 1
        self.model: Any = cp_model.CpModel()
        self.unit = max(1, -(-budget // _UNITS))
        self.budget = budget // self.unit
        root, tensors = problem.view_root, problem.tensors
        self.held = {
            tensor
            for tensor, producer in enumerate(problem.producer)
            if producer >= 0 and root[tensor] == tensor and tensors[tensor].kind is Kind.ACTIVATION
        }
        self.repeatable = [op.repeatable and any(tensor in self.held for tensor in op.outputs) for op in problem.ops]
        self.reads = [self._reads(index) for index in range(len(problem.ops))]
        self.earliest, self.latest = self._earliest(budget), self._latest()
        self.runs: dict[int, list[_Run]] = {}
        self.ends: dict[tuple[int, int], Any] = {}
        """By tensor and run, the time at which the copy ends, where that is open."""
        self.sizes: dict[tuple[int, int], Any] = {}
        self.chosen: dict[tuple[int, int, int, int], Any] = {}
        """By op, run, root and run of what makes the root, whether it reads that copy."""
        self._build()

    def _reads(self, index: int) -> dict[int, int]:
        """The roots that an op needs, and how long before its own time the last of them may end."""
        problem, op = self.problem, self.problem.ops[index]
        root, tensors = problem.view_root, problem.tensors
        needed = [root[tensor] for tensor in op.inputs if root[tensor] in self.held]
        # A view that the op reads has to have been made from the copy it is read from; that costs no memory.
        early: set[int] = set()
        for tensor, sources in op.inplace.items():
            if tensor in self.held and sources:
                base = root[sources[0]]
                if needed.count(base) == 1 and tensors[base].bytes == tensors[tensor].bytes:
                    early.add(base)
        return {base: int(base in early) for base in needed}

    def _earliest(self, budget: int) -> int:
        """The first stage in which to run again can save memory: all that was made by the one before fits at once."""
        total = workspace = 0
        for stage, index in enumerate(self.order):
            op = self.problem.ops[index]
            workspace = max(workspace, self.problem.workspaces[index])
            total += sum(self.problem.tensors[tensor].bytes for tensor in op.outputs if tensor in self.held)
            if total + workspace > budget:
                return stage + 1
        return self.span

    def _latest(self) -> list[int]:
        """For each op the last stage in which something may read what it makes again."""
        latest = [0] * len(self.problem.ops)
        for index in reversed(self.order):
            last = max(self.rank[index], latest[index] if self.repeatable[index] else 0)
            for base in self.reads[index]:
                maker = self.problem.producer[base]
                latest[maker] = max(latest[maker], last)
        return latest

    def _stages(self, index: int) -> range:
        """The stages in which an op may run again."""
        stages = range(max(self.rank[index] + 1, self.earliest), self.latest[index] + 1)
        return stages if self.repeatable[index] else range(0)

    def _fixed_ends(self) -> dict[int, int]:
        """When what neither runs again nor is read by what may run again is held for the last time."""
        ends = {
            tensor: self.rank[index] * (self.span + 1)
            for index in self.order
            if not self._stages(index)
            for tensor in self.problem.ops[index].outputs
            if tensor in self.held
        }
        for index, reads in enumerate(self.reads):
            again = len(self._stages(index)) > 0
            for base, early in reads.items():
                if again:
                    ends.pop(base, None)
                elif base in ends:
                    ends[base] = max(ends[base], self.rank[index] * (self.span + 1) - early)
        return ends

    def _build(self) -> None:
        model, problem, span = self.model, self.problem, self.span
        horizon = span * span
        intervals, demands = [], []
        fixed = self._fixed_ends()
        for index in self.order:
            op, rank, workspace = problem.ops[index], self.rank[index], problem.workspaces[index]
            runs = [_Run(index, 0, rank * span + rank)]
            stages = self._stages(index)
            for number in range(1, min(self.repeats[index], len(stages)) + 1):
                # Each is later than the one before, also where it does not take place.
                stage = model.new_int_var(stages[0] + number - 1, stages[-1] + number - 1, "")
                runs.append(_Run(index, number, stage * span + rank, stage, model.new_bool_var("")))
            self.runs[index] = runs
            for run in runs:
                for tensor in op.outputs:
                    size = -(-problem.tensors[tensor].bytes // self.unit)
                    if tensor in fixed:
                        length = fixed[tensor] + 1 - run.start
                        intervals.append(model.new_fixed_size_interval_var(run.start, length, ""))
                        demands.append(size)
                    elif tensor in self.held:
                        end = model.new_int_var(rank * span + rank, horizon, "")
                        self.ends[tensor, run.number] = end
                        model.add(end >= run.start)
                        length = self.sizes[tensor, run.number] = model.new_int_var(1, horizon + 1, "")
                        if run.present is None:
                            intervals.append(model.new_interval_var(run.start, length, end + 1, ""))
                        else:
                            intervals.append(
                                model.new_optional_interval_var(run.start, length, end + 1, run.present, "")
                            )
                        demands.append(size)
                if workspace:
                    present = 1 if run.present is None else run.present
                    intervals.append(model.new_optional_fixed_size_interval_var(run.start, 1, present, ""))
                    demands.append(-(-workspace // self.unit))
            for before, after in pairwise(runs):
                model.add(after.start > before.start)
                if before.present is not None:
                    model.add_implication(after.present, before.present)
                for tensor in op.outputs:
                    if tensor in self.held:
                        model.add(self.ends[tensor, before.number] < after.start).only_enforce_if(after.present)
        for index in self.order:
            for run in self.runs[index]:
                for base, early in self.reads[index].items():
                    self._read(run, base, early)
        model.add_cumulative(intervals, demands, self.budget)
        scale = _COST_UNITS / max(problem.cost, 1e-30)
        model.minimize(
            sum(
                max(1, round(problem.ops[index].cost * scale)) * run.present
                for index, runs in self.runs.items()
                for run in runs[1:]
            )
        )

    def _read(self, run: _Run, base: int, early: int) -> None:
        """A run reads one of the copies of a root, which has been made and is still there."""
        maker = self.problem.producer[base]
        last = self.latest[run.index] if run.number else self.rank[run.index]
        stages = self._stages(maker)
        sources = self.runs[maker] if stages and stages[0] <= last else self.runs[maker][:1]
        literals = []
        for source in sources:
            literal = self.model.new_bool_var("")
            literals.append(literal)
            self.chosen[run.index, run.number, base, source.number] = literal
            for view in self._lasting_views(run.index, base):
                viewed = self.chosen.get((view, 0, base, source.number), False)  # it cannot be a view of that copy
                self.model.add_implication(literal, viewed)
            if (end := self.ends.get((base, source.number))) is not None:
                self.model.add(source.start < run.start).only_enforce_if(literal)
                self.model.add(end >= run.start - early).only_enforce_if(literal)
            if source.present is not None:
                self.model.add_implication(literal, source.present)
        if run.present is None:
            self.model.add_exactly_one(literals)
        else:
            self.model.add(sum(literals) == run.present)

    def _lasting_views(self, index: int, base: int) -> list[int]:
        """Ops that make a view which an op reads and that cannot be recomputed: it stays one of the copy it was of."""
        problem = self.problem
        makers = {problem.producer[t] for t in problem.ops[index].inputs if t != base and problem.view_root[t] == base}
        return [maker for maker in sorted(makers) if not problem.ops[maker].repeatable]

    def hint(self, schedule: Sequence[int]) -> None:
        """Start from a schedule that runs the ops in the model's order for the first time, and from no other.

        Within one stage the model runs ops by rank and each once; where the schedule does otherwise the hint is a
        little wrong, which the solver repairs.
        """
        stage, seen = -1, dict.fromkeys(self.order, 0)
        times: dict[tuple[int, int], int] = {}
        ends: dict[tuple[int, int], int] = {}
        read: set[tuple[int, int, int, int]] = set()
        for index in schedule:
            number = seen[index]
            if number >= len(self.runs[index]):
                continue
            seen[index] += 1
            stage += number == 0
            now = (stage + (number > 0)) * self.span + self.rank[index]
            times[index, number] = now
            for base, early in self.reads[index].items():
                source = seen[self.problem.producer[base]] - 1
                ends[base, source] = max(ends[base, source], now - early)
                read.add((index, number, base, source))
            for tensor in self.problem.ops[index].outputs:
                if tensor in self.held:
                    ends[tensor, number] = now
        self.model.clear_hints()
        hint = self.model.add_hint
        for index, runs in self.runs.items():
            for run in runs:
                now = times.get((index, run.number), (self.rank[index] + 1) * self.span + self.rank[index])
                if run.stage is not None:
                    hint(run.stage, now // self.span)
                    hint(run.present, int(run.number < seen[index]))
                for tensor in self.problem.ops[index].outputs:
                    if (tensor, run.number) in self.ends:
                        end = ends.get((tensor, run.number), now)
                        hint(self.ends[tensor, run.number], end)
                        hint(self.sizes[tensor, run.number], end + 1 - now)
        for key, literal in self.chosen.items():
            hint(literal, int(key in read))

    def solve(
        self, seconds: float, workers: int, seed: int, work: float = math.inf, *, simplify: bool = True
    ) -> tuple[list[int] | None, bool]:
        """The schedule of the best solution within the time, and whether it is proven that there is no better one.

        None where no solution was found; that there is none may be proven as well.

        Args:
            seconds: time limit.
            workers: how many threads search; with one the result depends on ``work`` alone.
            seed: of the solver's random choices.
            work: what the solver may do, in its own deterministic units of about a second.
            simplify: whether the model is simplified first.
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.max_deterministic_time = work
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed % 2**31  # the solver's own is of 32 bits
        solver.parameters.cp_model_presolve = simplify
        if workers == 1:
            # The linear relaxation of what is held takes most of the time and proves next to nothing. Several threads
            # search in several ways of themselves.
            solver.parameters.linearization_level = 0
        status = solver.solve(self.model)
        proven = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, proven
        events = sorted(
            (solver.value(run.start) if run.number else run.start, index)
            for index, runs in self.runs.items()
            for run in runs
            if run.present is None or solver.value(run.present)
        )
        return with_views(self.problem, [index for _, index in events]), proven
