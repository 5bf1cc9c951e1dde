"""Measure one file: memory by three meters, step time, outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import onnx_ir as ir

from ckplan.arguments import check_flag, check_number
from ckplan.display import one_line, shortened
from ckplan.errors import CkplanError, ModelError
from ckplan.isolation.arrays import load_arrays, save_arrays
from ckplan.isolation.folders import temporary_folder
from ckplan.meter.executed.alive import Inside
from ckplan.meter.executed.failed_run import with_expected_memory
from ckplan.meter.executed.graph import executed_graph
from ckplan.meter.executed.inside import look_inside
from ckplan.meter.executed.recomputed import recomputation
from ckplan.meter.facts import FileFacts, file_facts, read_model
from ckplan.meter.inputs import Inputs, make_inputs
from ckplan.meter.memory.counter_timeline import asked_for, interpret, steady_state
from ckplan.meter.memory.counters import RUNS, are_executed
from ckplan.meter.memory.events import MOST_EVENTS, events_of
from ckplan.meter.memory.meters import meters
from ckplan.meter.memory.nvml import Gpu
from ckplan.meter.numbers.numerics import count_nonfinite
from ckplan.meter.problems import SLACK, TOLERANCE
from ckplan.meter.running.device import check_device, check_threads
from ckplan.meter.running.errors import RunFailedError
from ckplan.meter.running.process import run_job
from ckplan.meter.types import Counters, Measurement, Prediction, Recomputation, Resident
from ckplan.model.files.read import is_text
from ckplan.model.fixing import Fixed
from ckplan.model.half import half_precision_notes
from ckplan.units import format_bytes, format_seconds

_VARIANTS: tuple[dict[str, Any], ...] = (
    {"order": "default", "pattern": True, "runs": RUNS},
    {"order": "priority", "pattern": True, "runs": 2},
    {"order": "default", "pattern": False, "runs": 2},
)
"""How the counters are read. The second run is in the steady state: the arena is as the first one left it, and so it is
at the beginning of every later one. A third one is for the times of nodes."""

_COMPARED: tuple[dict[str, Any], ...] = (
    {"order": "default", "pattern": True, "runs": 2},
    {"order": "priority", "pattern": True, "runs": 1},
    {"order": "default", "pattern": False, "runs": 2},
)
"""The same where two files are compared: no times of nodes, and the steady state of the default order alone. The first
of them are the runs that outputs are taken from, unless there is a GPU."""

_LONG = 1.0
"""Seconds of a step from which these are the only ones: no plan is for other options than the default ones."""

_LOADED: dict[str, Any] = {"order": "default", "pattern": True, "runs": 0}
"""No run: what onnxruntime made of the nodes of a file is told by loading it."""

_CUT: dict[str, Any] = {"order": "default", "pattern": True, "runs": 1, "cut": True}
"""How workspaces are read where the peak is not what the file predicts."""

Progress = Callable[[str], None]


def _silent(doing: str) -> None:
    pass


def measure(
    path: str | Path,
    *,
    device: str = "auto",
    inputs: Path | None = None,
    seed: int = 0,
    runs: int = 5,
    threads: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fixed: Fixed | None = None,
    heap: bool = True,
    inside: bool = False,
    progress: Progress = _silent,
) -> Measurement:
    """Run a model in onnxruntime, with default session options, and tell what it takes.

    The model runs in child processes only: one for each meter and one for times and outputs.

    Args:
        path: an ONNX file that onnxruntime can run; a training graph or any other.
        device: ``auto`` (CUDA if it works), ``cpu`` or ``cuda``.
        inputs: an ``.npz`` with the inputs to use; None makes up seeded random ones.
        seed: of the random inputs.
        runs: number of timed steps.
        threads: intra-op threads; None leaves onnxruntime's default.
        dims: sizes of named dimensions, for random inputs.
        shapes: shapes of whole inputs, for random inputs.
        fixed: numbers to feed, by name of the input, in place of random ones.
        heap: whether to run the meters that cost a further process: memray, and what others registered.
        inside: whether to look at the executed graph as well, for what is alive at the peak and for what was to be
            expected; costs a further process, which loads the model and does not run it.
        progress: is told what is being done.

    Raises:
        UsageError: an option does not fit the model.
        ModelError: the file is not a model, or onnxruntime does not run it.
        EnvironmentUnavailableError: the device is not there; as `RunFailedError`, a process ended early.
    """
    check_options(device, runs, threads)
    check_flag("`heap`", heap)
    check_flag("`inside`", inside)
    model = read_model(Path(path))
    chosen = make_inputs(model, file=inputs, seed=seed, dims=dims, shapes=shapes, fixed=fixed)
    with temporary_folder() as folder:
        save_arrays(folder / "inputs", chosen.arrays)
        request = request_for(Path(path), folder / "inputs", device, threads)
        return measured(
            model, chosen, request, folder / "outputs", runs=runs, heap=heap, inside=inside, progress=progress
        )


def check_options(device: str, runs: int, threads: int | None) -> None:
    """See that options are such that a model can be measured with.

    Raises:
        UsageError: one is not.
    """
    check_device(device)
    check_number("the number of runs", runs, 1, whole=True)
    check_threads(threads)


def request_for(path: Path, inputs: Path, device: str, threads: int | None) -> dict[str, Any]:
    """What every job needs to know, ready for JSON.

    Args:
        path: the model.
        inputs: the folder with what it is fed; see `ckplan.isolation.arrays`.
        device: one of `DEVICES`.
        threads: intra-op threads; None leaves onnxruntime's default.

    Raises:
        ModelError: the model is a text, which onnxruntime does not read.
    """
    if is_text(path):
        raise ModelError(
            f"{path.name} is a model in text, and onnxruntime runs only those in binary",
            "write it as such: onnx.save(onnx.load(...), 'model.onnx')",
        )
    return {"path": str(path), "inputs": str(inputs), "device": device, "threads": threads}


def measured(
    model: ir.Model,
    inputs: Inputs,
    request: Mapping[str, Any],
    outputs: Path,
    *,
    runs: int,
    heap: bool,
    inside: bool = False,
    compared: bool = False,
    progress: Progress = _silent,
) -> Measurement:
    """Run all meters on one file; the outputs of its first run stay in the folder ``outputs``.

    Where the file is ``compared`` with another one, it runs no more often than that takes, and no thread spins: how
    long a step takes is found out by turns (`ckplan.meter.seconds.timing`), so the runs for outputs may be profiled.

    Args:
        model: the file, as it was read.
        inputs: what it is fed.
        request: what jobs are told; see `request_for`.
        outputs: where the outputs are to be.
        runs: number of timed runs.
        heap: whether to run the meters that cost a further process.
        inside: whether to tell what is alive at the peak, and the expected timeline.
        compared: see above.
        progress: called with what is done.

    Raises:
        CkplanError: as `measure`.
    """
    facts = file_facts(model)
    name = Path(request["path"]).name
    request = {**request, "spin": False, "warm_up": 1} if compared else request
    room = max(1, MOST_EVENTS // max(events_of(model.graph), 1))
    profiled = compared and runs + 1 == _COMPARED[0]["runs"] <= room
    progress(f"running {name}: times and outputs")
    executed = outputs.with_name(f"{outputs.name}-executed.onnx")
    try:
        plain = run_job(
            "ckplan.meter.memory.plain", {**request, "outputs": str(outputs), "runs": runs, "profiled": profiled}
        )
    except RunFailedError as error:
        if not inside:
            raise
        progress(f"loading {name} to find out what it was expected to take")
        raise with_expected_memory(error, model, inputs.arrays, request, executed) from error
    # A device that fell back once need not be tried again.
    request = {**request, "device": plain["device"]}
    progress(f"running {name}: counters of the allocator")
    looking = inside or bool(facts.recomputed)
    asked = {**request, "producers": dict(facts.producers), "optimized": str(executed) * looking}
    variants = _run_variants(asked, plain, facts, room, compared=compared)
    told = interpret(variants[0], facts, inputs.nbytes)
    priority, without_pattern = None, None
    if len(variants) > 1:
        priority, without_pattern = interpret(variants[1], facts, inputs.nbytes), steady_state(variants[2])
    if told is not None and plain["device"] == "cpu" and not _as_promised(told, facts.prediction):
        progress(f"running {name}: what kernels ask of the allocator")
        (cut,) = run_job(
            "ckplan.meter.memory.counters", {**request, "variants": [_CUT], "producers": variants[0]["producers"]}
        )
        told = asked_for(told, interpret(cut, facts, inputs.nbytes))
    notes = [*inputs.notes, *_notes_on_run(model, plain, told, bool(variants[0]["runs"]))]
    readings, unread = _readings(request, lambda doing: progress(f"running {name}: {doing}")) if heap else ({}, [])
    notes.extend(unread)
    if told is not None:
        notes.extend(_broken_promise(facts.prediction, told))
    looked = None
    if inside and told is not None:
        progress(f"reading what onnxruntime made of {name}")
        looked, note = _inside(model, executed, variants[0]["runs"][0], told, inputs, facts, request)
        notes.extend([note] if note else [])
    notes.extend(_notes_on_device(plain, looked))
    kept = load_arrays(outputs, mapped=True)
    return Measurement(
        path=str(request["path"]),
        device=plain["device"],
        providers=tuple(plain["providers"]),
        onnxruntime=plain["version"],
        threads=request["threads"],
        input_bytes=inputs.nbytes,
        output_bytes=sum(array.nbytes for array in kept.values()),
        parameter_bytes=facts.initializer_bytes,
        counters=told,
        priority=priority,
        steady_without_pattern=without_pattern,
        resident=Resident(**plain["resident"]),
        step_seconds=tuple(plain["seconds"]),
        wobble=plain["wobble"],
        nonfinite=count_nonfinite(kept),
        prediction=facts.prediction,
        recomputation=_recomputation(model, facts, variants[0]["runs"], executed),
        notes=tuple(notes),
        inside=looked,
        gpu=Gpu(**plain["gpu"]) if plain["gpu"] else None,
        readings=readings,
    )


def _as_promised(told: Counters, promised: Prediction) -> bool:
    """Whether both peaks are to the byte what the file says; its largest workspace need not be at that of the other."""
    return (told.peak_activations, told.peak_total) == (promised.peak_activations, promised.peak_total)


def _run_variants(
    request: Mapping[str, Any], plain: Mapping[str, Any], facts: FileFacts, room: int, *, compared: bool
) -> list[dict[str, Any]]:
    """The events of the runs in which counters are read; see `_VARIANTS` and `_COMPARED`.

    Args:
        request: the job, without its variants.
        plain: what the run for times and outputs told; its events, if it has any, are those of the first variant.
        facts: what the file itself says.
        room: how many runs onnxruntime keeps the events of.
        compared: whether the file is compared with another one.

    Raises:
        RunFailedError: onnxruntime failed in one of them.
    """
    wanted = _COMPARED if compared else _VARIANTS
    done = [wanted[0] | plain["events"]] if plain["events"] else []
    further = [{**one, "runs": min(one["runs"], room)} for one in wanted[len(done) :]]
    if compared and min(plain["seconds"]) > _LONG:
        further = further[:1] if not done else [] if _is_all_told(done[0], facts) else [_LOADED]
    try:
        others = run_job("ckplan.meter.memory.counters", {**request, "variants": further}) if further else []
    except RunFailedError as error:
        raise _after_all(error, plain) from error
    producers = others[0]["producers"] if others else facts.producers
    return [*(one | {"producers": producers} for one in done), *([] if further == [_LOADED] else others)]


def _notes_on_run(model: ir.Model, plain: Mapping[str, Any], told: Counters | None, has_events: bool) -> list[str]:
    """What is to be known of the figures of a run: half precision, outputs left out, no counters."""
    notes = list(half_precision_notes(model)) if plain["device"] == "cpu" else []
    if plain["not_tensors"]:
        notes.append(f"outputs that are not tensors were not looked at: {shortened(plain['not_tensors'])}")
    if told is None:
        without = f"onnxruntime {plain['version']} reports no memory counters (1.31 and later do)"
        cause = without if has_events else "no node runs: all was computed when the file was loaded"
        notes.append(f"{cause}; figures are from the heap meter")
    return notes


def _notes_on_device(plain: Mapping[str, Any], looked: Inside | None) -> list[str]:
    """What is to be known of figures of a GPU."""
    notes = [plain["gpu_note"]] if plain["gpu_note"] else []
    if plain["device"] == "cuda":
        notes.append("times of nodes are those of starting their kernels, which run on while the next node is started")
        if looked is not None:
            notes.append("what is expected has workspaces of cuDNN's convolutions, and else those of the CPU's kernels")
    return notes


def _is_all_told(variant: Mapping[str, Any], facts: FileFacts) -> bool:
    """Whether onnxruntime ran the file's own nodes where it matters, so that nobody need ask what it made of others."""
    names = set(variant["runs"][0]["name"]) if variant["runs"] else set()
    return facts.recomputed <= names and are_executed(facts.producers, names)


