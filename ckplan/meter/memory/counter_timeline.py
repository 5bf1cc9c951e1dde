"""What the events of a profiled run say: what was alive after each node, the peak, and the steady state.

Since 1.31 each node event of a profile tells what the allocator had in use when the kernel ended, before the
kernel's inputs were released. That is the live set of the memory model, to the byte, but for what is put
right here:

- Constants that onnxruntime prepacked, and tiny ones, are in the figure; initializers that it left as they are, and
  all that are also inputs (overridable), are not. What was in use before the first kernel is taken off. Parameters
  count as the overridable ones plus the larger of what was taken off and the file's constants. Constants that
  onnxruntime folded are in neither; the heap meter's ``session`` holds them.
- On the CPU the inputs that the caller feeds are not in it; they are added.
- A workspace that a kernel frees again is in the lifetime high-water only. It is seen when it sets a new
  high-water, which is when it matters to the peak of the total; lesser ones stay unseen. Where a peak is not what
  the file predicts, workspaces are read in an arena that cuts its chunks to size.
- What kernels that go by places take outside the allocator (`ckplan.operators.outside`) is added to the figures of
  their steps, by the shapes that the run had. The heap meter sees it by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any

from ckplan.meter.running.device import CUDA
from ckplan.meter.types import Counters, Steady, Workspace
from ckplan.operators.outside import INDEX
from ckplan.planner.timeline import Moment, Timeline

if TYPE_CHECKING:
    from ckplan.meter.facts import FileFacts


def interpret(raw: Mapping[str, Any], facts: FileFacts, fed: int) -> Counters | None:
    """Turn the events of one variant into a timeline and its peaks.

    Args:
        raw: one element of what `ckplan.meter.memory.counters.job` returns.
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
        name = first["name"][index]
        outside = first["outside"][index] * facts.place_bytes.get(name, INDEX)
        fresh = requested[index] - before + extra.get(index, 0) + outside
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
