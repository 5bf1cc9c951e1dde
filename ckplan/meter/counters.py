"""Memory meter 1: onnxruntime's own allocator counters, read from its profile.

Since 1.31 each node event of a profile tells what the allocator had in use when the kernel ended, before the
kernel's inputs were released. That is the live set of the memory model, to the byte, but for what is put
right here:

- Constants that onnxruntime prepacked, and tiny ones, are in the figure; initializers that it left as they are, and
  all that are also inputs (overridable), are not. What was in use before the first kernel is taken off. Parameters
  count as the overridable ones plus the larger of what was taken off and the file's constants. Constants that
  onnxruntime folded are in neither; the heap meter's ``session`` holds them.
- On the CPU the inputs that the caller feeds are not in it; they are added.
- A workspace that a kernel frees again is in the lifetime high-water only. It is seen when it sets a new
  high-water, which is when it matters to the peak of the total; lesser ones stay unseen. Where the peak is not what
  the file predicts, workspaces are read in an arena that cuts its chunks to size.
- What kernels that go by indices take outside the allocator (`ckplan.operators.outside`) is added to the figures of
  their steps, by the shapes that the run had. The heap meter sees it by itself.

The first run is the one to compare with a plan. From the second on onnxruntime takes one block laid out from the
first run's allocations (memory patterns), beside what its arena still holds: the steady state, told apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ckplan.isolation.arrays import load_arrays
from ckplan.meter.child import Channel
from ckplan.meter.device import CPU, CUDA
from ckplan.meter.events import read_events
from ckplan.meter.meter import Figure, Meter
from ckplan.meter.session import as_array, open_session, step_of
from ckplan.meter.types import Counters, Steady, Workspace
from ckplan.operators.outside import index_input, outside_bytes
from ckplan.planner.timeline import Moment, Timeline

if TYPE_CHECKING:
    from ckplan.meter.facts import FileFacts
    from ckplan.meter.types import Measurement
    from ckplan.planner.allocations import ExpectedArena

RUNS = 3
"""The first run, and two in the steady state: the block of the pattern is taken from the second one on."""


def _steady(found: Measurement) -> Steady | None:
    return found.counters.steady if found.counters else None


def _arena(found: Measurement) -> ExpectedArena | None:
    return found.inside.arena if found.inside else None


METER = Meter(
    "counters",
    (
        Figure(
            "activations, peak",
            lambda found: found.peak_activations,
            expected=lambda found: found.inside.expected.peak_activations if found.inside else None,
            promised=lambda found: found.prediction.peak_activations,
            style="bold",
        ),
        Figure("  in priority order", lambda found: found.priority.peak_activations if found.priority else None),
        Figure(
            "all live memory, peak",
            lambda found: found.peak_total,
            expected=lambda found: found.inside.expected.peak_total if found.inside else None,
            promised=lambda found: found.prediction.peak_total,
            style="bold",
        ),
        Figure(
            "  parameters",
            lambda found: found.counters.parameters if found.counters else found.parameter_bytes,
            alone=True,
        ),
        Figure("  inputs", lambda found: found.input_bytes, alone=True),
        Figure("  outputs", lambda found: found.output_bytes, alone=True),
        Figure(
            "steady state, in use",
            lambda found: steady.in_use if (steady := _steady(found)) else None,
            expected=lambda found: arena.steady.in_use if (arena := _arena(found)) else None,
        ),
        Figure(
            "steady state, arena held",
            lambda found: steady.held if (steady := _steady(found)) else None,
            expected=lambda found: arena.steady.held if (arena := _arena(found)) else None,
        ),
        Figure(
            "  without memory pattern",
            lambda found: found.steady_without_pattern.held if found.steady_without_pattern else None,
            expected=lambda found: arena.without_pattern.held if (arena := _arena(found)) else None,
        ),
    ),
)

_SUFFIX = "_kernel_time"
_INSERTED_CAST = "InsertedPrecisionFreeCast_"
"""How the nodes are called that cast to and from single precision; one of them then makes the output of the file."""

_COLUMNS = {
    "requested": "mem_bytes_requested_in_use",
    "requested_delta": "mem_requested_in_use_delta",
    "in_use": "mem_bytes_in_use",
    "peak": "mem_in_use_peak",
    "held": "mem_arena_held",
}


def job(channel: Channel) -> list[dict[str, Any]]:
    """In the child: run each variant (order, memory pattern) of the session and return its events.

    Where the steady state does not matter, request or variant may ask for other ``runs`` than `RUNS`, and one variant
    for ``cut`` chunks (see `open_session`): its workspaces are what kernels asked for, not what an arena handed out.
    """
    request = channel.request
    feed = load_arrays(Path(request["inputs"]))
    producers: dict[str, str] | None = None
    results: list[dict[str, Any]] = []
    optimized = Path(request["optimized"]) if request.get("optimized") else None
    for variant in request["variants"]:
        result = _run_variant(channel, feed, variant, None if results else optimized)
        if producers is None:
            names = set(result["runs"][0]["name"]) if result["runs"] else set()
            producers = _producers(channel, names)
        results.append(result | {"producers": producers})
    return results


def _run_variant(
    channel: Channel, feed: Mapping[str, Any], variant: Mapping[str, Any], optimized: Path | None
) -> dict[str, Any]:
    """One variant's events; its optimised graph is written if a file is named and onnxruntime can."""
    request = channel.request
    label = f"{variant['order']} order" + ("" if variant["pattern"] else ", memory patterns off")
    channel.progress(f"the loading ({label})")
    opened = partial(
        open_session,
        request["path"],
        request["device"],
        order=variant["order"],
        pattern=variant["pattern"],
        threads=request["threads"],
        profile=channel.folder / f"{variant['order']}-{variant['pattern']}",
        cut=variant.get("cut", False),
        spin=request.get("spin", True),
    )
    try:
        session, device = opened(optimized=optimized)
    except Exception:
        if optimized is None:
            raise
        optimized.unlink(missing_ok=True)
        session, device = opened()  # whatever kept it from writing is no reason not to run
    step = step_of(session, feed)
    names = [value.name for value in session.get_outputs()]
    sizes: dict[str, int] = {}
    runs = variant.get("runs", request.get("runs", RUNS))
    for run in range(runs):
        channel.progress(f"run {run + 1} of {runs} ({label})")
        results = step()
        arrays = [as_array(result) for result in results]
        sizes = {name: array.nbytes for name, array in zip(names, arrays, strict=True) if array is not None}
        # The arrays may be views of onnxruntime's own buffers, which the next run would count as in use.
        del results, arrays
    return {**variant, **ended(session, device, sizes)}