def _after_all(error: RunFailedError, plain: Mapping[str, Any]) -> RunFailedError:
    """The failure of a later run, with what the first process had found."""
    seconds, resident = median(plain["seconds"]), plain["resident"]["peak"]
    how = "in the default order" if plain["events"] else "without the profiler"
    return type(error)(
        f"{error.message}; before, {how}, it ran in {format_seconds(seconds)} with {format_bytes(resident)} resident",
        error.hint,
        stage=error.stage,
        learnt={**error.learnt, "seconds": seconds, "resident_peak": resident},
        stderr=error.stderr,
    )


def _readings(request: Mapping[str, Any], progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """What the meters read that take a process of their own, by name, and why others have no figure.

    They are checks on the first meter, so a failure of theirs is not the end.
    """
    found, notes = {}, []
    for meter in meters():
        if meter.job and request["device"] in meter.devices:
            progress(meter.doing or meter.name)
            try:
                found[meter.name] = meter.read(run_job(meter.job, request))
            except CkplanError as error:
                notes.append(f"no figure from the {meter.name} meter: {error}")
    return found, notes


def _inside(
    model: ir.Model,
    executed: Path,
    run: Mapping[str, Sequence[Any]],
    counters: Counters,
    inputs: Inputs,
    facts: FileFacts,
    request: Mapping[str, Any],
) -> tuple[Inside | None, str]:
    """The executed graph, or why it cannot be had: the measurement stands without it."""
    try:
        graph, (device, threads) = executed_graph(executed, model), (request["device"], request["threads"])
        return look_inside(graph, run, counters, inputs.arrays, facts, device, threads), ""
    except CkplanError as error:
        reason = str(error)
    except ValueError as error:
        reason = f"the optimised graph does not fit the run: {one_line(error)}"
    except Exception as error:  # a graph unlike all that the simulator has met does not make figures less true
        reason = f"{type(error).__name__} in simulating it: {one_line(error)}"
    return None, f"what is alive at the peak is not known: {reason}"


def _broken_promise(prediction: Prediction, counters: Counters) -> list[str]:
    """A note if the file takes clearly more than its metadata say."""
    promised = prediction.peak_activations
    if not promised or counters.peak_activations <= promised * TOLERANCE + SLACK:
        return []
    excess = counters.peak_activations / promised - 1
    step = counters.timeline.steps[counters.timeline.peak_step].op
    return [f"peak activations are {excess:.0%} above what the file predicts, at node '{step}'"]


def _recomputation(
    model: ir.Model, facts: FileFacts, runs: Sequence[Mapping[str, Sequence[str]]], executed: Path
) -> Recomputation:
    ran = set(runs[0]["name"]) if runs else set()
    if facts.recomputed <= ran or not executed.exists():
        return Recomputation(in_file=len(facts.recomputed), executed=len(facts.recomputed & ran))
    nodes = [node for node in model.graph.all_nodes() if node.name in facts.recomputed]
    return recomputation(nodes, ran, list(ir.load(executed).graph.all_nodes()))
