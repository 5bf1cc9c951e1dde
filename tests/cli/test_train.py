"""``ckplan train`` and ``ckplan export-weights``, on the digits of the tutorial."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner, Result
from sklearn.datasets import load_digits

from ckplan import keys
from ckplan.cli import cli
from ckplan.training import checkpoint
from tests.cli.test_terminal import COLOUR

ROOT = Path(__file__).parents[2]
NETWORK = ROOT / "examples" / "tutorial" / "network.onnx"


def ckplan(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a step file, and data to train on and to score with."""
    place = tmp_path_factory.mktemp("digits")
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    np.savez(place / "train.npz", image=images[:1500], labels=labels[:1500])
    np.savez(place / "test.npz", image=images[1500:], labels=labels[1500:])
    options = ["--dim", "batch=100", "--loss", "cross-entropy", "--optimizer", "adam"]
    made = ckplan("grad", NETWORK, "-o", place / "step.onnx", *options)
    assert made.exit_code == 0, made.stderr
    return place


def by_hand(step: Path, data: Path) -> list[float]:
    """The losses of six epochs of the plain loop that docs/training.md shows."""
    session = onnxruntime.InferenceSession(step, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    updates, states = json.loads(about[keys.UPDATES]), json.loads(about[keys.STATES])
    shapes = {value.name: value.shape for value in session.get_inputs()}
    values = {name: np.zeros(shapes[name], np.float32) for name in states}
    rng, means = np.random.default_rng(0), []
    with np.load(data) as given:
        images, labels = given["image"], given["labels"]
    for _ in range(6):
        losses = []
        for chosen in rng.permutation(1500).reshape(-1, 100):
            feeds = {"image": images[chosen], "labels": labels[chosen], "learning_rate": np.array(0.003, np.float32)}
            loss, *new = session.run(["loss", *updates.values()], {**feeds, **values})
            values = dict(zip(updates, new, strict=True))
            losses.append(loss)
        means.append(float(np.mean(losses)))
    return means


def accuracy(model: Path, data: Path) -> float:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with np.load(data) as given:
        (scores,) = session.run(["scores"], {"image": given["image"]})
        return float(np.mean(scores.argmax(axis=1) == given["labels"]))


def test_digits_are_learnt_by_the_command_line_alone_and_survive_a_kill(folder: Path) -> None:
    run = folder / "run"
    words = ["train", folder / "step.onnx", "--data", folder / "train.npz", "--epochs", 6, "--learning-rate", 0.003]
    words += ["--checkpoints", run, "--every", 4]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "ckplan", *map(str, words)], env=environment, stdout=subprocess.PIPE
    )
    while process.poll() is None and not (run / "step-00000020.safetensors").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    printed, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    scored = ["--eval-data", folder / "test.npz", "--model", NETWORK]
    rest = ckplan(*words, "--resume", *scored)
    assert rest.exit_code == 0, rest.stderr
    lines = printed.decode().splitlines() + rest.stdout.splitlines()
    losses = {line.split(":")[0]: line.split()[3].rstrip(",") for line in lines}
    expected = by_hand(folder / "step.onnx", folder / "train.npz")
    assert losses == {f"epoch {number:2}": f"{loss:.3f}" for number, loss in enumerate(expected, start=1)}

    exported = ckplan("export-weights", run, NETWORK, "-o", folder / "trained.onnx")
    assert exported.exit_code == 0, exported.stderr
    assert exported.stdout == f"{folder / 'trained.onnx'}: 28 trained weight(s)\n"
    found = accuracy(folder / "trained.onnx", folder / "test.npz")
    assert 0.84 < found < 0.89  # 0.86 in docs/tutorial.md
    assert lines[-1].endswith(f"{100 * found:.1f} % right")


def test_the_answer_can_be_json(folder: Path) -> None:
    words = [folder / "step.onnx", "--data", folder / "train.npz", "--checkpoints", folder / "json", "--json"]
    result = ckplan("train", *words, "--eval-data", folder / "test.npz", "--model", NETWORK)
    answer = json.loads(result.stdout)
    assert answer["command"] == "train"
    assert [epoch["number"] for epoch in answer["epochs"]] == [1]
    assert 0 < answer["epochs"][0]["score"]["accuracy"] < 1
    assert answer["checkpoint"] == str(checkpoint.latest(folder / "json"))
    over = ckplan("train", *words, "--resume")
    assert "note: 1 epoch(s) are done already" in over.stderr
    assert "1 epoch(s) are done already; --epochs counts them, too" in json.loads(over.stdout)["notes"]


def test_failures_are_one_line_with_the_right_exit_code(folder: Path) -> None:
    step, data, run = folder / "step.onnx", folder / "train.npz", folder / "other"
    with np.load(data) as given:
        np.savez(folder / "wide.npz", image=np.zeros((200, 1, 9, 9), np.float32), labels=given["labels"][:200])
        np.savez(folder / "nan.npz", image=np.full_like(given["image"], np.nan), labels=given["labels"])
    (folder / "file").touch()
    for words, code, said in (
        (("train", step, "--data", folder / "wide.npz", "--checkpoints", run), 2, "have shape [1, 9, 9]"),
        (("train", step, "--data", folder / "nan.npz", "--checkpoints", run), 2, "holds NaN or infinity"),
        (("train", step, "--data", data, "--checkpoints", run, "--resume"), 3, "there is no checkpoint in"),
        (("train", step, "--data", data), 2, "Missing option '--checkpoints'"),
        (("train", step, "--data", data, "--checkpoints", run, "--learning-rate", 1e38), 1, "lower the learning rate"),
        (("train", step, "--data", data, "--checkpoints", folder / "file" / "x"), 2, "is not a directory"),
        (("train", NETWORK, "--data", data, "--checkpoints", run), 3, "has no gradients"),
        (("export-weights", run, NETWORK, "-o", folder / "out.onnx"), 3, "there is no checkpoint in"),
        (("export-weights", folder / "none", NETWORK, "-o", folder / "out.onnx"), 3, "there is no checkpoint in"),
    ):
        result = ckplan(*words)
        assert result.exit_code == code, result.stderr
        (line,) = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
        assert said in line
    assert not run.exists()
    assert not (folder / "out.onnx").exists()


@pytest.mark.parametrize("option", [[], ["--no-color"]])
def test_the_bar_has_colours_unless_there_are_to_be_none(
    folder: Path, tmp_path: Path, option: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    made = ckplan(
        "train", folder / "step.onnx", "--data", folder / "train.npz", "--checkpoints", tmp_path / "c", *option
    )
    assert made.exit_code == 0, made.stderr
    assert bool(COLOUR.search(made.stderr)) == (not option)
