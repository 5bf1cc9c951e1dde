"""A trainer gets where torch gets: optimizers, schedules, accumulation, loss scale."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckplan
from tests.training.network import BATCH, NAMES, data, files, order, twin

torch = pytest.importorskip("torch", reason="torch is not installed")

SAMPLES, EPOCHS, RATE = 80, 20, 0.01
STEPS = SAMPLES // BATCH * EPOCHS
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=RATE),
    "momentum": lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=RATE),
    "adamw": lambda p: torch.optim.AdamW(p, lr=RATE),
}
PRECISION = {np.float32: 1e-5, np.float64: 1e-12}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take longer than these few numbers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained_in_torch(
    optimizer: str, dtype: Any, batch: int = BATCH, schedule: Any = None, clip: float | None = None, scaler: Any = None
) -> list[np.ndarray]:
    given = data(SAMPLES, dtype)
    net = twin(dtype)
    made = OPTIMIZERS[optimizer](net.parameters())
    scheduler = None if schedule is None else schedule(made)
    for chosen in order(SAMPLES, batch, EPOCHS):
        made.zero_grad()
        scores = net(torch.from_numpy(given["x"][chosen]))
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(given["labels"][chosen]))
        if scaler is None:
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            made.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(made)
            scaler.update()
        if scheduler is not None:
            scheduler.step()
    return [parameter.detach().numpy() for parameter in net.parameters()]


def differs(trainer: ckplan.Trainer, theirs: list[np.ndarray]) -> float:
    ours = trainer.weights
    return max(float(np.abs(ours[name] - other).max()) for name, other in zip(NAMES, theirs, strict=True))


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_200_steps_end_where_torch_ends(optimizer: str, dtype: Any, tmp_path: Path) -> None:
    assert STEPS == 200
    _, step = files(tmp_path, dtype, optimizer=optimizer)
    trainer = ckplan.Trainer(step, data(SAMPLES, dtype), learning_rate=RATE)
    theirs = trained_in_torch(optimizer, dtype)
    before = differs(trainer, theirs)
    epochs = trainer.train(EPOCHS)
    assert epochs[-1].loss < epochs[0].loss
    assert before > 0.01
    assert differs(trainer, theirs) < PRECISION[dtype]


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_schedules_are_those_of_torch(kind: str, tmp_path: Path) -> None:
    warmup, final = 30, 0.0 if kind == "constant" else 0.1
    left = STEPS - warmup

    def schedule(optimizer: Any) -> Any:
        lr = torch.optim.lr_scheduler
        rising = lr.LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        after = {
            "constant": lambda: lr.ConstantLR(optimizer, factor=1.0),
            "linear": lambda: lr.LinearLR(optimizer, start_factor=1.0, end_factor=final, total_iters=left),
            "cosine": lambda: lr.CosineAnnealingLR(optimizer, T_max=left, eta_min=final * RATE),
        }[kind]()
        return lr.SequentialLR(optimizer, [rising, after], milestones=[warmup])

    _, step = files(tmp_path, np.float64, optimizer="adam")
    spec = f"{kind}:warmup={warmup}" + ("" if kind == "constant" else f",final={final}")
    trainer = ckplan.Trainer(step, data(SAMPLES, np.float64), learning_rate=RATE, schedule=spec)
    trainer.train(EPOCHS)
    assert differs(trainer, trained_in_torch("adam", np.float64, schedule=schedule)) < 1e-10


@pytest.mark.parametrize("clip", [None, 0.5])
def test_gradients_of_several_batches_make_one_update(clip: float | None, tmp_path: Path) -> None:
    _, step = files(tmp_path, np.float64)
    trainer = ckplan.Trainer(
        step, data(SAMPLES, np.float64), batch=2 * BATCH, optimizer="adamw", clip_norm=clip, learning_rate=RATE
    )
    trainer.train(EPOCHS)
    assert differs(trainer, trained_in_torch("adamw", np.float64, batch=2 * BATCH, clip=clip)) < 1e-12


def test_a_dynamic_loss_scale_changes_nothing_in_float32_and_is_that_of_torch(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2000)
    theirs = trained_in_torch("adam", np.float32, scaler=scaler)
    _, step = files(tmp_path, optimizer="adam", loss_scale="input")
    trainer = ckplan.Trainer(step, data(SAMPLES), learning_rate=RATE)
    trainer.train(EPOCHS)
    assert differs(trainer, theirs) < 1e-5
    assert trainer.state.scale == scaler.get_scale()


def test_overflow_halves_the_loss_scale_and_skips_the_update(tmp_path: Path) -> None:
    """The same numbers of skipped updates as torch's scaler, on gradients of float16."""
    from ckplan.training.dynamic_loss_scale import DynamicLossScale

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    ours = DynamicLossScale(interval=3)
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for finite in [False, True, True, True, True, False, False, True, True, True, True, True, True]:
        parameter.grad = torch.full((1,), 1.0 if finite else float("inf")) * scaler.scale(torch.ones(1)).detach()
        scaler.step(optimizer)
        scaler.update()
        ours = ours.after(finite)
        assert ours.scale == scaler.get_scale()
