"""The executed graph, simulated beside what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import ckplan
from ckplan.meter import Gap, Inside, Measurement, RunFailedError, measure
from ckplan.meter import measurement as module
from ckplan.meter.executed.gap import widest_gap
from ckplan.meter.executed.inside import aligned
from ckplan.planner.arena import allocations
from ckplan.planner.arena.regions import DEFAULT
from ckplan.planner.timeline import Moment, Timeline
from ckplan.runtime.cpu import THREADS
from tests.meter.models import ACTIVATION, BATCH, WIDTH, chain, floats, save

LAYERS = 6


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    # No value has a shape in this file: onnxruntime infers them, and so does ckplan.
    path = chain(tmp_path_factory.mktemp("kept") / "chain.onnx", LAYERS)
    return measure(path, device="cpu", runs=1, threads=1, heap=False, inside=True)


def test_the_expected_timeline_is_the_measured_one(kept: Measurement) -> None:
    assert kept.counters is not None
    assert kept.inside is not None
    measured, expected = kept.counters.timeline, kept.inside.expected
    assert [step.op for step in expected.steps] == [step.op for step in measured.steps]
    assert [step.backward for step in expected.steps] == [step.backward for step in measured.steps]
    assert expected.peak_activations == measured.peak_activations == (LAYERS + 1) * ACTIVATION
    assert kept.widest_gap is None


@pytest.mark.parametrize("name", ["gpt_tiny", "resnet_tiny"])
def test_of_a_planned_file_what_it_promises_is_expected(name: str, tmp_path: Path) -> None:
    """What it hides from onnxruntime is no shape by which a dead buffer is handed on, though the run tells it.

    Of the GPT onnxruntime moves transposes behind Shapes, and holds what those make.
    """
    path = tmp_path / "planned.onnx"
    sample = Path(__file__).parents[2] / "sample_models" / f"{name}.onnx"
    planned = ckplan.rewrite(sample, strategy="memory", dims={"batch": 4}, output=path)
    found = measure(path, device="cpu", runs=1, threads=THREADS, heap=False, inside=True)
    assert found.inside is not None
    assert found.counters is not None
    expected, measured = found.inside.expected, found.counters.timeline
    assert expected.peak_activations == planned.after.peak_activations
    steps = zip(measured.steps, expected.steps, found.inside.workspaces, strict=True)
    assert len({m.live - e.live for m, e, workspace in steps if not workspace}) == 1  # labels, which are fed
    assert sum(tensor.bytes for tensor in found.inside.alive if tensor.held) < 4096


@pytest.mark.parametrize("name", ["resnet_tiny", "unet_tiny"])
def test_the_arena_is_expected_with_and_without_memory_patterns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first region lies in the way of the one is not where it lies in the way of the other.

    Where it lies is for the C library to say, in each process anew: what is held is what the model of the arena says of
    one of the two places, and what is expected is the place where more is held.
    """
    asked: list[allocations.Allocations] = []

    def listening(wanted: allocations.Allocations) -> allocations.ExpectedArena:
        asked.append(wanted)
        return allocations.expected_arena(wanted)

    monkeypatch.setattr("ckplan.meter.executed.inside.expected_arena", listening)
    sample = Path(__file__).parents[2] / "sample_models" / f"{name}.onnx"
    path = tmp_path / "planned.onnx"
    ckplan.rewrite(sample, strategy="memory", dims={"batch": 16}, output=path)
    found = measure(path, device="cpu", runs=1, threads=1, heap=False, inside=True)
    assert found.counters is not None
    assert found.inside is not None
    assert found.counters.steady is not None
    assert found.steady_without_pattern is not None
    expected = found.inside.arena
    assert found.counters.steady.in_use == expected.steady.in_use
    (wanted,) = asked
    for seen, worst, block in (
        (found.counters.steady, expected.steady, allocations._block(wanted)),
        (found.steady_without_pattern, expected.without_pattern, None),
    ):
        held = [allocations._runs(wanted, DEFAULT, below, block)[1].held for below in (0, 1)]
        assert seen.held in held
        assert worst.held == max(held)


