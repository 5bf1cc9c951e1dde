"""What a training step needs and what each strategy would save, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from ckplan.display import table_html
from ckplan.errors import CkplanError
from ckplan.model.node_reads import made_by_name
from ckplan.pipeline import Goal, Step
from ckplan.planner import Kind, Plan, Problem, Timeline, bottlenecks, lower_bound
from ckplan.planner.strategies import STRATEGIES, Strategy
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.exact import Exact
from ckplan.planner.strategies.revolve import Revolve
from ckplan.planner.strategies.search import Search
from ckplan.runtime.occupancy import Occupancy
from ckplan.runtime.pools.footprint import Footprint, held_values
from ckplan.runtime.sizes import bytes_of, dimensions_of
from ckplan.units import format_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

_QUICK: dict[str, Strategy] = {Revolve.name: Revolve(stages=60, slots=100), Auto.name: Auto(steps=0)}
"""Settings at which a strategy gives a good idea of itself in a second or a few."""
_WHEN_ASKED = frozenset({Exact.name, Search.name})
"""Strategies that improve what `auto` has found for as long as they may; a table does not wait for them."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor as a report names it.

    Attributes:
        name: the value's name in the training graph.
        shape: its sizes, empty for a scalar.
        bytes: its size in bytes.
        producer: name of the node that makes it.
        op_type: operator of that node.
        backward: whether that node belongs to the backward pass.
    """

    name: str
    shape: tuple[int, ...]
    bytes: int
    producer: str
    op_type: str
    backward: bool


@dataclass(frozen=True, slots=True)
class Offer:
    """What a strategy makes of the problem: a plan, or the reason why there is none."""

    strategy: str
    plan: Plan | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a graph is made of.

    Attributes:
        forward: number of forward nodes.
        backward: number of backward nodes.
        bytes: bytes of all tensors of each kind: parameters (and constants, as a session of the step without a plan
            holds them), inputs, outputs (gradients or new parameters), activations.
        trained: number of parameters that have a gradient, and of their values.
        loss: what is minimised, in words; empty for a graph that is not trained.
    """

    forward: int
    backward: int
    bytes: Mapping[Kind, int]
    trained: tuple[int, int]
    loss: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """Where the memory of a training step goes.

    Attributes:
        contents: what the graph is made of.
        opset: version of the ONNX operator set.
        base: the step without a plan, in the order in which onnxruntime runs the training graph by default, and with
            the dead buffers that it holds for later tensors of the same shape.
        at_peak: the buffers alive at the peak of ``base``, largest first.
        bottlenecks: the activations through which all paths to the loss pass, in forward order.
        lower_bound: bytes of activations below which no schedule can go.
        offers: what each strategy would give.
        footprint: what a process holds that runs the step without a plan.
    """

    contents: Contents
    opset: int
    base: Timeline
    at_peak: tuple[TensorFacts, ...]
    bottlenecks: tuple[TensorFacts, ...]
    lower_bound: int
    offers: tuple[Offer, ...]
    footprint: Footprint

    def __repr__(self) -> str:
        return f"<Analysis: {format_bytes(self.base.peak_activations)} of activations, {len(self.offers)} strategies>"

    def _repr_html_(self) -> str:
        rows = [("without a plan", format_bytes(self.base.peak_activations))]
        rows += [
            (f"with {one.strategy}", f"{format_bytes(one.plan.predicted.peak_activations)}, {one.plan.overhead:+.1%}")
            for one in self.offers
            if one.plan is not None
        ]
        rows += [(tensor.name, format_bytes(tensor.bytes)) for tensor in self.at_peak[:5]]
        return table_html("Peak of activations: by strategy, and the largest tensors", rows)


def analyze(
    step: Step,
    strategies: Sequence[Strategy] | None = None,
    budget: int | float | str | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> Analysis:
    """Find out where the memory of a step goes and what each strategy would save.

    Args:
        step: what to look at.
        strategies: what to try; by default all but those that only search longer, slow ones at a coarser setting.
        budget: what the plans must not exceed: see `Goal.of`.
        progress: is told what is being done.
    """
    problem, base = step.problem, step.baseline
    tried = quick_strategies() if strategies is None else strategies
    limit = Goal.of(budget).bytes(base)
    offers = []
    for number, strategy in enumerate(tried, start=1):
        progress(f"planning with `{strategy}`, {number} of {len(tried)}")
        offers.append(offer(step, strategy, limit))
    values = made_by_name(step.fused.graph)
    return Analysis(
        contents=contents_of(step),
        opset=step.model.opset_imports[""],
        base=base,
        at_peak=_at_peak(step.occupancy),
        bottlenecks=tuple(_facts(problem, values, tensor) for tensor in bottlenecks(problem)),
        lower_bound=lower_bound(problem)[0],
        offers=tuple(offers),
        footprint=step.footprint,
    )


def contents_of(step: Step) -> Contents:
    """What a graph is made of."""
    problem, training = step.problem, step.training
    values = made_by_name(step.model.graph)
    gradients = [] if training is None else [dimensions_of(values[name]) for name in training.gradients.values()]
    totals = {kind: sum(tensor.bytes for tensor in problem.tensors if tensor.kind is kind) for kind in Kind}
    return Contents(
        forward=len(problem.forward),
        backward=len(problem.backward),
        bytes={**totals, Kind.PARAMETER: sum(map(bytes_of, held_values(step.executed, step.ordered)))},
        trained=(len(gradients), sum(prod(sizes or ()) for sizes in gradients)),
        loss="" if training is None else training.description,
    )


def quick_strategies() -> list[Strategy]:
    """The strategies of a table: all but those that only search longer, slow ones at a coarser setting."""
    return [_QUICK.get(kind.name) or kind() for kind in STRATEGIES if kind.name not in _WHEN_ASKED]


def offer(step: Step, strategy: Strategy, budget: int | None) -> Offer:
    """What a strategy makes of a step, or why nothing.

    A plan that repeats nothing and keeps the step's order is the step itself, of which is told what its file takes.
    """
    try:
        plan = strategy.solve(step.problem, budget)
    except CkplanError as error:
        return Offer(str(strategy), None, error.message)
    if step.training is not None and plan.schedule == step.kept.schedule:
        plan = replace(plan, predicted=step.baseline)
    return Offer(str(strategy), plan)


def _at_peak(occupancy: Occupancy) -> tuple[TensorFacts, ...]:
    """The tensors in the buffers that are alive at the peak, largest first."""
    steps, peak = occupancy.timeline.steps, occupancy.timeline.peak_step
    there = [(buffer.at(peak), buffer.bytes) for _, buffer in occupancy.alive(peak)] if steps else []
    return tuple(
        TensorFacts(span.tensor, span.shape or (), size, steps[span.step].op, span.op_type, steps[span.step].backward)
        for span, size in there
    )


def _facts(problem: Problem, values: Mapping[str, ir.Value], tensor: int) -> TensorFacts:
    known = problem.tensors[tensor]
    value = values[known.name]
    node = value.producer()
    maker, op_type = (str(node.name), node.op_type) if node else ("", "")
    backward = problem.ops[problem.producer[tensor]].backward
    return TensorFacts(known.name, dimensions_of(value) or (), known.bytes, maker, op_type, backward)
