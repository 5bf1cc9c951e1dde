"""A plan and the file that keeps to it, and what is to be said of the two."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from ckplan.autodiff.optimizers.rows import updated_by_rows
from ckplan.autodiff.pieces.regions import Pieces, told
from ckplan.display import table_html
from ckplan.meter.compared import Timing
from ckplan.pipeline.goal import ACTIVATIONS, ARENA, TOTAL, Goal
from ckplan.pipeline.step import Step
from ckplan.planner import Plan, Timeline
from ckplan.runtime import problem_of
from ckplan.runtime.occupancy import Occupancy
from ckplan.runtime.pools.footprint import Footprint, footprint_of
from ckplan.units import format_bytes

HOLDER = {ARENA: "onnxruntime's arena", TOTAL: "a process"}
"""Who holds what a budget is of."""


@dataclass(frozen=True)
class Planned:
    """A plan and the file that keeps to it.

    Attributes:
        step: what was planned.
        plan: the schedule.
        model: the graph with the plan built in.
        occupancy: what lies in memory when onnxruntime runs the file, simulated.
        budget: bytes that were not to be exceeded, if there was a budget.
        executed: what onnxruntime executes of it.
        scope: what the budget is of; see `Goal`.
        timing: steps of the file beside steps without a plan, if the plan was chosen by the clock.
        least_extra_time: where no file that was timed keeps to the goal, what the fastest takes more than a step
            without a plan, as a ratio of that.
    """

    step: Step
    plan: Plan
    model: ir.Model
    occupancy: Occupancy
    executed: ir.Model
    budget: int | None = None
    scope: str = ACTIVATIONS
    timing: Timing | None = None
    least_extra_time: float | None = None

    @property
    def before(self) -> Timeline:
        """What onnxruntime makes of the graph without a plan, and without pieces, simulated."""
        return self.step.reference.baseline

    @property
    def after(self) -> Timeline:
        """What onnxruntime makes of the file, simulated."""
        return self.occupancy.timeline

    @property
    def chosen_form(self) -> list[str]:
        """What the plan does otherwise than the step by its own decision, a line each: regions in pieces, rows."""
        if self.step.whole is None:
            return []
        if tables := updated_by_rows(self.step.model.graph):
            return [f"the plan updates `{name}` row by row, which takes less memory" for name in tables]
        return [f"the plan takes --chunks {Pieces.taken(self.step.regions)}", *told(self.step.regions)]

    @property
    def drawback(self) -> str | None:
        """What is to be said of a file whose activations take more than those of the step without a plan."""
        if self.scope == ARENA:
            return None
        before, after = self.before.peak_activations, self.after.peak_activations
        if after <= before:
            return None
        more = 100 * (after / before - 1) if before else 100.0
        return (
            f"the file takes {format_bytes(after)} of activations, {more:.1f} % more than the step without a plan: "
            "`ckplan grad` writes that; see `ckplan analyze` for other strategies"
        )

    @property
    def held(self) -> tuple[str, int, int] | None:
        """What a budget of more than activations is of: who holds it, and bytes without and with the plan."""
        if self.scope == ACTIVATIONS:
            return None
        without, with_plan = (held_of(found, self.scope) for found in (self.step.reference.footprint, self.footprint))
        return HOLDER[self.scope], without, with_plan

    @property
    def holding(self) -> list[str]:
        """What is to be said of a file whose budget is of more than activations, a line each."""
        if (held := self.held) is None:
            return []
        holder, *sizes = held
        without, with_plan = map(format_bytes, sizes)
        optional = [str(value.name) for value in self.model.graph.inputs if isinstance(value.type, ir.OptionalType)]
        return [
            f"{holder} holds {with_plan} from the first steps on, {without} without a plan",
            *(f"input `{name}` is declared optional, for the arena's sake: feed it as before" for name in optional),
        ]

    @property
    def extra_time(self) -> float:
        """What a step takes more than one without a plan by the clock, as a ratio of that; 0 where it was not timed."""
        return 0.0 if self.timing is None else self.timing.ratio - 1

    @property
    def on_the_clock(self) -> list[str]:
        """What is to be said of a plan that was chosen by the clock, a line."""
        if self.least_extra_time is not None:
            least = f"the least was {100 * self.least_extra_time:+.1f} %"
            return [f"no file that was timed costs so little, {least}: this is the step without a plan"]
        if self.timing is None:
            return []
        spread = 100 * (self.timing.spread or 0)
        clock = "processor time of one thread" if self.timing.clock == "processor" else "by the wall clock"
        return [f"timed beside the step without a plan: {100 * self.extra_time:+.1f} % ({clock}, spread {spread:.1f})"]

    @cached_property
    def footprint(self) -> Footprint:
        """What a process with the file holds."""
        return footprint_of(self.executed, self.model, problem=problem_of(self.executed, self.step.runtime))

    def __repr__(self) -> str:
        before, after = (format_bytes(timeline.peak_activations) for timeline in (self.before, self.after))
        return f"<{self.step.name} planned by {self.plan.strategy}: {before} -> {after}, {self.plan.overhead:+.1%}>"

    def _repr_html_(self) -> str:
        bound = self.plan.overhead_bound
        rows = [
            ("activations without a plan", format_bytes(self.before.peak_activations)),
            ("activations", format_bytes(self.after.peak_activations)),
            ("budget", "none" if self.budget is None else format_bytes(self.budget)),
            ("nodes that run again", f"{self.plan.recomputed:,}"),
            ("extra compute", f"{self.plan.overhead:+.1%}" + (f" (at least {bound:+.1%})" if bound > 0 else "")),
            ("no schedule takes less than", format_bytes(self.plan.lower_bound)),
        ]
        return table_html(f"{self.step.name}, planned by {self.plan.strategy}", rows)


def share_of(found: Footprint, goal: Goal) -> int:
    """Bytes of a footprint that a budget is of."""
    return held_of(found, goal.scope)


def held_of(found: Footprint, scope: str) -> int:
    """Bytes of a footprint that somebody holds; see `HOLDER`."""
    return found.total if scope == TOTAL else found.held
