"""Whatever ends a training, the last checkpoint is whole, and the training goes on from it with the same numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import ckplan
from ckplan.errors import EnvironmentUnavailableError, ModelError, UsageError
from ckplan.training import checkpoint
from tests.training.network import data, files

RUN = """
import sys
import ckplan
from tests.training.network import data
step, folder, resume = sys.argv[1], sys.argv[2], len(sys.argv) > 3
trainer = ckplan.Trainer(step, data(), checkpoints=folder, every=3, schedule="cosine:warmup=5", progress=False)
trainer.train(12, resume=resume)
"""


def test_killed_at_any_moment_it_ends_with_the_same_numbers(tmp_path: Path) -> None:
    _, step = files(tmp_path, optimizer="adam")
    whole = ckplan.Trainer(step, data(), checkpoints=tmp_path / "whole", every=3, schedule="cosine:warmup=5")
    whole.train(12)
    folder = tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    kills = 0
    for attempt in range(2):
        known = checkpoint.latest(folder)
        command = [sys.executable, "-c", RUN, str(step), str(folder), *(["resume"] if known else [])]
        process = subprocess.Popen(command, env=environment)
        # Some way into the training, wherever it is then: while it computes or while it writes.
        while process.poll() is None and checkpoint.latest(folder) == known:
            time.sleep(0.01)
        time.sleep(0.02 * attempt)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        assert checkpoint.read_checkpoint(folder).state.step > 0
    assert kills > 0
    rest = ckplan.Trainer(step, data(), checkpoints=folder, every=3, schedule="cosine:warmup=5")
    rest.train(12, resume=True)
    assert rest.state == whole.state
    for name, array in whole._stepper.values.items():
        np.testing.assert_array_equal(rest._stepper.values[name], array)
    assert len(list(folder.glob("*.safetensors"))) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of file sizes")
def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path: Path) -> None:
    _, step = files(tmp_path, optimizer="adam")
    code = """
    import resource, signal, sys
    import ckplan
    from ckplan.errors import EnvironmentUnavailableError
    from tests.training.network import data
    trainer = ckplan.Trainer(sys.argv[1], data(), checkpoints=sys.argv[2])
    trainer.train(2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        trainer.train(3)
    except EnvironmentUnavailableError as error:
        sys.stderr.write(f"{error.exit_code} {error}")
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(step), str(tmp_path / "run")],
        capture_output=True, text=True, env=environment, check=True,
    )  # fmt: skip
    assert done.stderr.startswith("5 cannot write ")
    assert "\n" not in done.stderr
    assert ckplan.read_checkpoint(tmp_path / "run").state.epoch == 2
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] == []


def test_of_two_trainings_in_one_folder_one_ends(tmp_path: Path) -> None:
    _, step = files(tmp_path, optimizer="adam")
    one, other = (ckplan.Trainer(step, data(), seed=seed, checkpoints=tmp_path / "run") for seed in (1, 2))
    one.train(1, each_epoch=lambda _: refused_at_once(other))
    assert len(one.train(3)) == 2
    assert ckplan.read_checkpoint(tmp_path / "run").state == one.state


def refused_at_once(trainer: ckplan.Trainer) -> None:
    trainer.state.step = 1  # as one that began in the folder while it was empty
    with pytest.raises(UsageError, match=r"step-00000008.safetensors is of another training, which writes to the same"):
        trainer.train(1)


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    _, step = files(tmp_path, optimizer="adam")
    folder = tmp_path / "run"
    with pytest.raises(ModelError, match="there is no checkpoint in"):
        ckplan.Trainer(step, data(), checkpoints=folder).train(1, resume=True)
    with pytest.raises(UsageError, match="name the folder"):
        ckplan.Trainer(step, data()).train(1, resume=True)
    with pytest.raises(UsageError, match=r"step\.onnx is a file; name a folder"):
        ckplan.Trainer(step, data(), checkpoints=step)
    ckplan.Trainer(step, data(), checkpoints=folder).train(1)
    with pytest.raises(UsageError, match="holds checkpoints already"):
        ckplan.Trainer(step, data(), checkpoints=folder).train(1)
    with pytest.raises(UsageError, match="on 64 samples in updates of 8, and this one is on 40"):
        ckplan.Trainer(step, data(40), checkpoints=folder).train(2, resume=True)
    _, other = files(tmp_path, optimizer="momentum")
    with pytest.raises(UsageError, match="of another step file or optimizer"):
        ckplan.Trainer(other, data(), checkpoints=folder).train(2, resume=True)
    last = checkpoint.latest(folder)
    assert last is not None
    last.write_bytes(last.read_bytes()[:-9])
    with pytest.raises(ModelError, match=r"is damaged or not a safetensors file .*; name another, or remove it"):
        ckplan.read_checkpoint(folder)
    checkpoint.write_tensors(last, {"a": np.zeros(3)}, {})
    with pytest.raises(ModelError, match=r"run \(it lacks 'ckplan\.weights'\); name one that `ckplan train`"):
        ckplan.read_checkpoint(last)