def write_convolution(path: Path) -> Path:
    """A convolution that takes a workspace for each thread, and nothing else of its size."""
    weight = numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "w")
    inputs = [floats("x", 1, 4, 64, 64), floats("w", 4, 4, 3, 3)]
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "exp"),  # of the first node no workspace is seen
        helper.make_node("Conv", ["e", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("ReduceSum", ["c"], ["y"], "sum", keepdims=0),
    ]
    return save(path, nodes, inputs, [floats("y")], [weight])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_workspaces_are_those_of_the_threads_that_ran(threads: int, tmp_path: Path) -> None:
    path = write_convolution(tmp_path / "m.onnx")
    found = measure(path, device="cpu", runs=1, threads=threads, heap=False, inside=True)
    assert found.inside is not None
    assert found.inside.expected.peak_activations == found.peak_activations


def test_the_tensors_alive_at_the_peak_make_it_up(kept: Measurement) -> None:
    assert kept.counters is not None
    assert kept.inside is not None
    alive = kept.inside.alive
    assert sum(tensor.bytes for tensor in alive) == kept.counters.peak_activations
    assert {"a0", "a1", "a2", "a3", "a4"} <= {tensor.name for tensor in alive}
    assert {tensor.op_type for tensor in alive if tensor.name.startswith("a")} == {"Tanh"}
    assert not any(tensor.held for tensor in alive)


def test_a_measurement_with_an_inside_is_json(kept: Measurement) -> None:
    data = json.loads(json.dumps(kept.to_json()))
    assert len(data["inside"]["expected"]["live"]) == len(data["counters"]["timeline"]["live"])
    assert data["inside"]["alive"][0]["bytes"] == ACTIVATION
    assert data["widest_gap"] is None
    assert data["problems"] == []


def test_a_dead_buffer_that_is_held_is_told_apart(tmp_path: Path) -> None:
    # `b` gets the buffer of `a`, which nothing reads after `s`: it is held while `w`, of another size, is made.
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="a"),
        helper.make_node("ReduceSum", ["a"], ["s"], name="s"),
        helper.make_node("Expand", ["s", "wide"], ["w"], name="w"),
        helper.make_node("ReduceMax", ["w"], ["m"], name="m", keepdims=1),
        helper.make_node("Mul", ["x", "m"], ["b"], name="b"),
        helper.make_node("ReduceSum", ["b"], ["y"], name="y"),
    ]
    wide = numpy_helper.from_array(np.array([BATCH, 4 * WIDTH], np.int64), "wide")
    path = save(tmp_path / "m.onnx", nodes, [floats("x", BATCH, WIDTH)], [floats("y", 1, 1)], [wide])
    found = measure(path, device="cpu", runs=1, threads=1, heap=False, inside=True)
    assert found.counters is not None
    assert found.inside is not None
    assert found.counters.peak_activations == pytest.approx(5 * ACTIVATION, abs=64)
    assert [(tensor.name, tensor.held) for tensor in found.inside.alive[:2]] == [("w", False), ("a", True)]


def test_sizes_that_only_the_run_knows_are_taken_from_it(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"], name="a"),
        helper.make_node("NonZero", ["a"], ["places"], name="places"),
        helper.make_node("Cast", ["places"], ["f"], name="f", to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["f"], ["y"], name="y", keepdims=0),
    ]
    path = save(tmp_path / "m.onnx", nodes, [floats("x", "n", WIDTH)], [floats("y")])
    found = measure(path, device="cpu", runs=1, threads=1, heap=False, inside=True, dims={"n": BATCH})
    assert found.inside is not None
    assert {tensor.name: tensor.bytes for tensor in found.inside.alive}["places"] == 2 * BATCH * WIDTH * 8


def test_nodes_inside_of_a_loop_count_as_the_loop(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Tanh", ["state"], ["next"], name="inner"),
            helper.make_node("Identity", ["go"], ["on"], name="on"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            floats("state", BATCH, WIDTH),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, ()), floats("next", BATCH, WIDTH)],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="a"),
        helper.make_node("Loop", ["times", "", "a"], ["b"], name="loop", body=body),
        helper.make_node("ReduceSum", ["b"], ["y"], name="y", keepdims=0),
    ]
    times = numpy_helper.from_array(np.array(3, np.int64), "times")
    path = save(tmp_path / "m.onnx", nodes, [floats("x", BATCH, WIDTH)], [floats("y")], [times])
    found = measure(path, device="cpu", runs=1, threads=1, heap=False, inside=True)
    assert found.counters is not None
    assert found.inside is not None
    steps = {step.op: step.activations for step in found.inside.expected.steps}
    assert len(found.inside.expected.steps) == len(found.counters.timeline.steps) > len(nodes)
    assert steps["inner"] == steps["loop"] >= 2 * ACTIVATION


