"""From the options of a command to a goal, and from a plan to what is said about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckplan.cli.terminal import details, notes, settings, stage
from ckplan.errors import ModelError

if TYPE_CHECKING:
    import onnx_ir as ir

    from ckplan.answers.analysis import Offer
    from ckplan.answers.planning import Goal
    from ckplan.planner import Plan


def goal_of(budget: int | float | None, overhead: float | None, seconds: float | None) -> Goal:
    """The goal that the options ask for; a budget that is a float is a ratio."""
    from ckplan.answers.planning import Goal

    if isinstance(budget, float):
        return Goal(share=budget, overhead=overhead, seconds=seconds)
    return Goal(budget=budget, overhead=overhead, seconds=seconds)


def costs_of(model: ir.Model, cost: str, device: str) -> dict[str, float] | None:
    """Seconds of each node as ``--cost`` asks for them, None for the analytic ones."""
    if cost == "flops":
        return None
    from ckplan.meter.costs import measured_costs

    with stage("measuring what nodes cost"):
        return measured_costs(model, device)


def tell(plan: Plan, model: ir.Model) -> list[str]:
    """Say on stderr what the user should know about the plan of a graph; returns what was said.

    With ``--verbose`` reasons are given first.
    """
    if settings().verbose:
        from ckplan.answers.explanation import only_once
        from ckplan.report.explanation import reasons
        from ckplan.runtime import problem_of

        details(reasons(only_once(model), problem_of(model), plan))
    said = []
    if plan.interrupted:
        said.append("the search was interrupted; this is the best plan until then")
    if plan.overhead_bound > 0:
        said.append(
            f"no plan of this peak costs less than {100 * plan.overhead_bound:+.1f} % of compute; "
            f"this one costs {100 * plan.overhead:+.1f} %"
        )
    notes(said)
    return said


def shown_plan(offers: Sequence[Offer]) -> Plan | None:
    """The plan that is shown in detail: that of `auto` if it was tried, else the one of the lowest peak."""
    plans = [offer.plan for offer in offers if offer.plan is not None]
    named = [offer.plan for offer in offers if offer.plan is not None and offer.strategy.partition(":")[0] == "auto"]
    return next(iter(named), None) or min(plans, key=lambda plan: plan.predicted.peak_activations, default=None)


def read_plan(path: Path, model: ir.Model) -> Plan:
    """Read a plan file for a graph.

    Raises:
        ModelError: the file is no plan, or one for another graph.
    """
    from ckplan.planner import plan_from_json
    from ckplan.runtime import problem_of

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"there is no file '{path}'", "make one with `ckplan plan`") from None
    except ValueError as error:
        raise ModelError(f"'{path}' is not JSON: {error}", "make a plan with `ckplan plan`") from error
    if not isinstance(data, dict) or not isinstance(data.get("schedule"), list):
        raise ModelError(f"'{path}' is not a plan: it has no schedule", "make one with `ckplan plan`")
    return plan_from_json(problem_of(model), data)