def test_a_checkpoint_that_may_not_be_read_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path, framework: str) -> None:  # what safetensors does, for root as well
        raise FileNotFoundError(path)

    monkeypatch.setattr("safetensors.safe_open", denied)
    (tmp_path / "run.safetensors").touch()
    with pytest.raises(ModelError, match=r"no permission to read .*run\.safetensors"):
        ckplan.read_checkpoint(tmp_path / "run.safetensors")


def test_what_is_another_when_a_training_goes_on_is_told(tmp_path: Path) -> None:
    _, step = files(tmp_path)
    folder = tmp_path / "run"
    how = {"checkpoints": folder, "optimizer": "adam", "learning_rate": 0.01}
    ckplan.Trainer(step, data(), **how).train(1)
    assert not ckplan.Trainer(step, data(), **how).notes(2, resume=True)
    others = {**how, "optimizer": "adamw", "learning_rate": 0.1, "schedule": "cosine", "clip_norm": 1.0}
    trainer = ckplan.Trainer(step, data(), **others)
    last = checkpoint.latest(folder)
    assert trainer.notes(2, resume=True) == (
        f"the learning rate is 0.1 from here on, and was 0.01 in {last}",
        f"the schedule is cosine over 16 updates from here on, and was constant in {last}",
        f"the optimizer is adamw from here on, and was adam in {last}",
        f"the clip norm is 1 from here on, and was none in {last}",
    )
    assert not trainer.notes(2)
    assert not trainer.notes(1, resume=True)  # which is over
    given = data()
    given["x"][3] += 1
    (note,) = ckplan.Trainer(step, given, **how).notes(2, resume=True)
    assert note == f"the training data hold other numbers than those that {last} was made with"
    (note,) = ckplan.Trainer(step, data(), **how, seed=3).notes(2, resume=True)
    assert note == f"the order of the samples is that of the seed in {last}, 0"
    trainer.train(2, resume=True)
    assert checkpoint.read_state(folder)[1].asked["learning rate"] == "0.1"


def test_a_step_file_with_another_optimizer_of_the_same_states_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _, step = files(tmp_path, optimizer="adamw")
    ckplan.Trainer(step, data(), checkpoints=folder).train(1)
    _, other = files(tmp_path, optimizer="adamw:weight_decay=0.5")
    (note,) = ckplan.Trainer(other, data(), checkpoints=folder).notes(2, resume=True)
    assert note.startswith("the optimizer is adamw:weight_decay=0.5 from here on, and was adamw in ")


def test_a_folder_that_may_not_be_written_to_is_told_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, step = files(tmp_path, optimizer="sgd")
    trainer = ckplan.Trainer(step, data(), checkpoints=tmp_path / "run" / "one")
    monkeypatch.setattr("os.access", lambda place, mode: Path(place) != tmp_path)
    with pytest.raises(EnvironmentUnavailableError, match=r"no permission to write to .*one; name another folder"):
        trainer.train(1)
    assert trainer.state.step == 0


@pytest.mark.parametrize("kind", ["pipe", "dangling link", "within a file"])
def test_what_cannot_be_a_folder_is_told_before_the_training(tmp_path: Path, kind: str) -> None:
    _, step = files(tmp_path, optimizer="sgd")
    folder = tmp_path / "run"
    if kind == "pipe":
        os.mkfifo(folder)
    elif kind == "dangling link":
        folder.symlink_to(tmp_path / "nothing")
    else:
        folder = step / "run"
    trainer = ckplan.Trainer(step, data(), checkpoints=folder)
    with pytest.raises(UsageError, match="is not a directory; name another folder for the checkpoints"):
        trainer.train(1)
    assert trainer.state.step == 0


@pytest.mark.parametrize(
    "damage",
    [{"order": {"bit_generator": "MT19937"}}, {"order": 3}, {"step": "2"}, {"position": -1}, {"losses": [None]}],
    ids=str,
)
def test_a_damaged_state_is_refused(tmp_path: Path, damage: dict[str, object]) -> None:
    _, step = files(tmp_path, optimizer="adam")
    ckplan.Trainer(step, data(), checkpoints=tmp_path / "held").train(1)
    last = checkpoint.latest(tmp_path / "held")
    assert last is not None
    values, about = checkpoint.read_tensors(last)
    about[checkpoint.STATE] = json.dumps({**json.loads(about[checkpoint.STATE]), **damage})
    checkpoint.write_tensors(last, values, about)
    with pytest.raises(ModelError, match="not a checkpoint of a training run"):
        ckplan.Trainer(step, data(), checkpoints=tmp_path / "held").train(2, resume=True)


def test_tensors_of_all_kinds_come_back(tmp_path: Path) -> None:
    import ml_dtypes

    values = {
        "scalar": np.asarray(3, np.int64),
        "empty": np.zeros((0, 2), np.float16),
        "brain": np.arange(4).astype(ml_dtypes.bfloat16),
        "transposed": np.arange(6.0).reshape(2, 3).T,
    }
    checkpoint.write_tensors(tmp_path / "a" / "b.safetensors", values, {"about": "ü"})
    found, about = checkpoint.read_tensors(tmp_path / "a" / "b.safetensors")
    assert about == {"about": "ü"}
    for name, array in values.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
