"""The commands as functions: each takes a model in any form, and answers as the command line does.

A model is a path, an `onnx.ModelProto`, an `onnx_ir.Model`, or a `Step` that was opened before: a step keeps what was
found out about it, so that several questions about one model cost little more than one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir

from ckplan.answers import analysis, explanation
from ckplan.answers import fit as fitting
from ckplan.answers.analysis import Analysis
from ckplan.answers.explanation import Explanation
from ckplan.answers.fit import Fit
from ckplan.answers.pareto import Pareto
from ckplan.answers.pareto import pareto as find_frontier
from ckplan.arguments import check_flag, check_number, check_text, names_of, path_of
from ckplan.autodiff import TrainingGraph
from ckplan.autodiff import build_training_graph as differentiate
from ckplan.bundle.making import check_folder, make_graphs, write_artifacts
from ckplan.bundle.manifest import Artifacts
from ckplan.display import file_name
from ckplan.errors import UsageError
from ckplan.isolation.collecting import fewer_collections
from ckplan.meter import Measurement, Verification
from ckplan.meter import measure as measure_file
from ckplan.meter import verify as verify_files
from ckplan.meter.running.device import check_device
from ckplan.model import save
from ckplan.model.files.weights import scratch_folder
from ckplan.pipeline import Goal, Planned, Step, StepOptions, choosing, open_step, step_of
from ckplan.pipeline.options import TRAINING, checked
from ckplan.pipeline.sources import Source, forward_of, model_of, name_of
from ckplan.pipeline.step import check_cost
from ckplan.planner import Plan
from ckplan.planner.strategies import Strategy, parse_strategy
from ckplan.units import parse_bytes

if TYPE_CHECKING:
    import onnx

Model: TypeAlias = "Source | Step | TrainingGraph"
"""A model in any form that a function of this module takes."""

Runnable: TypeAlias = "str | os.PathLike[str] | ir.Model | onnx.ModelProto | Planned | TrainingGraph"
"""What can be run: a file, a model in memory, or what another function returned."""

Strategies: TypeAlias = "Sequence[str | Strategy] | str | Strategy | None"
"""Strategies to try: one or several, each as an object or as text like that of the command line; None: a choice."""


@fewer_collections()
def open_model(model: Model, *, cost: str = "flops", device: str = "auto", **options: Any) -> Step:
    """The step of a model, to ask several things about it.

    Args:
        model: the model; a step is returned as it is, a `TrainingGraph` is taken as it is.
        cost: what a node costs: ``flops`` (from its shapes), ``calibrated`` (from times of its kernels on this
            machine's CPU), ``measured`` (from a profiled run), or ``clock`` (from shapes, and for an overhead files are
            timed until a step costs that).
        device: whose kernels plans are for, and where nodes are measured: ``cpu`` or ``cuda``; ``auto`` plans for the
            CPU and measures on CUDA if that works.
        options: the options of the command line that say how a model is loaded and differentiated, by name: ``dims``,
            ``shapes``, ``inference``, ``loss``, ``wrt``, ``no_grad``, ``training``, ``optimizer``, ...

    Raises:
        ModelError: the model cannot be read, shaped or differentiated.
        UsageError: an option does not exist or does not fit.
    """
    check_device(device)
    check_cost(cost)
    if isinstance(model, Step | TrainingGraph):
        if options:
            raise UsageError(
                f"{', '.join(options)} cannot be set any more: the step is built already", "give the model itself"
            )
        step = model if isinstance(model, Step) else step_of(replace(model, model=model.model.clone()))
        step = step.on(device)
    else:
        step = open_step(model, StepOptions.of(**options), device=device)
    return step.priced(cost, device)


@fewer_collections()
def analyze(
    model: Model,
    *,
    strategies: Strategies = None,
    budget: int | float | str | None = None,
    **options: Any,
) -> Analysis:
    """Where the memory of a step goes, and what each strategy would save: `ckplan analyze`.

    Args:
        model: the model.
        strategies: what to try: strategies, or text as on the command line; None tries what answers in seconds.
        budget: bytes; a float is a ratio of what the step takes without a plan; or text: ``"512MiB"``, ``"40%"``.
        options: see `open_model`.

    Raises:
        ModelError, UsageError: the model or an option does not fit.
    """
    return analysis.analyze(open_model(model, **options), _parsed(strategies), budget)


@fewer_collections()
def rewrite(
    model: Model,
    *,
    strategy: str | Strategy = "auto",
    budget: int | float | str | None = None,
    overhead: float | str | None = None,
    seconds: float | None = None,
    of: str = "activations",
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    **options: Any,
) -> Planned:
    """The step with a plan built in that keeps to the budget as a file: `ckplan rewrite`.

    Args:
        model: the model.
        strategy: how to plan: a strategy, or text as on the command line.
        budget: bytes; a float is a ratio of what the step takes without a plan; or text: ``"512MiB"``, ``"40%"``.
        overhead: extra compute that the plan may cost: a ratio, or text: ``"10%"``.
        seconds: how long to search.
        of: what the budget is of: ``activations``, what onnxruntime's ``arena`` holds, or the ``total`` that a process
            holds.
        output: the file to write, if one is wanted.
        force: whether that may be overwritten.
        options: see `open_model`; ``cost`` is ``calibrated`` by default where an overhead is given.

    Raises:
        InfeasibleError: no file keeps to the budget.
        ModelError, UsageError: the model or an option does not fit.
    """
    check_flag("`force`", force)
    goal = Goal.of(budget, overhead, seconds, of)
    asked = goal.asked_of(_strategy(strategy))
    planned = choosing.rewrite(_opened(model, goal, options), asked, goal)
    if output is not None:
        save(planned.model, output, force=force)
    return planned


def _opened(model: Model, goal: Goal, options: Mapping[str, Any]) -> Step:
    """The step of a model, whose nodes cost what the goal asks for; a `Step` has been priced."""
    if isinstance(model, Step):
        return open_model(model, **options)
    cost = goal.cost(options.get("cost"), options.get("device", "auto"))
    return open_model(model, **{**options, "cost": cost})


@fewer_collections()
def artifacts(
    model: Source,
    folder: str | os.PathLike[str],
    *,
    strategy: str | Strategy | None = None,
    budget: int | float | str | None = None,
    overhead: float | str | None = None,
    seconds: float | None = None,
    of: str = "activations",
    force: bool = False,
    **options: Any,
) -> Artifacts:
    """Write what a training loop in any language needs: `ckplan artifacts`.

    Args:
        model: the forward model.
        folder: where to write; made if it is not there.
        strategy: how to plan the training step, as on the command line; without it and without a goal there is no plan.
        budget: bytes; a float is a ratio of what the step takes without a plan; or text: ``"512MiB"``, ``"40%"``.
        overhead: extra compute that the plan may cost: a ratio, or text: ``"10%"``.
        seconds: how long to search.
        of: what the budget is of; see `rewrite`.
        force: whether the files of an earlier run may be replaced.
        options: see `open_model`; ``optimizer`` (AdamW by default) and ``clip_norm`` say what the update does.

    Raises:
        InfeasibleError: no plan keeps to the budget.
        ModelError, UsageError: the model or an option does not fit.
        EnvironmentUnavailableError: the folder cannot be written.
    """
    check_flag("`force`", force)
    check_folder(path_of("the folder", folder).absolute(), force)
    goal = Goal.of(budget, overhead, seconds, of)
    is_planned = strategy is not None or goal != Goal()
    asked = goal.asked_of(_strategy(strategy or "auto")) if is_planned else None
    graphs = make_graphs(model, StepOptions.of(**options), asked, goal)
    return write_artifacts(graphs, folder, model, force=force)


def plan(model: Model, **asked: Any) -> Plan:
    """The plan of the file that `rewrite` makes with the same arguments: `ckplan plan`.

    Raises:
        CkplanError: as by `rewrite`.
    """
    return rewrite(model, **asked).plan


@fewer_collections()
def pareto(model: Model, *, strategies: Strategies = None, seconds: float | None = None, **options: Any) -> Pareto:
    """The frontier of peak memory against extra compute: `ckplan pareto`.

    Args:
        model: the model.
        strategies: whose plans to hold against it; None takes what answers in seconds.
        seconds: how long to search.
        options: see `open_model`.

    Raises:
        ModelError, UsageError: the model or an option does not fit.
    """
    return find_frontier(open_model(model, **options), _parsed(strategies), seconds=Goal.of(seconds=seconds).seconds)


def _parsed(strategies: Strategies) -> list[Strategy] | None:
    if strategies is None:
        return None
    if isinstance(strategies, str) or not isinstance(strategies, Sequence):
        return [_strategy(strategies)]
    return [_strategy(asked) for asked in strategies]


def _strategy(asked: str | Strategy) -> Strategy:
    return asked if isinstance(asked, Strategy) else parse_strategy(asked)


@fewer_collections()
def fit(
    model: Source,
    memory: int | float | str,
    *,
    dim: str | None = None,
    strategy: str | Strategy = "auto",
    overhead: float | str | None = None,
    seconds: float | None = None,
    **options: Any,
) -> Fit:
    """The largest size of a free dimension with which a step fits into memory: `ckplan fit`.

    Args:
        model: the model, with a dimension of no fixed size.
        memory: what a process may hold, in bytes or as text: ``"8GiB"``.
        dim: the dimension; by default the only free one, or the batch.
        strategy: how to plan: a strategy, or text as on the command line.
        overhead: extra compute that a plan may cost: a ratio, or text: ``"25%"``.
        seconds: how long to search, for all sizes together.
        options: see `open_model`; ``dims`` has the sizes of other dimensions.

    Raises:
        InfeasibleError: not even size 1 fits.
        ModelError, UsageError: the model or an option does not fit.
    """
    most = parse_bytes(memory) if isinstance(memory, str) else memory
    check_number("the memory", most)
    goal = Goal.of(overhead=overhead, seconds=seconds)
    asked, wanted = StepOptions.of(**options), goal.asked_of(_strategy(strategy))
    return fitting.fit(model, asked, int(most), wanted, dimension=dim, overhead=goal.overhead, seconds=goal.seconds)


@fewer_collections()
def explain(
    model: Model,
    tensor: str,
    *,
    strategy: str | Strategy = "auto",
    budget: int | float | str | None = None,
    overhead: float | str | None = None,
    seconds: float | None = None,
    of: str = "activations",
    **options: Any,
) -> Explanation:
    """Why the plan that `rewrite` makes with the same arguments keeps a tensor or recomputes it: `ckplan explain`.

    Args:
        model: the model.
        tensor: a value of the model or of its training graph, or a node, which stands for what it makes.
        strategy: how to plan; this and what follows as in `rewrite`.
        budget: what the plan has to keep to.
        overhead: extra compute that the plan may cost.
        seconds: how long to search.
        of: what the budget is of.
        options: see `open_model`.

    Raises:
        UsageError: there is no such tensor, which is found before a plan is looked for, or an option does not fit.
        CkplanError: as by `rewrite`.
    """
    check_text("the tensor", tensor)
    goal = Goal.of(budget, overhead, seconds, of)
    asked = goal.asked_of(_strategy(strategy))
    step = _opened(model, goal, options)
    explanation.check_name(step, tensor)
    planned = choosing.rewrite(step, asked, goal)
    return explanation.explain(planned.step, planned.plan, tensor)


@fewer_collections()
def build_training_graph(model: Source, **objective: Any) -> TrainingGraph:
    """The training graph of a model, without a plan: `ckplan grad`.

    Args:
        model: a model in normal form (`ForwardModel.model`); any other is brought into it first, with default sizes.
        objective: see `ckplan.autodiff.build_training_graph`.

    Raises:
        ModelError, UsageError: the model or an option does not fit.
    """
    if not isinstance(model, ir.Model):
        model = forward_of(model, StepOptions()).model
    known = {name: checked(name, given) for name, given in objective.items() if name in TRAINING and name != "params"}
    if objective.get("params") is not None:  # which is a file of names in the options, and the names here
        known["params"] = names_of("`params`", objective["params"])
    return differentiate(model, **{**objective, **known})


def measure(model: Runnable, **how: Any) -> Measurement:
    """Run a model in onnxruntime with default options, and tell what it takes: `ckplan measure`.

    Args:
        model: what to run; a model in memory is written to a temporary file.
        how: see `ckplan.meter.measure`.

    Raises:
        ModelError: it is not a model, or onnxruntime does not run it.
        UsageError: an option does not fit.
        EnvironmentUnavailableError: the device is not there; as `RunFailedError`, a process ended early.
    """
    with _file_of(model) as path:
        return measure_file(path, **how)


def verify(base: Runnable, new: Runnable, **how: Any) -> Verification:
    """Run two models on the same inputs; compare memory, time and every output: `ckplan verify`.

    Args:
        base: what to compare with.
        new: the one in question.
        how: see `ckplan.meter.verify`.

    Raises:
        ModelError: one of them is not a model, or onnxruntime does not run it.
        UsageError: an option does not fit.
        EnvironmentUnavailableError: the device is not there; as `RunFailedError`, a process ended early.
    """
    with _file_of(base) as one, _file_of(new) as other:
        return verify_files(one, other, **how)


@contextmanager
def _file_of(model: Runnable) -> Iterator[Path]:
    if isinstance(model, str | os.PathLike):
        yield Path(model)
        return
    graph = model.model if isinstance(model, Planned | TrainingGraph) else model_of(model)
    name = model.step.name if isinstance(model, Planned) else name_of(graph)
    with scratch_folder(graph) as folder:
        path = folder / f"{file_name(Path(name).stem)}.onnx"
        save(graph, path)
        yield path