def ended(session: Any, device: str, outputs: Mapping[str, int]) -> dict[str, Any]:
    """What a profiled session tells once it has run: its events, which `interpret` reads.

    Args:
        session: an open session; its profile ends here and is deleted.
        device: the device that it used.
        outputs: bytes of its outputs, by name.
    """
    import onnxruntime as ort

    profile = Path(session.end_profiling())
    found = split_runs(read_events(profile))
    profile.unlink()
    return {
        "device": device,
        "providers": session.get_providers(),
        "version": ort.__version__,
        "outputs": dict(outputs),
        "runs": found,
    }


def split_runs(events: Iterable[Mapping[str, Any]]) -> list[dict[str, list[Any]]]:
    """The kernel events of a profile as columns, one set a run.

    Args:
        events: the profile, in file order; a ``model_run`` event closes a run.

    Returns:
        Columns ``name``, ``op``, ``provider``, ``start`` (microseconds), ``seconds``, ``made`` (element type and
        shape of each output), ``outside`` (bytes that the kernel took outside the allocator), and the memory counters
        in bytes (None on versions of onnxruntime before 1.31, which do not tell).
    """
    runs: list[dict[str, list[Any]]] = []
    current: dict[str, list[Any]] = {}
    for event in events:
        name = event["name"]
        if event.get("cat") == "Node" and name.endswith(_SUFFIX):
            arguments = event["args"]
            row: dict[str, Any] = {
                "name": name.removesuffix(_SUFFIX),
                "op": arguments.get("op_name", ""),
                "provider": arguments.get("provider", CPU),
                "start": event["ts"],
                "seconds": event["dur"] / 1e6,
                "made": [next(iter(made.items())) for made in arguments.get("output_type_shape", ()) if made],
                "outside": _outside(arguments),
            }
            for column, key in _COLUMNS.items():
                row[column] = int(arguments[key]) if key in arguments else None
            for column, value in row.items():
                current.setdefault(column, []).append(value)
        elif event.get("cat") == "Session" and name == "model_run" and current:
            runs.append(current)
            current = {}
    return runs


