"""What a training step needs and what each strategy would save, as one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import onnx_ir as ir

from ckplan.errors import CkplanError
from ckplan.planner import Kind, Plan, Problem, Timeline, bottlenecks, live_at, lower_bound, simulate
from ckplan.planner.strategies import STRATEGIES, Strategy
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.exact import Exact
from ckplan.planner.strategies.revolve import Revolve
from ckplan.planner.strategies.search import Search
from ckplan.runtime import problem_of
from ckplan.runtime.executed import executed_model, executed_orders, executed_timeline
from ckplan.runtime.sizes import shape_classes

if TYPE_CHECKING:
    from ckplan.autodiff import TrainingGraph

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
class Analysis:
    """Where the memory of a training step goes.

    Attributes:
        nodes: number of forward and of backward nodes.
        opset: version of the ONNX operator set.
        parameters: number of trained parameters, as tensors and as values.
        loss: what is minimised, in words; empty for a graph that is not trained.
        bytes: bytes of all tensors of each kind: parameters (constants included), inputs, outputs (gradients or
            new parameters).
        base: the step without a plan, in the order in which onnxruntime runs the training graph by default, and with
            the dead buffers that it holds for later tensors of the same shape.
        at_peak: the buffers alive at the peak of ``base``, largest first.
        bottlenecks: the activations through which all paths to the loss pass, in forward order.
        lower_bound: bytes of activations below which no schedule can go.
        offers: what each strategy would give.
    """

    nodes: tuple[int, int]
    opset: int
    parameters: tuple[int, int]
    loss: str
    bytes: dict[Kind, int]
    base: Timeline
    at_peak: tuple[TensorFacts, ...]
    bottlenecks: tuple[TensorFacts, ...]
    lower_bound: int
    offers: tuple[Offer, ...]


def analyze(
    graph: TrainingGraph | ir.Model,
    strategies: Sequence[Strategy] | None = None,
    budget: int | float | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> Analysis:
    """Find out where the memory of a training step, or of any other graph, goes and what each strategy would save.

    Args:
        graph: the training graph; or a model in normal form, which is planned as it is.
        strategies: what to try; by default all but those that only search longer, slow ones at a coarser setting.
        budget: what the plans must not exceed: bytes of activations, or (a float) a ratio of what the step takes.
        progress: is told what is being done.
    """
    model, trained, loss = (graph, {}, "") if isinstance(graph, ir.Model) else _parts(graph)
    problem = problem_of(model)
    order = executed_orders(list(model.graph), executed_model(model))[0]
    values = _values(model)
    # As onnxruntime runs it, dead buffers included that its planner holds for later tensors of the same shape.
    shapes = shape_classes(model.graph, problem)
    base = simulate(problem, order, shapes)
    tried = quick_strategies() if strategies is None else strategies
    limit = int(budget * base.peak_activations) if isinstance(budget, float) else budget
    offers = []
    for number, strategy in enumerate(tried, start=1):
        progress(f"planning with `{strategy}`, {number} of {len(tried)}")
        offers.append(offer(problem, strategy, limit))
    gradients = [values[name] for name in trained.values()]
    return Analysis(
        nodes=(len(problem.forward), len(problem.backward)),
        opset=model.opset_imports[""],
        parameters=(len(gradients), sum(prod(_shape(value)) for value in gradients)),
        loss=loss,
        bytes={kind: sum(tensor.bytes for tensor in problem.tensors if tensor.kind is kind) for kind in Kind},
        base=base,
        at_peak=tuple(_facts(problem, values, tensor) for tensor, _ in live_at(problem, order, base.peak_step)),
        bottlenecks=tuple(_facts(problem, values, tensor) for tensor in bottlenecks(problem)),
        lower_bound=lower_bound(problem)[0],
        offers=tuple(offers),
    )


def _parts(training: TrainingGraph) -> tuple[ir.Model, dict[str, str], str]:
    return training.model, training.gradients, training.description


def expected_timeline(model: ir.Model) -> Timeline:
    """The simulated timeline of what onnxruntime makes of a file under default session options.

    Raises:
        ModelError: onnxruntime does not load the model.
    """
    return executed_timeline(executed_model(model))


def quick_strategies() -> list[Strategy]:
    """The strategies of a table: all but those that only search longer, slow ones at a coarser setting."""
    return [_QUICK.get(kind.name) or kind() for kind in STRATEGIES if kind.name not in _WHEN_ASKED]


def offer(problem: Problem, strategy: Strategy, budget: int | None) -> Offer:
    """What a strategy makes of a problem, or why nothing."""
    try:
        return Offer(str(strategy), strategy.solve(problem, budget))
    except CkplanError as error:
        return Offer(str(strategy), None, error.message)


def _values(model: ir.Model) -> dict[str, ir.Value]:
    """All values that nodes of the main graph make, by name."""
    return {str(value.name): value for node in model.graph for value in node.outputs}


def _shape(value: ir.Value) -> tuple[int, ...]:
    """The sizes of a value; a training graph has static shapes."""
    return tuple(size for size in value.shape or () if isinstance(size, int))


def _facts(problem: Problem, values: dict[str, ir.Value], tensor: int) -> TensorFacts:
    value = values[problem.tensors[tensor].name]
    node = value.producer()
    return TensorFacts(
        name=problem.tensors[tensor].name,
        shape=_shape(value),
        bytes=problem.tensors[tensor].bytes,
        producer=str(node.name) if node else "",
        op_type=node.op_type if node else "",
        backward=problem.ops[problem.producer[tensor]].backward,
    )
