"""The order of nodes in a file without a plan, and in one that came as it is."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx_ir as ir
import pytest

import ckplan
from ckplan import keys
from ckplan.meter import verify
from ckplan.pipeline import StepOptions, open_step
from ckplan.runtime.executing.executed import expected_timeline
from ckplan.runtime.occupancy import Role
from ckplan.writer.file_order import in_natural_order
from ckplan.writer.ordering import TOLERANCE

SAMPLES = Path(__file__).parents[2] / "sample_models"


@pytest.mark.parametrize("name", ["mlp", "tanh_chain", "bert_tiny", "unet_tiny", "mobilenet_tiny"])
def test_a_step_takes_less_than_in_the_order_in_which_it_is_made(name: str) -> None:
    step = open_step(SAMPLES / f"{name}.onnx")
    made = expected_timeline(step.model).peak_activations
    assert step.baseline.peak_activations < 0.9 * made
    again = [node.name for node in step.ordered.graph if keys.RECOMPUTE_OF in node.metadata_props]
    assert not again


@pytest.mark.parametrize("name", ["gpt_tiny", "resnet_tiny", "unet_tiny", "densenet_tiny", "mobilenet_tiny"])
def test_a_step_without_a_plan_holds_no_dead_buffer_at_its_peak(name: str) -> None:
    step = open_step(SAMPLES / f"{name}.onnx")
    peak = step.baseline.peak_step
    held = [buffer.bytes for _, buffer in step.occupancy.alive(peak) if buffer.at(peak).role is Role.HELD]
    assert sum(held) <= TOLERANCE * step.baseline.peak_activations


def test_the_step_without_a_plan_is_the_plan_that_keeps_everything() -> None:
    step = open_step(SAMPLES / "bert_tiny.onnx")
    made = ckplan.rewrite(step, strategy="none")
    assert made.plan.recomputed == 0
    assert made.after == step.baseline
    assert [node.name for node in made.model.graph] == [node.name for node in step.ordered.graph]


def test_onnxruntime_holds_what_the_order_promises_and_computes_the_same(tmp_path: Path) -> None:
    step = open_step(SAMPLES / "resnet_tiny.onnx")
    ckplan.save(step.model, tmp_path / "made.onnx")
    ckplan.save(step.ordered, tmp_path / "ordered.onnx")
    found = verify(tmp_path / "made.onnx", tmp_path / "ordered.onnx", device="cpu", runs=1)
    assert found.new.peak_activations == step.baseline.peak_activations
    assert found.new.peak_activations < found.base.peak_activations
    assert found.numerics.bitwise_equal


def test_each_gradient_is_made_as_soon_as_it_can_be() -> None:
    step = open_step(SAMPLES / "tanh_chain.onnx")
    assert step.training is not None
    outputs = set(step.training.gradients.values())
    executed = [value.name for node in step.executed.graph for value in node.outputs]
    made = [name for name in executed if name in outputs]
    assert made == list(reversed(list(step.training.gradients.values())))
    # Between two of them there is one layer's share of the chain, not all of it.
    places = [executed.index(name) for name in made]
    assert max(later - sooner for sooner, later in itertools.pairwise(places)) < len(executed) / 10


def leaves_last(model: ir.Model) -> ir.Model:
    """The same graph in another order, in which onnxruntime runs its nodes about as they were made."""
    model = model.clone()
    leaves = [node for node in model.graph if not any(value.uses() for value in node.outputs)]
    model.graph.remove(leaves)
    model.graph.extend(reversed(leaves))
    return model


def test_a_file_is_planned_in_the_order_in_which_it_runs(tmp_path: Path) -> None:
    step = open_step(SAMPLES / "tanh_chain.onnx")
    peaks = []
    for number, model in enumerate((step.model, leaves_last(step.model))):
        ckplan.save(model, tmp_path / f"{number}.onnx")
        again = open_step(tmp_path / f"{number}.onnx", StepOptions.of(inference=True))
        peaks.append([ckplan.rewrite(again, strategy=name).after.peak_activations for name in ("speed", "evict")])
    assert peaks[1] == pytest.approx(peaks[0], rel=1e-3)  # signs that a node is there take a byte each


def test_what_is_in_order_is_not_copied() -> None:
    model = open_step(SAMPLES / "mlp.onnx").model
    assert in_natural_order(model) is model
