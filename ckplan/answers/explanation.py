"""Why a plan keeps a tensor or recomputes it, what that costs, and what the opposite would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import onnx_ir as ir

from ckplan.answers.blocks.patterns import patterns
from ckplan.answers.tensor_names import named_tensor
from ckplan.errors import UsageError
from ckplan.model.costs import node_cost
from ckplan.model.traits import why_only_once
from ckplan.pipeline import Step
from ckplan.planner import Kind, Plan, Problem
from ckplan.planner.alternatives import Copy, copies_of, keeping_instead, recomputed_with, recomputing_instead
from ckplan.planner.plan import make_plan
from ckplan.runtime.sizes import dimensions_of
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.autodiff import TrainingGraph

Fate = Literal["kept", "recomputed", "freed", "held", "backward"]
"""Kept for the backward pass; recomputed; freed after its last reader; in memory all the time; of the backward pass."""

_FREE = 1e-4
"""Overhead that is not worth talking about."""


@dataclass(frozen=True, slots=True)
class Use:
    """A step that makes or reads a tensor.

    Attributes:
        step: its position in the schedule, from 0.
        node: the node that runs.
        op_type: its operator.
        backward: whether it belongs to the backward pass.
        recomputed: whether it ran before.
    """

    step: int
    node: str
    op_type: str
    backward: bool
    recomputed: bool


@dataclass(frozen=True, slots=True)
class Life:
    """A copy of a tensor.

    Attributes:
        made: the step that makes it; None for what is there from the beginning.
        first: the first step that reads it, if any does.
        last: the last one.
        at_peak: whether it is there at the peak.
    """

    made: Use | None
    first: Use | None
    last: Use | None
    at_peak: bool


@dataclass(frozen=True, slots=True)
class Again:
    """What it takes to recompute a tensor.

    Attributes:
        seconds: of compute, as estimated or measured, ancestors included.
        share: the same as a ratio of the step.
        flops: the floating-point operations of that as a ratio of the step's.
        nodes: what runs, in forward order; the last one makes the tensor.
    """

    seconds: float
    share: float
    flops: float
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opposite:
    """The plan with the decision on this tensor turned round, and nothing else.

    Attributes:
        peak: bytes of activations.
        overhead: extra compute as a ratio of the step.
    """

    peak: int
    overhead: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a plan does with a tensor, and why.

    Attributes:
        tensor: its name in the training graph.
        shape: its sizes, None where they are not known.
        dtype: its type, such as ``FLOAT``.
        bytes: bytes of its memory.
        view_of: the tensor whose memory it is, if it is a view.
        maker: the node that makes it; None for parameters and inputs.
        op_type: operator of that node.
        block: the repeated block of the network that the node stands in, and how often that occurs.
        fate: what the plan does with it.
        never: why no plan recomputes it; empty if one might.
        reason: why the plan does what it does, a sentence.
        lives: its copies.
        again: what recomputing it takes (of a kept tensor: would take).
        opposite: what the opposite decision would lead to; None if there is none.
        strategy: the plan's.
        peak: bytes of activations of the plan.
        overhead: extra compute of the plan as a ratio of the step.
        steps: number of steps of the plan.
        notes: what was found out about the name.
    """

    tensor: str
    shape: tuple[int, ...] | None
    dtype: str
    bytes: int
    view_of: str
    maker: str | None
    op_type: str
    block: tuple[str, int] | None
    fate: Fate
    never: str
    reason: str
    lives: tuple[Life, ...]
    again: Again | None
    opposite: Opposite | None
    strategy: str
    peak: int
    overhead: float
    steps: int
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Explanation of {self.tensor}: {self.fate} by {self.strategy}, {format_bytes(self.bytes)}>"


def check_name(step: Step, name: str) -> tuple[str, ...]:
    """See that a name means a tensor of a step, before a plan is looked for.

    Args:
        step: what is to be planned.
        name: see `explain`.

    Returns:
        A note where the plan is to decide on pieces and only they may have a tensor of the name: each form of the step
        has names of its own.

    Raises:
        UsageError: there is no such tensor.
    """
    try:
        _named(step, name)
    except UsageError as error:
        if step.recut is None:
            raise
        return (f"{error.message}; whether a plan in pieces (--chunks auto) has one is known when it is made",)
    return ()


