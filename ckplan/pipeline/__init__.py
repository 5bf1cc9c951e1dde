"""From a model to a planned file: one value, the `Step`, that every command and every answer is a view of."""

from __future__ import annotations

from ckplan.pipeline.choosing import left_whole, rewrite
from ckplan.pipeline.goal import Goal
from ckplan.pipeline.options import StepOptions
from ckplan.pipeline.plan_files import given_plan, told_of_plan_alone, write_plan
from ckplan.pipeline.planned import Planned
from ckplan.pipeline.step import Step, open_step, step_of

__all__ = [
    "Goal",
    "Planned",
    "Step",
    "StepOptions",
    "given_plan",
    "left_whole",
    "open_step",
    "rewrite",
    "step_of",
    "told_of_plan_alone",
    "write_plan",
]
