"""Planning on numbers: problems, schedules, the simulator and the strategies. No ONNX in here."""

from __future__ import annotations

from ckplan.planner.bounds import holder_of_bound, lower_bound, working_set
from ckplan.planner.cuts import bottlenecks, forward_cuts
from ckplan.planner.plan import Plan, make_plan, plan_from_json
from ckplan.planner.problem import Kind, Op, Problem, Tensor
from ckplan.planner.recompute import recompute_schedule
from ckplan.planner.simulate import lifetimes, live_at, simulate
from ckplan.planner.timeline import Moment, Timeline

__all__ = [
    "Kind",
    "Moment",
    "Op",
    "Plan",
    "Problem",
    "Tensor",
    "Timeline",
    "bottlenecks",
    "forward_cuts",
    "holder_of_bound",
    "lifetimes",
    "live_at",
    "lower_bound",
    "make_plan",
    "plan_from_json",
    "recompute_schedule",
    "simulate",
    "working_set",
]