def _named(step: Step, name: str) -> tuple[int, str]:
    """The number of the tensor that a name means, and what was found out on the way; see `named_tensor`."""
    ids = {tensor.name: index for index, tensor in enumerate(step.problem.tensors)}
    found, note = named_tensor(name, ids, step.fused, step.original)
    return ids[found], note


def explain(step: Step, plan: Plan, name: str) -> Explanation:
    """Explain what a plan does with a tensor.

    Args:
        step: what was planned.
        plan: the plan.
        name: a tensor of the graph, or a node, which stands for its first output; also a tensor of the model as it
            came that has another name in the graph.

    Raises:
        UsageError: there is no such tensor.
    """
    problem, model, training = step.problem, step.fused, step.training
    tensor, note = _named(step, name)
    found = problem.tensors[tensor].name
    nodes = list(model.graph)
    producer = problem.producer[tensor]
    node = nodes[producer] if producer >= 0 else None
    values = {value.name: value for value in (node.outputs if node is not None else model.graph.inputs)}
    value = values.get(found) or model.graph.initializers.get(found)
    base = problem.view_root[tensor]
    lives, copies = _lives(problem, plan, nodes, tensor)
    never = _never(problem, nodes, base, training)
    fate = _fate(problem, plan, base, copies)
    again, opposite = None, None
    maker = problem.producer[base]
    if not never and maker >= 0:
        again, opposite = _alternative(problem, plan, nodes, maker, fate)
    return Explanation(
        tensor=found,
        shape=None if value is None else dimensions_of(value),
        dtype="" if value is None or value.dtype is None else value.dtype.name,
        bytes=problem.tensors[base].bytes,
        view_of=problem.tensors[base].name if base != tensor else "",
        maker=None if node is None else str(node.name),
        op_type="" if node is None else node.op_type,
        block=None if node is None else _block(model, str(node.name)),
        fate=fate,
        never=never,
        reason=_reason(fate, never, lives, plan, opposite),
        lives=lives,
        again=again,
        opposite=opposite,
        strategy=plan.strategy,
        peak=plan.predicted.peak_activations,
        overhead=plan.overhead,
        steps=len(plan.schedule),
        notes=(note,) if note else (),
    )


def only_once(model: ir.Model) -> dict[str, list[str]]:
    """The nodes of a graph that no plan runs again, by reason; those of the backward pass are not among them."""
    found: dict[str, list[str]] = {}
    for node in model.graph:
        if reason := why_only_once(node):
            found.setdefault(reason, []).append(str(node.name))
    return found


def _block(model: ir.Model, node: str) -> tuple[str, int] | None:
    for pattern in patterns(model):
        if pattern.level == "group" and any(node in names for names in pattern.occurrences):
            return pattern.name, pattern.count
    return None


def _lives(
    problem: Problem, plan: Plan, nodes: Sequence[ir.Node], tensor: int
) -> tuple[tuple[Life, ...], Sequence[Copy]]:
    """The copies of a tensor, for people and as numbers."""
    schedule, peak = plan.schedule, plan.predicted.peak_step

    def use(step: int) -> Use:
        moment = plan.predicted.steps[step]
        return Use(step, moment.op, nodes[schedule[step]].op_type, moment.backward, moment.recomputed)

    def ends(reads: Sequence[int]) -> tuple[Use | None, Use | None]:
        return (use(reads[0]), use(reads[-1])) if reads else (None, None)

    base = problem.view_root[tensor]
    if problem.producer[base] < 0:
        shares = {other for other, root in enumerate(problem.view_root) if root == base}
        reads = [step for step, index in enumerate(schedule) if not shares.isdisjoint(problem.ops[index].inputs)]
        return (Life(None, *ends(reads), at_peak=True),), ()
    copies = copies_of(problem, schedule, tensor)
    returned = problem.tensors[base].kind is Kind.OUTPUT
    there = [copy.made <= peak and (returned or peak <= copy.last) for copy in copies]
    return tuple(Life(use(copy.made), *ends(copy.reads), at) for copy, at in zip(copies, there, strict=True)), copies