def named(op_type: str, name: str) -> ir.Node:
    return ir.node(op_type, [], name=name)


def test_events_are_matched_by_place_else_by_name() -> None:
    nodes = [named("Exp", ""), named("Tanh", "t"), named("Exp", "")]
    assert aligned(nodes, ["Exp_0", "t", "Exp_2"], ["Exp", "Tanh", "Exp"]) == [0, 1, 2]
    # Two events of a body in between, one of them of a node with a name that the main graph has, too.
    names, op_types = ["Exp_0", "inner", "t", "t", "Exp_2"], ["Exp", "Cos", "Sin", "Tanh", "Exp"]
    assert aligned(nodes, names, op_types) == [0, None, None, 1, 2]
    with pytest.raises(ValueError, match="1 of its 3 nodes are not among those that ran"):
        aligned(nodes, ["Exp_0", "t"], ["Exp", "Tanh"])


def timeline(*activations: int) -> Timeline:
    return Timeline(tuple(Moment(f"op{i}", 10 + size, size) for i, size in enumerate(activations)))


@pytest.mark.parametrize(
    ("measured", "expected", "workspaces", "gap"),
    [
        ((5, 5), (5, 5), (0, 0), None),
        ((5, 9, 5), (5, 7, 9), (0, 0, 0), Gap(2, -4)),
        ((9, 5), (9, 8), (0, 3), None),  # a workspace below the high-water, which cannot be seen
        ((5, 5), (5, 8), (0, 3), Gap(1, -3)),  # this one would have been seen
        ((9, 8), (9, 7), (0, 3), Gap(1, 1)),
    ],
)
def test_the_widest_gap(
    measured: tuple[int, ...], expected: tuple[int, ...], workspaces: tuple[int, ...], gap: Gap | None
) -> None:
    assert widest_gap(timeline(*measured), Inside(timeline(*expected), (), workspaces)) == gap


def test_a_graph_that_cannot_be_had_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Measurement
) -> None:
    def absent(*arguments: object) -> ir.Model:
        raise ValueError("1 of its 3 nodes are not among those that ran")

    monkeypatch.setattr(module, "executed_graph", absent)
    path = chain(tmp_path / "chain.onnx", 1)
    found = measure(path, device="cpu", runs=1, threads=1, heap=False, inside=True)
    assert found.inside is None
    assert found.widest_gap is None
    assert found.counters is not None
    assert any("what is alive at the peak is not known" in note and "1 of its 3" in note for note in found.notes)


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_a_graph_that_cannot_be_simulated_is_a_line(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> None:
        raise kind("no size is known in graph(\n" + "  %0 = Sum(%x, %x),\n" * 500 + ")")

    monkeypatch.setattr(module, "look_inside", failing)
    found = measure(chain(tmp_path / "chain.onnx", 1), device="cpu", runs=1, threads=1, heap=False, inside=True)
    (note,) = (note for note in found.notes if note.startswith("what is alive at the peak is not known"))
    assert "no size is known" in note
    assert "\n" not in note
    assert len(note) < 350


def test_a_run_that_fails_tells_what_it_was_to_take(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([1 << 20, 1 << 20], np.int64), "shape")
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["huge"], name="grow"),
        helper.make_node("ReduceSum", ["huge"], ["y"], name="sum", keepdims=0),
    ]
    path = save(tmp_path / "m.onnx", nodes, [floats("x", 1)], [floats("y")], [shape])
    with pytest.raises(
        RunFailedError, match=r"out of memory in the first run .* of that 4\.0 TiB .* at 'grow'"
    ) as error:
        measure(path, device="cpu", runs=1, threads=1, heap=False, inside=True)
    assert error.value.learnt["expected_peak_activations"] == 1 << 42
    assert error.value.learnt["resident"] > 0


def test_a_later_process_that_fails_tells_what_the_first_had_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job = module.run_job

    def failing(job: str, request: dict[str, object]) -> object:
        if job == "ckplan.meter.memory.counters":
            raise RunFailedError("the process was killed by SIGKILL", stage="run 1 of 3")
        return run_job(job, request)

    monkeypatch.setattr(module, "run_job", failing)
    with pytest.raises(RunFailedError, match=r"killed by SIGKILL; before, without the profiler, it ran in .* resident"):
        measure(chain(tmp_path / "chain.onnx", 1), device="cpu", runs=1, threads=1, heap=False, inside=True)
