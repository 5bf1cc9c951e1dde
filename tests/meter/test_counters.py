"""Reading of profiles, on events written by hand: what this machine cannot run, and what it would not show."""

from __future__ import annotations

from typing import Any

from ckplan.meter.facts import FileFacts
from ckplan.meter.memory.counter_timeline import interpret, steady_state
from ckplan.meter.memory.counters import split_runs
from ckplan.meter.running.device import CPU, CUDA
from ckplan.meter.types import Prediction

FACTS = FileFacts(
    initializer_bytes=1000,
    overridable_bytes=1000,
    producers={},
    order=(),
    forward=frozenset(),
    backward=frozenset(),
    recomputed=frozenset(),
    prediction=Prediction(None, None),
)


def event(name: str, start: int, in_use: int, delta: int, *, peak: int = 0, provider: str = CPU) -> dict[str, Any]:
    counters = {
        "mem_bytes_requested_in_use": in_use,
        "mem_requested_in_use_delta": delta,
        "mem_bytes_in_use": in_use,
        "mem_in_use_peak": max(peak, in_use),
        "mem_arena_held": 4096,
    }
    arguments = {key: str(value) for key, value in counters.items()} | {"op_name": "Op", "provider": provider}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": 5, "args": arguments}


RUN_END = {"cat": "Session", "name": "model_run", "ts": 0, "dur": 0, "args": {}}


def variant(events: list[dict[str, Any]], **outputs: int) -> dict[str, Any]:
    producers = {name: name for name in outputs}
    return {"order": "default", "pattern": True, "runs": split_runs(events), "producers": producers, "outputs": outputs}


def test_runs_are_told_apart_and_other_events_left_out() -> None:
    noise = {"cat": "Node", "name": "a_fence_before", "ts": 1, "dur": 1, "args": {}}
    other = {"cat": "Session", "name": "SequentialExecutor::Execute", "ts": 1, "dur": 1, "args": {}}
    runs = split_runs(
        [noise, event("a", 1, 10, 10), other, RUN_END, event("a", 9, 30, 0), event("b", 12, 40, 10), RUN_END]
    )
    assert [run["name"] for run in runs] == [["a"], ["a", "b"]]
    assert runs[1]["in_use"] == [30, 40]
    assert runs[0]["seconds"] == [5e-6]


def test_outputs_and_workspaces_are_put_where_they_belong() -> None:
    events = [
        event("a", 1, 100, 100),
        event("b", 2, 150, 50, peak=400),  # 250 more while it ran
        event("c", 3, 160, 10, peak=400),  # below the high-water: nothing is known
        RUN_END,
    ]
    found = interpret(variant(events, b=50), FACTS, fed=7)
    assert found is not None
    assert [step.activations for step in found.timeline.steps] == [100, 100 + 250, 110]
    assert [step.live for step in found.timeline.steps] == [1107, 1157 + 250, 1167]
    assert [(workspace.op, workspace.bytes) for workspace in found.workspaces] == [("b", 250)]


def test_a_high_water_from_before_the_run_is_no_workspace() -> None:
    found = interpret(variant([event("a", 1, 100, 100, peak=900), event("b", 2, 100, 0, peak=900), RUN_END]), FACTS, 0)
    assert found is not None
    assert found.workspaces == ()


def test_nested_nodes_are_logged_before_the_node_that_holds_them() -> None:
    events = [event("inner", 2, 150, 100), event("outer", 1, 50, 50), RUN_END]
    found = interpret(variant(events), FACTS, fed=0)
    assert found is not None
    assert [step.activations for step in found.timeline.steps] == [150, 50]


def test_two_allocators_are_added_and_device_copies_are_not_counted_twice() -> None:
    before = 1000 + 20  # on a device the parameters and the fed inputs lie in the arena
    events = [
        event("gpu", 1, before + 300, 300, provider=CUDA),
        event("shape", 2, 8, 8),
        event("gpu2", 3, before + 500, 200, provider=CUDA),
        RUN_END,
    ]
    found = interpret(variant(events), FACTS, fed=20)
    assert found is not None
    assert found.parameters == 1000
    assert [step.activations for step in found.timeline.steps] == [300, 308, 508]
    assert found.peak_total == 1000 + 20 + 508


def test_an_onnxruntime_without_counters_gives_none() -> None:
    bare = {"cat": "Node", "name": "a_kernel_time", "ts": 1, "dur": 5, "args": {"op_name": "Op", "provider": CPU}}
    raw = variant([bare, RUN_END])
    assert interpret(raw, FACTS, fed=0) is None
    assert steady_state(raw) is None
    assert interpret(variant([]), FACTS, fed=0) is None


def test_the_steady_state_is_the_last_run() -> None:
    raw = variant([event("a", 1, 100, 100), RUN_END, event("a", 2, 700, 0), event("b", 3, 650, 0), RUN_END])
    steady = steady_state(raw)
    assert steady is not None
    assert (steady.in_use, steady.held) == (700, 4096)
