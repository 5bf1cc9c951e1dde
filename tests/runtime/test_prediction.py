"""Predicted activation peaks against onnxruntime's counters, for files without a plan, planned ones, and plain graphs.

`python -m benchmarks.prediction` does the same at size.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import ckplan
from ckplan.isolation.arrays import save_arrays
from ckplan.meter.facts import file_facts, read_model
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.meter.memory.counter_timeline import interpret
from ckplan.meter.running.process import run_job
from ckplan.model import save
from ckplan.pipeline import rewrite, step_of
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime.executing.executed import expected_timeline
from sample_models.catalogue import BUILDERS

MODELS = Path(__file__).resolve().parents[2] / "sample_models"
TOLERANCE = 0.02
ROUNDING = 512
"""Bytes by which the arena may round up what a kernel works in."""


def measured_peak(path: Path, folder: Path) -> int:
    """Peak activations of a file's first run, by onnxruntime's counters."""
    model = read_model(path)
    inputs, facts = make_inputs(model), file_facts(model)
    save_arrays(folder / "inputs", inputs.arrays)
    variants = [{"order": "default", "pattern": True, "runs": 1, "cut": True}]
    request = {**request_for(path, folder / "inputs", "cpu", 2), "variants": variants}
    (raw,) = run_job("ckplan.meter.memory.counters", {**request, "producers": dict(facts.producers)})
    counters = interpret(raw, facts, inputs.nbytes)
    assert counters is not None
    return counters.peak_activations


BUILT = {
    "bert": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64, "sequence": 16},
    "lstm": {"layers": 1, "width": 64, "vocabulary": 64, "sequence": 24},
}
CASES = (
    # Of eight samples, where no optimiser finds anything to do and small inputs are copied.
    ("mlp", 8, "memory"),
    # Gemm made of MatMul, with shapes that onnxruntime infers and does not write.
    ("bert", 4, "plain"),
    # Means and deviations of the normalisations that run again, which nobody reads.
    ("bert", 4, "sqrt"),
    # Convolutions, with a buffer for each thread.
    ("resnet_tiny", 4, "plain"),
    # Recurrence: bodies of Scan and what the kernel keeps.
    ("lstm", 4, "none"),
)


@pytest.mark.parametrize(("name", "batch", "strategy"), CASES)
def test_is_what_the_counters_show(name: str, batch: int, strategy: str, tmp_path: Path) -> None:
    path = MODELS / f"{name}.onnx"
    if name in BUILT:
        path = tmp_path / "forward.onnx"
        onnx.save(BUILDERS[name](**BUILT[name]), path)
    training = ckplan.build_training_graph(ckplan.load(path, dims={"batch": batch}).model).model
    if strategy == "plain":
        model, expected = training, expected_timeline(training).peak_activations
    else:
        planned = rewrite(step_of(training), parse_strategy(strategy))
        model, expected = planned.model, planned.after.peak_activations
    save(model, tmp_path / "training.onnx")
    measured = measured_peak(tmp_path / "training.onnx", tmp_path)
    assert abs(expected - measured) <= TOLERANCE * measured + ROUNDING
