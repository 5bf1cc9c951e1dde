"""One step of a model, made once: the graph that is planned, what onnxruntime executes, the problem, the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ckplan import keys
from ckplan.arguments import check_word
from ckplan.autodiff import TrainingGraph, add_optimizer, build_training_graph, parse_optimizer
from ckplan.autodiff.inline import inline_functions
from ckplan.autodiff.lora import Lora, add_adapters
from ckplan.autodiff.optimizers.rows import updated_by_rows
from ckplan.autodiff.pieces.forward_pieces import forward_in_pieces
from ckplan.autodiff.pieces.regions import AUTO, OFF, Chunks, Pieces, Region
from ckplan.errors import UsageError
from ckplan.meter.compared import Timing
from ckplan.model.files.parameter_list import read_names
from ckplan.model.half import half_precision_notes
from ckplan.pipeline.options import TRAINING, StepOptions
from ckplan.pipeline.sources import Source, forward_of, model_of, name_of
from ckplan.planner import Plan, Problem, Timeline
from ckplan.planner.plan import make_plan
from ckplan.planner.strategies import Strategy
from ckplan.planner.strategies.keep_all import KeepAll
from ckplan.runtime import problem_of
from ckplan.runtime.cpu import CPU
from ckplan.runtime.devices import RUNTIMES
from ckplan.runtime.executing.executed import executed_model, executed_order
from ckplan.runtime.executing.fused import fused_graph
from ckplan.runtime.occupancy import Occupancy, occupancy_of_executed
from ckplan.runtime.pools.footprint import Footprint, footprint_of
from ckplan.runtime.runtime import Runtime
from ckplan.writer.emit import Written, feed_weights, write
from ckplan.writer.file_order import in_natural_order
from ckplan.writer.pooling import average_alike
from ckplan.writer.updates import with_ordered_updates

COSTS = ("flops", "calibrated", "measured", "clock")
"""How nodes may be priced."""

_CALIBRATED = "costs are calibrated: what each kernel takes on one thread of this machine; --cost flops is free of it"

Progress = Callable[[str], None]


def check_cost(cost: str) -> None:
    """See that a way to price nodes is one of `COSTS`.

    Raises:
        UsageError: it is not.
    """
    check_word("the cost", cost, COSTS)


@dataclass(frozen=True)
class Step:
    """One step of a model: what every command and every answer is about.

    What it takes work to find out is found out when it is first asked for, and kept: the graph that onnxruntime
    executes, the timeline without a plan, the problem that strategies solve.

    Attributes:
        name: what the model is called: its file's name.
        model: the graph as it was differentiated. Weights of heavy operators are inputs with a default, as they are in
            planned files: both run the same kernels.
        training: what is known of it if it is a training graph.
        notes: what was chosen on the way, a sentence each.
        costs: seconds of nodes by name, where others than the analytic ones count.
        pricing: makes these for the graph that is planned, where they are not known before that is.
        source: the model as it came, whose names a user knows.
        regions: what runs in pieces, or could.
        recut: makes the same step with regions in pieces, where plans are to decide on that.
        whole: the step without pieces, where this is a form of it that a plan may choose.
        by_rows: makes the same step with its large tables updated row by row; None if there is none to update so.
        clock: times files beside the step without a plan, where plans are to hold on the clock; see
            `ckplan.pipeline.clocked`.
        runtime: whose kernels run it.
    """

    name: str
    model: ir.Model
    training: TrainingGraph | None = None
    notes: tuple[str, ...] = ()
    costs: Mapping[str, float] = field(default_factory=dict)
    pricing: Callable[[ir.Model], Mapping[str, float]] | None = None
    source: Source | None = None
    regions: tuple[Region, ...] = ()
    recut: Callable[[Pieces], Step] | None = None
    whole: Step | None = None
    by_rows: Callable[[], Step | None] | None = None
    clock: Callable[[ir.Model, ir.Model], Timing] | None = None
    runtime: Runtime = CPU

    @property
    def reference(self) -> Step:
        """The step that savings and extra compute are counted from."""
        return self.whole or self

    def counted(self, plan: Plan) -> Plan:
        """A plan whose extra compute, and its bound among plans of this form, count from the step without pieces."""
        if self.whole is None or plan.base_cost == (base := self.whole.problem.cost):
            return plan
        least = (1 + plan.overhead_bound) * plan.base_cost / base - 1
        counted = replace(plan, base_cost=base)
        return replace(counted, overhead_bound=min(max(least, 0.0), counted.overhead))

    @cached_property
    def unplanned(self) -> Written:
        """The step without a plan, and what onnxruntime makes of it; a graph that came as it is stays so.

        It is written as a plan is that repeats nothing (strategy `none`): without that, onnxruntime would run nodes
        early and hold dead buffers, and savings would count from what no graph needs.

        Raises:
            ModelError: onnxruntime does not load the model.
        """
        if self.training is not None:
            return write(self.fused, self.kept, runtime=self.runtime)
        executed = executed_model(self._updated, runtime=self.runtime)
        return Written(self._updated, executed, problem_of(executed, self.runtime))

    @cached_property
    def kept(self) -> Plan:
        """The step without a plan as a plan, which repeats nothing."""
        if self.training is not None:
            return KeepAll().solve(self.problem)
        return make_plan(self.problem, str(KeepAll()), executed_order(list(self.fused.graph), self.executed))

    @property
    def ordered(self) -> ir.Model:
        """The step without a plan, as `ckplan grad` writes it."""
        return self.unplanned.model

    @property
    def executed(self) -> ir.Model:
        """The graph that onnxruntime executes if there is no plan, nodes in execution order."""
        return self.unplanned.executed

    @cached_property
    def occupancy(self) -> Occupancy:
        """What lies in memory over the step without a plan."""
        return occupancy_of_executed(self.executed, self.ordered, self.unplanned.numbers)

    @property
    def baseline(self) -> Timeline:
        """The step without a plan: what every saving is counted from."""
        return self.occupancy.timeline

    @cached_property
    def footprint(self) -> Footprint:
        """What a process holds that runs the step without a plan, in place if it has an optimizer."""
        in_place = keys.OPTIMIZER in self.model.metadata_props
        return footprint_of(self.executed, self.ordered, in_place=in_place, problem=self.unplanned.numbers)

    @cached_property
    def _updated(self) -> ir.Model:
        """``model``, an optimizer in it fit for updates in place; see `ckplan.writer.updates`."""
        return with_ordered_updates(self.model)

    @cached_property
    def fused(self) -> ir.Model:
        """The graph that is planned, as onnxruntime's optimisers leave it; see `ckplan.runtime.executing.fused`.

        Raises:
            ModelError: onnxruntime does not load the model.
        """
        graph = in_natural_order(self._updated) if self.training is None else self._updated
        return fused_graph(graph, self.runtime)

    @cached_property
    def problem(self) -> Problem:
        """The numbers that strategies plan by; op ids are the positions of the nodes of ``fused``."""
        costs = self.costs if self.pricing is None else self.pricing(self.fused)
        return problem_of(self.fused, self.runtime).with_costs(costs)

    @cached_property
    def lowest(self) -> dict[Strategy, Plan]:
        """What strategies plan without a budget, as far as they were asked; see `ckplan.pipeline.lowest`."""
        return {}

    @cached_property
    def files(self) -> dict[tuple[int, ...], int]:
        """Bytes of activations that files take, by their schedule, as far as they were written."""
        return {}

    def on(self, device: str) -> Step:
        """The step on a device's kernels: ``cpu`` or ``cuda``. ``auto`` leaves it as it is."""
        runtime = RUNTIMES.get(device, self.runtime)
        if runtime == self.runtime:
            return self
        return _in_every_form(replace(self, runtime=runtime), lambda made: made.on(device))

    def priced(self, cost: str, device: str = "cpu") -> Step:
        """The step with nodes that cost what one of `COSTS` says.

        Args:
            cost: ``flops``, by shapes; ``calibrated``, by kernels that were timed on one thread of this machine;
                ``measured``, by a profiled run on a device; or ``clock``, by shapes, with files timed until one
                costs what was asked for.
            device: where nodes are measured.

        Raises:
            UsageError: there is no such cost.
        """
        check_cost(cost)
        if cost == "flops":
            return self
        # All of the meter, for one option.
        if cost == "clock":
            from ckplan.meter.seconds.clock import timed_in_turns
            from ckplan.meter.trial import check_starts

            check_starts(device)
            return replace(self, clock=partial(timed_in_turns, device="cuda" if device == "cuda" else "cpu"))
        if cost == "calibrated":
            if device == "cuda":
                raise UsageError(
                    "`--cost calibrated` times kernels of this machine's CPU, and `--device cuda` plans for others",
                    "take --cost measured or flops",
                )
            from ckplan.meter.seconds.calibration import calibrated_costs

            found = replace(self, pricing=calibrated_costs, notes=(*self.notes, _CALIBRATED))
        else:
            from ckplan.meter.seconds.costs import measured_costs

            found = replace(self, costs=measured_costs(self.model, device))
        return _in_every_form(found, lambda made: made.priced(cost, device))

    def original(self) -> ir.Model:
        """The model as it came: as it is in the file, before it was brought into normal form."""
        return self.model if self.source is None else model_of(self.source)

    def __repr__(self) -> str:
        kind = "inference" if self.training is None else "training"
        return f"<Step of {self.name}: {kind}, {len(self.model.graph)} nodes>"