def _never(problem: Problem, nodes: Sequence[ir.Node], base: int, training: TrainingGraph | None) -> str:
    """Why no plan recomputes a tensor; empty if one might."""
    tensor, producer = problem.tensors[base], problem.producer[base]
    if tensor.kind is Kind.PARAMETER:
        return "it is a parameter or a constant, which is in memory all the time"
    if producer < 0:
        return "it is an input, which the caller holds"
    if tensor.kind is Kind.OUTPUT:
        return f"it is {_role(tensor.name, training)}, which the caller gets: it stays in memory to the end"
    if problem.ops[producer].backward:
        return "the backward pass makes it, and only what the forward pass made is recomputed"
    if reason := why_only_once(nodes[producer]):
        return reason
    return "" if problem.ops[producer].recomputable else "its node must not run twice"


def _role(name: str, training: TrainingGraph | None) -> str:
    """What an output of the file is."""
    if training is None:
        return "an output of the file"
    gradients = {**training.gradients, **training.retained}
    roles = {made: f"the gradient of '{source}'" for source, made in gradients.items()}
    for source, made in training.updates.items():
        roles[made] = f"the new value of '{source}', which changes once a step"
    return {**roles, training.loss: "the loss"}.get(name, "an output of the file")


def _fate(problem: Problem, plan: Plan, base: int, copies: Sequence[Copy]) -> Fate:
    producer = problem.producer[base]
    if producer < 0 or problem.tensors[base].kind is Kind.OUTPUT:
        return "held"
    if problem.ops[producer].backward:
        return "backward"
    if len(copies) > 1:
        return "recomputed"
    moments = [plan.predicted.steps[step] for step in copies[0].reads]
    late = any(moment.backward or moment.recomputed for moment in moments)
    return "kept" if late else "freed"


def _alternative(
    problem: Problem, plan: Plan, nodes: Sequence[ir.Node], maker: int, fate: Fate
) -> tuple[Again | None, Opposite | None]:
    """What recomputing a tensor takes, and what the opposite of the plan's decision leads to."""
    if fate == "recomputed":
        ran = recomputed_with(problem, plan.schedule, maker)
        schedule = keeping_instead(problem, plan.schedule, maker)
    else:
        other = recomputing_instead(problem, plan.schedule, maker)
        if other is None:
            return None, None
        schedule, ran = other
    opposite = make_plan(problem, plan.strategy, schedule)
    seconds = sum(problem.ops[index].cost for index in ran)
    whole = sum(node_cost(node).flops for node in nodes)
    again = Again(
        seconds=seconds,
        share=seconds / problem.cost if problem.cost else 0.0,
        flops=sum(node_cost(nodes[index]).flops for index in ran) / whole if whole else 0.0,
        nodes=tuple(problem.ops[index].name for index in ran),
    )
    return again, Opposite(opposite.predicted.peak_activations, opposite.overhead)


def _reason(fate: Fate, never: str, lives: Sequence[Life], plan: Plan, opposite: Opposite | None) -> str:
    """Why the plan does what it does, in a sentence."""
    if never:
        return f"it cannot be recomputed: {never}"
    if opposite is None:
        return (
            "only the forward pass reads it: it is freed after its last reader, and recomputing it would serve nothing"
        )
    peak, extra = opposite.peak - plan.predicted.peak_activations, opposite.overhead - plan.overhead
    at_peak = any(life.at_peak for life in lives)
    if fate == "recomputed":
        if peak > 0:
            return f"keeping it would raise the peak by {format_bytes(peak)}"
        if -extra < _FREE:
            return "recomputing it costs next to nothing"
        return "the strategy recomputes it although the peak has room for it: what it weighs is not this tensor alone"
    if peak > 0:
        return (
            f"recomputing it would raise the peak by {format_bytes(peak)}: what it is made from would be held or made"
        )
    if peak == 0 and not at_peak:
        return "it is not in memory at the peak: recomputing it would cost time and save nothing there"
    if peak == 0:
        return "recomputing it would cost time and not lower the peak, which then is reached at another step"
    return (
        f"recomputing it would save {format_bytes(-peak)} at the peak and cost {100 * extra:.2f} % more compute, "
        "which the goal did not ask for"
    )
