"""Memory meter 1: onnxruntime's own allocator counters, read from its profile.

A profile is read in the child that ran the file; `ckplan.meter.memory.counter_timeline` makes timelines of it.

The first run is the one to compare with a plan. From the second on onnxruntime takes one block laid out from the
first run's allocations (memory patterns), beside what its arena still holds: the steady state, told apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckplan.isolation.arrays import load_arrays
from ckplan.meter.memory.events import read_events
from ckplan.meter.meter import Figure, Meter
from ckplan.meter.running.child import Channel
from ckplan.meter.running.device import CPU
from ckplan.meter.running.session import as_array, open_session, step_of
from ckplan.meter.types import Steady
from ckplan.operators.outside import index_input, places_outside

if TYPE_CHECKING:
    from ckplan.meter.types import Measurement
    from ckplan.planner.arena.allocations import ExpectedArena

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
    """What a profiled session tells once it has run: its events, for `ckplan.meter.memory.counter_timeline.interpret`.

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
        shape of each output), ``outside`` (places that the kernel wrote down outside the allocator), and the memory
        counters in bytes (None on versions of onnxruntime before 1.31, which do not tell).
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
    """Places that the kernel of an event wrote down outside the allocator."""
    op_type, read = arguments.get("op_name", ""), arguments.get("input_type_shape", ())
    place = index_input(op_type)
    if place is None or len(read) <= place or arguments.get("provider", CPU) != CPU:
        return 0
    return places_outside(op_type, next(iter(read[place].values())))


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
