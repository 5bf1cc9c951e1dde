"""From the options of a command to a planned step, and from a plan to what is said about it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ckplan.cli.terminal.streams import details, notes, settings, stage
from ckplan.errors import ModelError, UsageError
from ckplan.units import format_bytes, format_unlike

if TYPE_CHECKING:
    from ckplan.answers.analysis import Offer
    from ckplan.pipeline import Goal, Planned, Step
    from ckplan.planner import Plan
    from ckplan.planner.strategies import Strategy


def planned(step: Step, strategy: Strategy, goal: Goal, given: Mapping[str, Any] | None = None) -> Planned:
    """Plan a step as the options ask for it, or take a plan that is given.

    Args:
        step: the step.
        strategy: how to plan it.
        goal: what the plan has to keep to.
        given: what `read_plan` read.

    Raises:
        InfeasibleError: no plan keeps to the goal.
        ModelError: the plan that is given is one for another graph.
    """
    from ckplan.pipeline import given_plan, rewrite, write_plan

    with stage("planning"):
        if given is None:
            return rewrite(step, strategy, goal)
        return write_plan(step, given_plan(step, given))


CHOICES = frozenset({"strategy", "budget", "of", "overhead", "seconds", "cost"})
"""Parameters that say how to plan, by the names that click knows them by."""


def _refuse_choices() -> None:
    """See that no option says how to plan, where a file has the plan.

    Raises:
        UsageError: one does.
    """
    refuse_beside("`--plan` takes a plan as it is", CHOICES)


def refuse_beside(what: str, names: Collection[str]) -> None:
    """See that no option is given that another one would have ignored.

    Args:
        what: the other option and what it does, a clause.
        names: the parameters that it ignores, by the names that click knows them by.

    Raises:
        UsageError: one of them is on the command line.
    """
    context = click.get_current_context()
    given = [
        f"`{option.opts[-1]}`"
        for option in context.command.params
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(f"{what}, and does not go with {', '.join(given)}", "leave out one or the other")


def tell(made: Planned, given: Mapping[str, Any] | None = None) -> list[str]:
    """Say on stderr what the user should know about a plan and its file; returns what was said.

    With ``--verbose`` reasons are given first.

    Args:
        made: the planned step.
        given: what `read_plan` read, where the plan was given.
    """
    plan, step = made.plan, made.step
    if settings().verbose:
        from ckplan.answers.explanation import only_once
        from ckplan.planner import lower_bound
        from ckplan.report.documents.explanations import reasons

        details(reasons(only_once(step.fused), step.problem, plan, lower_bound(step.problem)[1]))
    said = [*made.chosen_form, *made.holding, *made.on_the_clock]
    said += [] if made.drawback is None else [made.drawback]
    said += _other_peak(given or {}, plan)
    notes(said)
    said += tell_whole(step, made.after.peak_activations) if made.budget is None else []
    return [*said, *tell_bound(plan, made.budget, of_form=step.whole is not None)]


def _other_peak(given: Mapping[str, Any], plan: Plan) -> list[str]:
    """What to say of a plan that was given and takes here what it does not say, as with another batch."""
    told, peak = given.get("predicted_peak_activations"), plan.predicted.peak_activations
    if not isinstance(told, int) or told == peak:
        return []
    before, now = format_unlike(told, peak)
    return [f"the plan file tells of {before} of activations, and the plan takes {now} with this step"]


def tell_whole(step: Step, peak: int) -> list[str]:
    """Say on stderr which large tensors could be made in pieces; returns what was said.

    Args:
        step: what was planned.
        peak: bytes of activations of its file.
    """
    from ckplan.pipeline import left_whole

    regions = sorted(left_whole(step, peak), key=lambda region: -region.bytes)
    if not regions:
        return []
    more = f" and {len(regions) - 1} more are" if len(regions) > 1 else " is"
    largest = f"'{regions[0].tensor}' of {format_bytes(regions[0].bytes)}"
    said = [f"{largest}{more} made whole: --chunks auto lets a plan make such tensors in pieces"]
    notes(said)
    return said


def tell_bound(plan: Plan, budget: int | None = None, *, of_form: bool = False) -> list[str]:
    """Say on stderr how much better any plan could be, and whether this one was cut short; returns what was said.

    Args:
        plan: the plan.
        budget: bytes that it keeps to, if there was a budget.
        of_form: whether it decided on the form of the step as well: the bound is one of plans in this form.
    """
    said = []
    if plan.interrupted:
        said.append("the search was interrupted; this is the best plan until then")
    if plan.overhead_bound > 0:
        within = "of this peak" if budget is None else "within the budget"
        form = " in this form" if of_form else ""
        said.append(
            f"no plan {within}{form} costs less than {100 * plan.overhead_bound:+.1f} % of compute; "
            f"this one costs {100 * plan.overhead:+.1f} %"
        )
    notes(said)
    return said


def shown_plan(offers: Sequence[Offer]) -> Plan | None:
    """The plan that is shown in detail: that of `auto` if it was tried, else the one of the lowest peak."""
    plans = [offer.plan for offer in offers if offer.plan is not None]
    named = [offer.plan for offer in offers if offer.plan is not None and offer.strategy.partition(":")[0] == "auto"]
    return next(iter(named), None) or min(plans, key=lambda plan: plan.predicted.peak_activations, default=None)


def read_plan(path: Path | None) -> dict[str, Any] | None:
    """Read the plan file that ``--plan`` names, before the work that it is for; None if it names none.

    Raises:
        UsageError: the options say how to plan as well.
        ModelError: the file is no plan.
    """
    if path is None:
        return None
    _refuse_choices()
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ModelError(f"there is no file '{path}'", "make one with `ckplan plan`") from None
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror or error}", "check the path") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{path}' is not JSON: {error}", "make a plan with `ckplan plan`") from error
    if not isinstance(data, dict) or not isinstance(data.get("schedule"), list):
        raise ModelError(f"'{path}' is not a plan: it has no schedule", "make one with `ckplan plan`")
    return data
