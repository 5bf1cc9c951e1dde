"""Which tensor takes the memory when, held against the simulated timeline; and what a plan decides."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from ckplan.answers.analysis import contents_of
from ckplan.answers.findings import chosen, environment, file_occupancy
from ckplan.autodiff import build_training_graph
from ckplan.model import load, save
from ckplan.pipeline import Planned, open_step, rewrite, step_of
from ckplan.planner import Kind, Timeline, simulate
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime import problem_of
from ckplan.runtime.occupancy import Occupancy, Role, executed_occupancy, occupancy
from tests.cli.conftest import write_model


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> ir.Model:
    path = write_model(tmp_path_factory.mktemp("model") / "model.onnx", activation="Sigmoid")
    return build_training_graph(load(path, dims={"batch": 256}).model).model


@pytest.fixture(scope="module")
def planned(training: ir.Model) -> Planned:
    return rewrite(step_of(training), parse_strategy("memory"))


def figures(timeline: Timeline) -> list[tuple[str, int, int]]:
    return [(step.op, step.live, step.activations) for step in timeline.steps]


def assert_adds_up(found: Occupancy) -> None:
    """The buffers and the workspace of each step are its activations, and each buffer's spans follow each other."""
    for number, step in enumerate(found.timeline.steps):
        alive = found.alive(number)
        assert sum(buffer.bytes for _, buffer in alive) + found.workspace[number] == step.activations
        assert [buffer.bytes for _, buffer in alive] == sorted((b.bytes for _, b in alive), reverse=True)
        assert all(buffer.at(number).step <= number for _, buffer in alive)
    for buffer in found.buffers:
        starts = [span.step for span in buffer.spans]
        assert starts == sorted(set(starts))
        assert starts[0] == buffer.born
        assert starts[-1] <= buffer.dies
    births = [buffer.born for buffer in found.buffers]
    assert births == sorted(births)


def roles(found: Occupancy) -> dict[Role, set[str]]:
    names: dict[Role, set[str]] = {role: set() for role in Role}
    for buffer in found.buffers:
        for span in buffer.spans:
            names[span.role].add(span.tensor)
    return names


def test_without_a_plan_it_adds_up(training: ir.Model, planned: Planned) -> None:
    found = executed_occupancy(training)
    assert figures(found.timeline) == figures(planned.before)
    assert_adds_up(found)
    named = roles(found)
    assert not named[Role.RECOMPUTED]
    assert {f"y{layer}" for layer in range(5)} <= named[Role.KEPT]
    assert any(step.backward for step in found.timeline.steps)
    assert not found.timeline.steps[0].backward
    assert all("/grad/" in name for name in named[Role.BACKWARD] if name.startswith("act"))


def test_with_a_plan_it_adds_up(planned: Planned) -> None:
    found = executed_occupancy(planned.model)
    assert figures(found.timeline) == figures(planned.after)
    assert_adds_up(found)
    named = roles(found)
    again = [step.op for step in found.timeline.steps if step.recomputed and not step.op.startswith("ckplan/")]
    assert len(again) == planned.plan.recomputed > 0
    assert all("/recompute" in name for name in (*again, *named[Role.RECOMPUTED]) if not name.startswith("ckplan/"))
    assert named[Role.KEPT]
    spans = [span for buffer in found.buffers for span in buffer.spans]
    assert {span.dtype for span in spans if span.tensor in ("y0", "y1")} == {"float32"}
    assert {span.shape for span in spans if span.tensor in ("y0", "y1")} == {(256, 16)}


def test_a_buffer_that_is_handed_on_is_held_in_between(training: ir.Model) -> None:
    problem = problem_of(training)
    order = range(len(problem.ops))
    one_class = ["all"] * len(problem.tensors)
    found = occupancy(problem, order, training, one_class)
    assert figures(found.timeline) == figures(simulate(problem, order, one_class))
    assert_adds_up(found)
    assert roles(found)[Role.HELD]
    assert not roles(occupancy(problem, order, training))[Role.HELD]


def test_a_repeat_in_the_schedule_is_a_recomputation(training: ir.Model) -> None:
    problem = problem_of(training)
    first = next(index for index, op in enumerate(problem.ops) if op.name == "act0")
    reader = next(index for index in problem.backward if problem.ops[first].outputs[0] in problem.ops[index].inputs)
    schedule = [*range(reader), first, *range(reader, len(problem.ops))]
    found = occupancy(problem, schedule, training)
    assert_adds_up(found)
    assert "y0" in roles(found)[Role.RECOMPUTED]
    assert [step.op for step in found.timeline.steps if step.recomputed] == ["act0"]


def test_decisions_are_those_of_the_plan(training: ir.Model, planned: Planned) -> None:
    found = chosen(planned.step, planned.plan, 4096)
    decisions = [decision for block in found.blocks for decision in block.decisions]
    assert found.budget == 4096
    assert sum(decision.times for decision in decisions) == planned.plan.recomputed
    assert {d.tensor for d in decisions if not d.times} == roles(
        occupancy(planned.step.problem, planned.plan.schedule, planned.step.fused)
    )[Role.KEPT]
    extra = sum(block.seconds for block in found.blocks)
    assert extra == pytest.approx(planned.plan.cost - planned.plan.base_cost)
    names = [decision.tensor for decision in decisions]
    assert len(names) == len(set(names))
    sizes = [block.kept + block.recomputed for block in found.blocks]
    assert sizes == sorted(sizes, reverse=True)


def test_contents_are_those_of_the_file(training: ir.Model) -> None:
    step = step_of(training)
    found = contents_of(step)
    assert found.forward + found.backward == len(step.fused.graph)
    assert found.bytes[Kind.INPUT] >= 256 * 16 * 4
    assert found.bytes[Kind.OUTPUT] >= 6 * 16 * 16 * 4
    assert found.loss == ""


def test_parameters_take_the_same_in_all_of_an_answer(tmp_path: Path) -> None:
    step = open_step(write_model(tmp_path / "model.onnx"))
    assert contents_of(step).bytes[Kind.PARAMETER] == step.footprint.parameters


def test_a_file_is_drawn_only_if_its_sizes_are_known(training: ir.Model, tmp_path: Path) -> None:
    save(training, tmp_path / "training.onnx")
    found, why = file_occupancy(tmp_path / "training.onnx")
    assert found is not None
    assert why == ""
    unknown = write_model(tmp_path / "unknown.onnx")
    found, why = file_occupancy(unknown)
    assert found is None
    assert "unknown.onnx" in why
    found, why = file_occupancy(tmp_path / "missing.onnx")
    assert found is None
    assert "missing.onnx" in why


def test_the_environment_names_versions() -> None:
    known = dict(environment("cuda"))
    assert known["device"] == "cuda"
    assert {"ckplan", "onnx", "Python", "system"} <= known.keys()
    assert any(name.startswith("onnxruntime") for name in known)
