from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ckplan
from ckplan.comparison import Settings, take
from ckplan.comparison.taking import fingerprint_of
from ckplan.errors import EnvironmentUnavailableError, InfeasibleError, UsageError
from ckplan.meter import measure
from ckplan.model.files.read import read
from tests.cli.conftest import write_model
from tests.meter.test_inside import write_convolution


def write_convolutions(path: Path) -> Path:
    """Convolutions of constant weights, which onnxruntime puts into blocked layout where the processor has one."""
    rng = np.random.default_rng(0)
    names = ("first", "second", "third")
    weights = [numpy_helper.from_array(rng.normal(size=(16, 16, 1, 1)).astype(np.float32), name) for name in names]
    nodes = [
        helper.make_node("Conv", [source, name], [f"{name}_out"], f"{name}_conv")
        for name, source in zip(names, ("x", "first_out", "second_out"), strict=True)
    ]
    shape = [1, 16, 8, 8]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("third_out", TensorProto.FLOAT, shape)],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_the_buffers_add_up_to_the_peak(tmp_path: Path) -> None:
    for strategy in ("none", "sqrt"):
        settings = Settings.of(dims={"batch": 32}, strategy=strategy)
        found, notes = take(write_model(tmp_path / "model.onnx", layers=12), settings)
        assert found.peak_activations == sum(alive.bytes for alive in found.at_peak) > 0
        assert found.timeline is not None
        assert found.peak_activations == found.timeline.peak_activations
        assert any("the loss is" in note for note in notes)
        assert bool(found.recomputed) is (strategy == "sqrt")


def test_layouts_that_go_by_the_processor_are_left_out(tmp_path: Path) -> None:
    found, _ = take(write_convolutions(tmp_path / "model.onnx"), Settings.of(inference=True))
    assert found.timeline is not None
    assert [step.op for step in found.timeline.steps] == ["first_conv", "second_conv", "third_conv"]
    assert {alive.tensor for alive in found.at_peak} <= {"first_out", "second_out", "second_conv"}


def test_sizes_do_not_make_another_model(tmp_path: Path) -> None:
    one, other = (fingerprint_of(read(write_model(tmp_path / f"{width}.onnx", width=width))) for width in (8, 16))
    assert one.same_model(other)
    assert one.digest != other.digest
    deeper = fingerprint_of(read(write_model(tmp_path / "deeper.onnx", layers=7)))
    assert not one.same_model(deeper)
    assert str(deeper) == "'chain' (x: FLOAT -> y6)"


@pytest.mark.parametrize("options", [{"strategy": "memory"}, {"optimizer": "sgd"}, {"loss": ("mse",)}])
def test_settings_of_training_do_not_go_with_inference(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"without training.* does not go with `(--)?(strategy|optimizer|loss)`"):
        Settings.of(inference=True, **options)


def test_a_snapshot_is_the_same_beside_other_work(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", layers=12)
    options = ["--strategy", "auto", "--budget", "60%", "--quiet", "--save-baseline"]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "ckplan", "compare", str(model), str(model), *options, f"{number}.json"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
        )
        for number in range(3)
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len({(tmp_path / f"{number}.json").read_bytes() for number in range(3)}) == 1


def test_a_budget_that_is_out_of_reach_is_told_by_the_least_that_a_file_takes(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", layers=12)
    with pytest.raises(InfeasibleError) as refused:
        ckplan.rewrite(model, budget=1)
    found, _ = take(model, Settings(budget=1))
    assert found.peak_activations == refused.value.least
    assert found.peak_activations < take(model, Settings())[0].peak_activations


@pytest.mark.parametrize(
    ("strategy", "told"), [("auto", False), ("search:steps=5", False), ("search:seconds=0.2", True), ("exact", True)]
)
def test_a_plan_that_depends_on_the_clock_is_told(tmp_path: Path, strategy: str, told: bool) -> None:
    model = write_model(tmp_path / "m.onnx", layers=2)
    _, notes = take(model, Settings(strategy=strategy, budget=0.9))
    assert any("until its time is over" in note for note in notes) == told


def test_a_model_of_which_no_node_runs_has_no_measured_peak(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])
    graph = helper.make_graph([helper.make_node("Tanh", ["w"], ["y"])], "constant", [], [output], [weight])
    path = tmp_path / "constant.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    with pytest.raises(
        EnvironmentUnavailableError, match=r"tells nothing of the memory that constant\.onnx takes; `ckplan"
    ):
        take(path, Settings.of(inference=True), device="cpu")


def test_what_is_measured_runs_on_as_many_threads_as_are_simulated(tmp_path: Path) -> None:
    path = write_convolution(tmp_path / "m.onnx")
    found, _ = take(path, Settings.of(inference=True), device="cpu")
    assert found.measured is not None
    assert found.measured.peak_activations == found.peak_activations
    one = measure(path, device="cpu", runs=1, threads=1, heap=False)
    assert one.peak_activations is not None
    assert one.peak_activations < found.peak_activations
