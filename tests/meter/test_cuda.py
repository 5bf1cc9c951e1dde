"""Measuring on a GPU: the CUDA arena's counters, and the driver's figure beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ckplan.cli import cli
from ckplan.meter import Measurement, measure, verify
from ckplan.meter.running.device import CUDA
from tests.meter.models import ACTIVATION, chain

pytestmark = pytest.mark.cuda

LAYERS = 6


@pytest.fixture(scope="module")
def found(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    path = chain(tmp_path_factory.mktemp("cuda") / "chain.onnx", LAYERS)
    return measure(path, device=cuda, runs=2, inside=True)


def test_the_arena_of_the_gpu_is_counted_by_node(found: Measurement) -> None:
    assert found.device == "cuda"
    assert CUDA in found.providers
    assert found.counters is not None
    assert found.counters.peak_activations >= (LAYERS + 1) * ACTIVATION
    # cuBLAS and cuDNN take workspaces of their own from the arena.
    assert found.counters.steady is not None
    assert found.counters.steady.held >= found.counters.peak_activations
    assert any("times of nodes are those of starting their kernels" in note for note in found.notes)


def test_the_executed_graph_of_the_gpu_is_looked_into(found: Measurement) -> None:
    assert found.inside is not None, found.notes
    assert {"a0", "a1", "a2"} <= {tensor.name for tensor in found.inside.alive}


def test_the_driver_tells_more_than_the_arena_holds(found: Measurement) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    assert found.gpu is not None, found.notes
    assert found.counters is not None
    assert found.gpu.name
    assert found.gpu.peak >= found.counters.peak_activations


def test_recomputation_saves_memory_on_the_gpu_and_changes_no_bit(cuda: str, tmp_path: Path) -> None:
    base = chain(tmp_path / "base.onnx", LAYERS)
    both = verify(base, chain(tmp_path / "new.onnx", LAYERS, segment=3), device=cuda, runs=1)
    assert both.numerics.bitwise_equal
    assert both.activation_ratio is not None
    assert both.activation_ratio < 1
    assert both.new.recomputation.executed > 0


def test_the_command_line_measures_on_the_gpu(cuda: str, tmp_path: Path) -> None:
    path = chain(tmp_path / "chain.onnx", LAYERS)
    result = CliRunner().invoke(cli, ["measure", str(path), "--device", cuda, "--runs", "1"])
    assert result.exit_code == 0, result.stderr
    assert "on cuda" in result.stdout
