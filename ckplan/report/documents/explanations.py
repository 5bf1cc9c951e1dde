"""The answer of ``ckplan explain`` as a document, and what is behind a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ckplan.display import shortened
from ckplan.planner import Kind, Plan, Problem
from ckplan.report.document import Document, Fact, Facts, Section, counted, percent, shape_cell
from ckplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ckplan.answers.explanation import Again, Explanation, Life, Opposite, Use

_FATES = {
    "kept": "is kept for the backward pass",
    "recomputed": "is recomputed",
    "freed": "is freed in the forward pass",
    "held": "is in memory to the end",
    "backward": "belongs to the backward pass",
}
_NAMED = 4
"""Nodes that are named; JSON has all."""


def explanation(found: Explanation) -> Document:
    """What a plan does with a tensor, why, and what the opposite would lead to."""
    shape = "" if found.shape is None else f", {shape_cell(found.shape).text} {found.dtype.lower()}"
    facts = [Fact("bytes", f"{format_bytes(found.bytes)}{shape}")]
    if found.view_of:
        facts.append(Fact("memory", f"that of '{found.view_of}', of which it is a view"))
    if found.maker is not None:
        block = "" if found.block is None else f", in {found.block[0]} x {found.block[1]}"
        facts.append(Fact("made by", f"{found.op_type} '{found.maker}'{block}"))
    for position, life in enumerate(found.lives):
        which = "" if len(found.lives) == 1 else f"copy {position + 1}"
        facts.append(Fact(which or "in memory", _life(life, found.steps)))
    facts.append(Fact("why", f"{found.reason[:1].upper()}{found.reason[1:]}.", strong=True))
    if found.again is not None:
        facts.append(Fact("again" if found.fate == "recomputed" else "to recompute", _again(found.again)))
    if found.opposite is not None:
        other = "if kept" if found.fate == "recomputed" else "if recomputed"
        facts.append(Fact(other, _opposite(found, found.opposite)))
    title = f"{found.tensor} {_FATES[found.fate]} (plan: {found.strategy})"
    return Document("", (Section(title, (Facts(tuple(facts)),)),))


def _life(life: Life, steps: int) -> str:
    made = "all the time" if life.made is None else f"made at step {life.made.step + 1} of {steps}"
    if life.first is None or life.last is None:
        read = "nothing reads it"
    elif life.first.step == life.last.step:
        read = f"read once, {_use(life.first)}"
    else:
        read = f"first read {_use(life.first)}, last {_use(life.last)}"
    peak = "" if life.made is None else "; there at the peak" if life.at_peak else "; not there at the peak"
    return f"{made}, {read}{peak}"


def _use(use: Use) -> str:
    phase = "recomputed " if use.recomputed else "backward " if use.backward else ""
    return f"at step {use.step + 1} by {phase}{use.op_type} '{use.node}'"


def _again(found: Again) -> str:
    named = ", ".join(found.nodes[-_NAMED:])
    left = len(found.nodes) - _NAMED
    nodes = f"{named} (and {counted(left, 'node')} before)" if left > 0 else named
    time = f"{format_seconds(found.seconds)}, {100 * found.share:.2f} % of the step's compute"
    return f"{time} ({percent(found.flops)} of its FLOPs), running {counted(len(found.nodes), 'node')}: {nodes}"


def _opposite(found: Explanation, other: Opposite) -> str:
    change = other.peak - found.peak
    sign = f"{'+' if change > 0 else ''}{format_bytes(change)}" if change else "the same"
    extra = 100 * (other.overhead - found.overhead)
    return (
        f"peak {format_bytes(found.peak)} -> {format_bytes(other.peak)} ({sign}), "
        f"overhead {100 * found.overhead:.2f} % -> {100 * other.overhead:.2f} % ({extra:+.2f})"
    )


def reasons(once: Mapping[str, Sequence[str]], problem: Problem, plan: Plan, tightest: int) -> list[str]:
    """What is behind a plan, a sentence each: what cannot be recomputed, where the peak is, what bounds it.

    Args:
        once: nodes that no plan runs again, by reason.
        problem: the numbers of the graph.
        plan: the plan.
        tightest: the op whose working set no schedule gets below (`ckplan.planner.lower_bound`).
    """
    lines = [f"{shortened(names, _NAMED)} run only once: {reason}" for reason, names in once.items()]
    forward = [problem.ops[index] for index in problem.forward]
    returned = sum(problem.tensors[t].kind is Kind.OUTPUT for op in forward for t in op.outputs)
    if returned:
        lines.append(
            f"{counted(returned, 'tensor')} of the forward pass cannot be recomputed: the caller gets what was computed"
        )
    again = sum(runs > 1 for runs in Counter(plan.schedule).values())
    lines.append(f"of {counted(len(forward), 'forward node')}, {again:,} run again, {plan.recomputed:,} times in all")
    steps, peak = plan.predicted.steps, plan.predicted.peak_step
    if steps:
        phase = "recomputed" if steps[peak].recomputed else "backward" if steps[peak].backward else "forward"
        size = format_bytes(plan.predicted.peak_activations)
        lines.append(f"the peak of {size} is at step {peak + 1} of {len(steps)}, {phase} '{steps[peak].op}'")
        bound = format_bytes(plan.lower_bound)
        lines.append(f"no schedule needs less than {bound}, which '{problem.ops[tightest].name}' works on")
    return lines
