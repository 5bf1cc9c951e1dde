"""Several processes learn what one learns from the whole batch; one that goes silent stops the others in one line."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckplan
from examples.digits.train import FORWARD
from examples.loops.batches import write_batches
from examples.loops.safetensors import tensors

pytestmark = pytest.mark.slow
pytest.importorskip("torch", reason="torch is not installed, and the example's all-reduce is torch's")

ROOT = Path(__file__).parents[2]
BATCH, STEPS = 60, 20
LIMIT = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files for one, two and four workers, the batches, and what one worker learns."""
    folder = tmp_path_factory.mktemp("parallel")
    write_batches(folder / "batches", BATCH)
    for workers in (1, 2, 4):
        ckplan.artifacts(
            FORWARD,
            folder / f"share of {workers}",
            dims={"batch": BATCH // workers},
            loss="cross-entropy",
            optimizer="momentum:learning_rate=0.05",
        )
    train(folder, 1)
    return folder


def train(folder: Path, workers: int) -> dict[str, np.ndarray]:
    out = folder / f"learnt by {workers}"
    words = [folder / f"share of {workers}", folder / "batches", str(STEPS), out, "--workers", str(workers)]
    subprocess.run(
        [sys.executable, "-m", "examples.data_parallel.train", *words],
        cwd=ROOT, check=True, timeout=LIMIT, capture_output=True,
    )  # fmt: skip
    return tensors(out.read_bytes())


def start(folder: Path, rank: int, meet: Path) -> subprocess.Popen[str]:
    """One of two workers with a patience of five seconds and no end of steps."""
    words = [folder / "share of 2", folder / "batches", "1000000", folder / "nothing", "--meet", meet]
    options = ["--rank", str(rank), "--workers", "2", "--patience", "5"]
    return subprocess.Popen(
        [sys.executable, "-m", "examples.data_parallel.worker", *map(str, words), *options],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def refused(worker: subprocess.Popen[str], folder: Path) -> None:
    _, said = worker.communicate(timeout=LIMIT)
    lines = [line for line in said.splitlines() if not line.startswith("[")]  # gloo's own log
    assert worker.returncode == 1, said
    assert len(lines) == 1, said
    assert lines[0].startswith("worker 0: a worker")
    assert "did not answer within 5 s" in lines[0]
    assert not (folder / "nothing").exists()


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_learn_what_one_learns(folder: Path, workers: int) -> None:
    alone = tensors((folder / "learnt by 1").read_bytes())
    begin = tensors((folder / "share of 1" / "checkpoint.safetensors").read_bytes())
    together = train(folder, workers)
    assert together.keys() == alone.keys() >= {"conv1.weight", "scores.bias"}
    for name, array in alone.items():
        np.testing.assert_allclose(together[name], array, rtol=0, atol=1e-6, err_msg=name)
    assert np.abs(alone["conv1.weight"] - begin["conv1.weight"]).max() > 1e-2


def test_a_worker_that_never_comes(folder: Path, tmp_path: Path) -> None:
    refused(start(folder, 0, tmp_path / "meet"), folder)


def test_a_worker_that_goes_silent(folder: Path, tmp_path: Path) -> None:
    first, second = (start(folder, rank, tmp_path / "meet") for rank in (0, 1))
    try:
        assert first.stdout is not None
        assert float(first.stdout.readline()) > 2  # both are training
        second.send_signal(signal.SIGSTOP)
        refused(first, folder)
    finally:
        for worker in (first, second):
            worker.kill()
            worker.communicate()