def _outside(arguments: Mapping[str, Any]) -> int:
    """Bytes that the kernel of an event took outside the allocator."""
    op_type, read = arguments.get("op_name", ""), arguments.get("input_type_shape", ())
    place = index_input(op_type)
    if place is None or len(read) <= place or arguments.get("provider", CPU) != CPU:
        return 0
    return outside_bytes(op_type, next(iter(read[place].values())))


def _producers(channel: Channel, executed: set[str]) -> dict[str, str]:
    """Names of the executed nodes that make the outputs of the file, by output.

    Usually those of the file. Where onnxruntime fused or replaced one, or put a Cast behind it, the optimised graph is
    written and read: only then, since it costs another session.
    """
    producers: dict[str, str] = channel.request["producers"]
    if are_executed(producers, executed):
        return producers
    import onnx

    channel.progress("reading the optimised graph")
    optimized = channel.folder / "optimized.onnx"
    open_session(channel.request["path"], channel.request["device"], threads=1, optimized=optimized)
    graph = onnx.load(str(optimized), load_external_data=False).graph
    made = {name: node.name for node in graph.node for name in node.output}
    for file in (optimized, channel.folder / "weights.bin"):
        file.unlink(missing_ok=True)
    return {output: made[output] for output in producers if output in made}


def are_executed(producers: Mapping[str, str], executed: Collection[str]) -> bool:
    """Whether the nodes that make the outputs of a file, by output, are among those that ran, with no Cast behind."""
    cast = any(name.startswith(_INSERTED_CAST) for name in executed)
    return not cast and all(node in executed for node in producers.values())


def interpret(raw: Mapping[str, Any], facts: FileFacts, fed: int) -> Counters | None:
    """Turn the events of one variant into a timeline and its peaks.

    Args:
        raw: one element of what `job` returns.
        facts: what the file itself says.
        fed: bytes of the inputs that were fed.

    Returns:
        None if this onnxruntime reports no memory counters.
    """
    runs: Sequence[Mapping[str, Sequence[Any]]] = raw["runs"]
    if not runs or any(value is None for value in runs[0]["requested"]):
        return None
    first = runs[0]
    count = len(first["name"])
    later = [run for run in runs[1:] if len(run["name"]) == count] or [first]
    requested = _summed(first["provider"], first["requested"])
    before = in_use_before(first)
    parameters = _parameters(before, facts, fed, on_device=CUDA in first["provider"])
    made = _outputs_made(first, raw["producers"], raw["outputs"])
    workspaces = tuple(_workspaces(first))
    extra = {workspace.step: workspace.bytes for workspace in workspaces}
    steps = []
    for index in range(count):
        fresh = requested[index] - before + extra.get(index, 0) + first["outside"][index]
        name = first["name"][index]
        steps.append(
            Moment(
                op=name,
                live=parameters + fed + fresh,
                activations=max(fresh - made[index], 0),
                backward=facts.is_backward(name),
                recomputed=facts.is_recomputed(name),
            )
        )
    return Counters(
        order=raw["order"],
        timeline=Timeline(tuple(steps)),
        op_types=tuple(first["op"]),
        seconds=tuple(median(run["seconds"][index] for run in later) for index in range(count)),
        parameters=parameters,
        workspaces=workspaces,
        steady=steady_state(raw) if len(runs) > 1 else None,
    )


