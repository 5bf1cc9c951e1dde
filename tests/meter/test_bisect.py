"""The smallest arena in which a file runs: the search by itself, and on small files in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ckplan
from ckplan.autodiff import build_training_graph
from ckplan.errors import ModelError
from ckplan.isolation.arrays import save_arrays
from ckplan.meter import measure, smallest_arena
from ckplan.meter.bisect import PRECISION, _smallest
from ckplan.meter.facts import read_model
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.meter.memory.arena_limit import is_exhausted
from ckplan.meter.running.errors import RunFailedError
from ckplan.meter.running.process import run_job
from ckplan.model import save
from ckplan.pipeline import rewrite, step_of
from ckplan.planner.strategies import parse_strategy
from sample_models.chains import tanh_chain
from tests.meter import models

LIMIT = 2**26
SAMPLES = Path(__file__).parents[2] / "sample_models"


@pytest.mark.parametrize("guess", [None, LIMIT, LIMIT // 2, 3 * LIMIT, LIMIT - 1, LIMIT + 1])
def test_the_search_ends_beside_the_limit(guess: int | None) -> None:
    tried: list[int] = []

    def runs(limit: int) -> bool:
        tried.append(limit)
        return limit >= LIMIT

    found = _smallest(runs, LIMIT // 4, (None, None), guess)
    assert LIMIT <= found.limit <= LIMIT * (1 + 2 * PRECISION)
    assert found.too_small < LIMIT
    assert [entry.limit for entry in found.tries] == tried
    assert [entry.ran for entry in found.tries] == [limit >= LIMIT for limit in tried]
    assert len(tried) <= 24


def test_a_good_guess_needs_two_tries() -> None:
    found = _smallest(lambda limit: limit >= LIMIT, LIMIT // 2, (LIMIT + 1000, LIMIT))
    assert len(found.tries) == 2
    assert found.expected == LIMIT + 1000


def test_nothing_below_what_is_in_use_is_tried() -> None:
    found = _smallest(lambda limit: True, LIMIT, (LIMIT // 2, None))
    assert found.limit == found.too_small == found.in_use == LIMIT
    assert found.fragmentation == 0


def test_a_file_that_no_limit_lets_run_is_given_up() -> None:
    with pytest.raises(RunFailedError, match="without a limit"):
        _smallest(lambda limit: False, LIMIT, (None, None))


@pytest.mark.parametrize(
    ("message", "exhausted"),
    [
        ("bfc_arena.cc:360 AllocateRawInternal Available memory of 0 is smaller than requested bytes of 256", True),
        ("CUDA failure 2: out of memory", True),
        ("std::bad_alloc", True),
        ("Non-zero status code: indices element out of data bounds, idx=7", False),
    ],
)
def test_failures_for_want_of_memory_are_told_from_others(message: str, exhausted: bool) -> None:
    assert is_exhausted(message) is exhausted


def training_file(path: Path, forward: Path, strategy: str, batch: int) -> Path:
    """A training file by a strategy."""
    training = build_training_graph(ckplan.load(forward, dims={"batch": batch}).model)
    save(rewrite(step_of(training), parse_strategy(strategy)).model, path)
    return path


def test_a_plan_with_a_lower_peak_runs_in_a_smaller_arena(tmp_path: Path) -> None:
    forward = tmp_path / "forward.onnx"
    onnx.save(tanh_chain(layers=12, width=64), forward)
    files = [training_file(tmp_path / f"{name}.onnx", forward, name, 512) for name in ("none", "sqrt")]
    whole, planned = (smallest_arena(path, device="cpu", threads=1) for path in files)
    promised = whole.prediction.peak_activations, planned.prediction.peak_activations
    assert promised[0] is not None
    assert promised[1] is not None
    assert promised[0] > promised[1]
    assert whole.plain.limit > planned.plain.limit
    assert whole.default.limit > planned.default.limit
    for found in (whole.plain, whole.default, planned.plain, planned.default):
        assert found.in_use <= found.limit <= 1.1 * found.in_use
        assert found.expected is not None
        assert found.limit == pytest.approx(found.expected, rel=0.02)
        assert found.in_use == pytest.approx(found.expected_in_use, rel=0.02)
    assert planned.options["max_mem"] == planned.default.limit
    # The limit is one: it is enough again, and one below what is in use is not.
    save_arrays(tmp_path / "inputs", make_inputs(read_model(files[1])).arrays)
    request = {**request_for(files[1], tmp_path / "inputs", "cpu", 1), "pattern": True}
    assert run_job("ckplan.meter.memory.arena_limit", {**request, "limit": planned.default.limit})["ran"]
    assert not run_job("ckplan.meter.memory.arena_limit", {**request, "limit": planned.plain.in_use - 2**16})["ran"]


def test_a_file_that_fails_for_another_reason_is_an_error(tmp_path: Path) -> None:
    path = models.save(
        tmp_path / "model.onnx",
        [onnx.helper.make_node("Gather", ["x", "i"], ["y"])],
        [models.floats("x", 4, 8), models.integers("i", 1)],
        [models.floats("y", 1, 8)],
    )
    np.savez(tmp_path / "inputs.npz", x=np.zeros((4, 8), np.float32), i=np.array([7]))
    with pytest.raises(ModelError, match="out of data bounds"):
        smallest_arena(path, device="cpu", inputs=tmp_path / "inputs.npz")


@pytest.mark.parametrize(("model", "strategy", "batch"), [("mlp", "none", 256), ("tanh_chain", "memory", 512)])
def test_the_expected_arena_is_the_measured_one(tmp_path: Path, model: str, strategy: str, batch: int) -> None:
    path = training_file(tmp_path / "model.onnx", SAMPLES / f"{model}.onnx", strategy, batch)
    found = measure(path, device="cpu", runs=1, threads=1, heap=False, inside=True)
    assert found.inside is not None
    assert found.counters is not None
    assert found.counters.steady is not None
    arena = found.inside.arena
    assert arena is not None
    assert found.steady_without_pattern is not None
    assert found.counters.steady.in_use == pytest.approx(arena.steady.in_use, rel=0.02, abs=2**16)
    assert found.counters.steady.held == pytest.approx(arena.steady.held, rel=0.02, abs=2**16)
    assert found.steady_without_pattern.held == pytest.approx(arena.without_pattern.held, rel=0.02, abs=2**16)


@pytest.mark.cuda
def test_the_limit_of_a_gpu_is_found(cuda: str, tmp_path: Path) -> None:
    found = smallest_arena(models.chain(tmp_path / "chain.onnx", 6), device=cuda)
    assert found.device == "cuda"
    assert found.plain.in_use <= found.plain.limit
    assert found.without_block or found.default.limit > found.plain.limit
    assert found.options["gpu_mem_limit"] == str(found.default.limit)
