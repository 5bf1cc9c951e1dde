"""The block that onnxruntime takes for the tensors of later runs is the simulated one, to 256 bytes."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

import ckplan
from ckplan.isolation.arrays import save_arrays
from ckplan.meter.facts import file_facts, read_model
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.meter.running.process import run_job
from ckplan.model import save
from ckplan.pipeline import rewrite, step_of
from ckplan.planner.arena.allocations import Allocations, pattern_block
from ckplan.planner.arena.regions import chunk_size
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime.executing.executed import executed_model
from ckplan.runtime.pools.allocations_of import allocations_of

MODELS = Path(__file__).resolve().parents[2] / "sample_models"


def block_taken(path: Path, folder: Path, asked: Allocations) -> int:
    """What the second run has in use at the end of its first kernel beyond the first run: the block, in 256 bytes."""
    model = read_model(path)
    save_arrays(folder / "inputs", make_inputs(model).arrays)
    variants = [{"order": "default", "pattern": True, "runs": 2, "cut": True}]
    request = {**request_for(path, folder / "inputs", "cpu", 1), "variants": variants}
    (raw,) = run_job("ckplan.meter.memory.counters", {**request, "producers": dict(file_facts(model).producers)})
    first, second = (run["in_use"][0] for run in raw["runs"])
    made = sum(chunk_size(asked.size[buffer]) for buffer in asked.steps[0].tensors)
    return int(second - first + made)


@pytest.mark.parametrize(
    ("name", "batch", "strategy"),
    [
        ("mobilenet_tiny", 8, "memory"),
        ("densenet_tiny", 7, "memory"),
        ("gpt_tiny", 6, "memory"),
        ("unet_tiny", 4, "sqrt"),
    ],
)
def test_is_what_onnxruntime_takes(name: str, batch: int, strategy: str, tmp_path: Path) -> None:
    training = ckplan.build_training_graph(ckplan.load(MODELS / f"{name}.onnx", dims={"batch": batch}).model).model
    save(rewrite(step_of(training), parse_strategy(strategy)).model, tmp_path / "training.onnx")
    model = ir.load(tmp_path / "training.onnx")
    asked = allocations_of(executed_model(model), model)
    assert pattern_block(asked) == block_taken(tmp_path / "training.onnx", tmp_path, asked)
