"""``--training``, ``--optimizer`` and ``--clip-norm``."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.test_commands import failure, run

SAMPLES = Path(__file__).parents[2] / "sample_models"


def test_grad_writes_a_whole_step(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "step.onnx"
    result = run("grad", model, "-o", output, "--optimizer", "momentum:momentum=0.8", "--clip-norm", "1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{output}: loss 'loss' and 12 new values\n"
    assert "note: momentum:momentum=0.8 makes the new parameters from gradients clipped to a norm of 1" in result.stderr
    names = [value.name for value in onnx.load(output).graph.output]
    assert names[0] == "loss"
    assert set(names[1:]) == {f"layer{n}.weight{state}_new" for n in range(6) for state in ("", "_momentum")}


def test_training_mode_adds_running_statistics(tmp_path: Path) -> None:
    output = tmp_path / "training.onnx"
    arguments = (SAMPLES / "resnet_tiny.onnx", "-o", output, "--training", "--dim", "batch=2")
    result = run("grad", *arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{output}: loss 'loss' and 62 gradients and 40 new values\n"
    data = json.loads(run("grad", *arguments, "--force", "--json").stdout)
    assert len(data["updates"]) == 40
    assert len(data["gradients"]) == 62
    data = json.loads(run("grad", *arguments, "--force", "--json", "--optimizer", "sgd").stdout)
    assert len(data["updates"]) == 102
    assert data["gradients"] == {}


def test_analyze_and_rewrite_take_them_too(model: Path, tmp_path: Path) -> None:
    options = ("--optimizer", "adamw:beta2=0.95", "--training", "--dim", "batch=64")
    page = run("analyze", model, *options, "--strategy", "none")
    assert page.exit_code == 0, page.stderr
    assert "state" in page.stdout
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", *options, "--verify", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    assert "outputs equal to the bit" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--clip-norm", "1"], "name one with --optimizer"),
        (["--optimizer", "adma"], "there is no optimizer `adma`; did you mean `adam`?"),
        (["--optimizer", "adam:beta1=2"], "option `beta1` of optimizer `adam` is 2.0"),
        (["--optimizer", "sgd", "--clip-norm", "0"], "`--clip-norm` is 0.0; give a positive number"),
        (["--optimizer", "sgd", "--clip-norm", "lots"], "is not a valid float"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_options_leave_no_file(arguments: list[str], said: str, model: Path, tmp_path: Path) -> None:
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", *arguments)
    assert result.exit_code == 2
    assert said in failure(result)
    assert list(tmp_path.iterdir()) == [model]