def _in_every_form(step: Step, change: Callable[[Step], Step]) -> Step:
    """A step that was changed, whose other forms change alike when they are made."""
    recut, by_rows = step.recut, step.by_rows

    def form(made: Step) -> Step:
        return replace(change(made), whole=step)

    if by_rows is not None:
        step = replace(step, by_rows=lambda: None if (made := by_rows()) is None else form(made))
    if recut is not None:
        step = replace(step, recut=lambda pieces: form(recut(pieces)))
    return step


def open_step(
    source: Source,
    options: StepOptions | None = None,
    progress: Progress = lambda doing: None,
    name: str = "",
    device: str = "auto",
) -> Step:
    """Load a model and differentiate it.

    Args:
        source: the model.
        options: how to load and differentiate it.
        progress: called with what is being done, in words.
        name: what to call it; by default its file's name.
        device: whose kernels gradients and plans are for; ``auto`` is the CPU.

    Raises:
        ModelError: it cannot be read, shaped or differentiated.
        UsageError: an option does not fit the model or another option.
    """
    options = options or StepOptions()
    chosen = options.option("optimizer")
    optimizer = None if chosen is None else parse_optimizer(chosen)
    name, runtime = name or name_of(source), RUNTIMES.get(device, CPU)
    progress(f"reading {name}")
    forward = forward_of(source, options)
    chunks = options.option("chunks")
    decided = chunks == AUTO
    if options.inference:

        def run(chunks: Chunks) -> Step:
            made, regions, told = forward_in_pieces(forward.model, chunks)
            notes = (*forward.notes, *told)
            return step_of(made, name, notes=notes, source=source, regions=regions, runtime=runtime)

        return _decided(run) if decided else run(chunks)
    progress("differentiating")
    objective = {key: options.option(key) for key in TRAINING if key not in ("optimizer", "clip_norm", "lora")}
    objective["params"] = () if objective["params"] is None else read_names(Path(objective["params"]))
    if options.option("lora") is not None:
        objective["wrt"] = _adapted(forward.model, options)

    def form(chunks: Chunks, *, by_rows: bool = False) -> Step:
        made = build_training_graph(forward.model, **{**objective, "chunks": chunks, "device": runtime.name})
        if optimizer is not None:
            made = add_optimizer(made, optimizer, options.option("clip_norm"), by_rows=by_rows)
        notes = (*forward.notes, f"the loss is {made.description}", *made.notes, *half_precision_notes(made.model))
        return step_of(made, name, notes=notes, source=source, regions=made.regions, runtime=runtime)

    chunks = OFF if decided else chunks
    whole = form(chunks)

    def in_rows() -> Step | None:
        made = form(chunks, by_rows=True)
        return replace(made, whole=whole) if updated_by_rows(made.model.graph) else None

    if optimizer is not None:
        whole = replace(whole, by_rows=in_rows)
    return _decided(form, whole) if decided else whole