def asked_for(counters: Counters, cut: Counters | None) -> Counters:
    """The same with what kernels asked for as workspaces, as an arena tells it that cuts its chunks to size.

    The default arena hands out a free chunk of up to twice that as it is, and what it wastes hides smaller workspaces.
    """
    if cut is None or len(cut.timeline.steps) != len(counters.timeline.steps):
        return counters
    return replace(counters, timeline=cut.timeline, workspaces=cut.workspaces)


def steady_state(raw: Mapping[str, Any]) -> Steady | None:
    """What the last run of a variant had in use and what its arena held, in bytes."""
    if not raw["runs"] or raw["runs"][-1]["in_use"][0] is None:
        return None
    last = raw["runs"][-1]
    return Steady(
        in_use=max(_summed(last["provider"], last["in_use"])), held=max(_summed(last["provider"], last["held"]))
    )


def _parameters(before: int, facts: FileFacts, fed: int, *, on_device: bool) -> int:
    """Bytes of the parameters, as onnxruntime holds them, from what its allocators had in use before the first kernel.

    On a device all initializers and the fed inputs are copied into the arena.
    """
    if on_device:
        return max(before - fed, facts.initializer_bytes)
    return facts.overridable_bytes + max(before, facts.initializer_bytes - facts.overridable_bytes)


def _summed(providers: Sequence[str], values: Sequence[int]) -> list[int]:
    """Each event tells its own provider's allocator; add what the others told last."""
    latest: dict[str, int] = {}
    sums = []
    for provider, value in zip(providers, values, strict=True):
        latest[provider] = value
        sums.append(sum(latest.values()))
    return sums


def in_use_before(run: Mapping[str, Sequence[Any]]) -> int:
    """Bytes that were in use before the first kernel, over all providers.

    Told by the event that starts first. It need not be logged first: events are logged as they end, those of the
    nodes in an If before the If itself. A provider's first event need not be the run's first, but until then the
    provider had allocated nothing more.
    """
    seen: dict[str, tuple[int, int]] = {}
    columns = (run["provider"], run["start"], run["requested"], run["requested_delta"])
    for provider, start, value, delta in zip(*columns, strict=True):
        seen[provider] = min(
            seen.get(provider, (start, value - delta)), (start, value - delta), key=lambda pair: pair[0]
        )
    return sum(in_use for _, in_use in seen.values())


def _outputs_made(
    run: Mapping[str, Sequence[Any]], producers: Mapping[str, str], sizes: Mapping[str, int]
) -> list[int]:
    """Bytes of the file's outputs that exist at the end of each event.

    If and Scan have their outputs from their start on (``core/providers/cpu/controlflow``, ``AllocateOutputTensors``),
    while the nodes inside run, whose events are logged before their own.
    """
    made_by: dict[str, int] = {}
    for output, node in producers.items():
        made_by[node] = made_by.get(node, 0) + sizes.get(output, 0)
    new = [0] * len(run["name"])
    for index, (name, op_type, start) in enumerate(zip(run["name"], run["op"], run["start"], strict=True)):
        size = made_by.pop(name, 0)  # once: a node of a loop's body has an event an iteration
        first = index
        while size and op_type in ("If", "Scan") and first > 0 and run["start"][first - 1] >= start:
            first -= 1
        new[first] += size
    return list(accumulate(new))


def _workspaces(run: Mapping[str, Sequence[Any]]) -> Iterable[Workspace]:
    """Kernels that took more than they left behind, as far as they set a new high-water."""
    high: dict[str, int] = {}
    for index, provider in enumerate(run["provider"]):
        peak = run["peak"][index]
        spike = peak - run["in_use"][index]
        # The first high-water also covers the making of the session (prepacking), so it says nothing.
        if provider in high and peak > high[provider] and spike > 0:
            yield Workspace(index, run["name"][index], run["op"][index], spike)
        high[provider] = peak