def _decided(form: Callable[[Chunks], Step], whole: Step | None = None) -> Step:
    """The step without pieces, of which plans are to decide on that."""
    step = form(OFF) if whole is None else whole
    return replace(step, recut=lambda pieces: replace(form(str(pieces)), whole=step))


def _adapted(forward: ir.Model, options: StepOptions) -> tuple[str, ...]:
    """Insert the adapters that are asked for, in place; returns what is trained, everything else being frozen."""
    if options.option("params") is not None:
        raise UsageError("`--lora` and `--params` both say what is trained", "leave out one of them")
    return (*add_adapters(forward, Lora.of(options.option("lora"))), *options.option("wrt"))


def step_of(graph: TrainingGraph | ir.Model, name: str = "model", **known: Any) -> Step:
    """The step of a graph that is there already: a training graph, or a model in normal form.

    The graph is consumed: weights of heavy operators become inputs with a default. Of a constant weight onnxruntime
    holds a second, packed copy, and it moves convolutions of such weights to a layout of its own, whose tensors are
    padded: that is quicker, and takes memory that no plan has a say in. Pooling takes a form that it rounds alike with
    and without a plan.

    Args:
        graph: the graph.
        name: what to call it.
        known: what else is known; see the fields of `Step`.
    """
    training = None if isinstance(graph, ir.Model) else graph
    model = graph if isinstance(graph, ir.Model) else graph.model
    feed_weights(model.graph)
    inline_functions(model)
    average_alike(model.graph)
    return Step(name, model, training, **known)
