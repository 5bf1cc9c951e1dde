"""Options that say what is differentiated, on the commands that share them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.cli.test_commands import failure, run


def names(path: Path) -> list[str]:
    return [value.name for value in onnx.load(path).graph.output]


def evaluate(path: Path, **given: np.ndarray) -> Mapping[str, np.ndarray]:
    """The outputs by name; inputs that are not given are drawn."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    required = sorted((node.name, node.shape) for node in session.get_inputs() if node.name not in given)
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in required}
    return dict(zip([node.name for node in session.get_outputs()], session.run(None, {**feeds, **given}), strict=True))


def test_several_losses(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "grad.onnx"
    result = run("grad", model, "-o", output, "--loss", "mean", "--loss", "sum-of-squares:y5", "--wrt", "layer5*")
    assert result.exit_code == 0, result.stderr
    assert "note: the loss is the total of mean of 'y5'; sum-of-squares of 'y5'" in result.stderr
    assert names(output) == ["total_loss", "loss_y5_0", "loss_y5_1", "layer5.weight_grad"]
    found = evaluate(output)
    assert found["total_loss"] == pytest.approx(found["loss_y5_0"] + found["loss_y5_1"])


def test_gradients_of_inputs_and_activations(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "grad.onnx"
    result = run("grad", model, "-o", output, "--loss", "sum", "--json", "--retain-grad", "y2", "--retain-grad", "x")
    data = json.loads(result.stdout)
    assert data["retained"] == {"y2": "y2_grad", "x": "x_grad"}
    assert len(data["gradients"]) == 6
    assert names(output)[-2:] == ["y2_grad", "x_grad"]
    result = run("grad", model, "-o", output, "--loss", "sum", "--wrt", "x", "--force")
    assert result.stdout == f"{output}: loss 'loss' and 1 gradient\n"
    assert names(output) == ["loss", "x_grad"]


def test_gradients_stop_at_an_activation(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "grad.onnx"
    result = run("grad", model, "-o", output, "--no-grad", "y3")
    assert result.exit_code == 0, result.stderr
    assert names(output)[1:] == ["layer4.weight_grad", "layer5.weight_grad"]
    run("grad", model, "-o", output, "--no-grad", "y3", "--unused", "zero", "--force")
    assert len(names(output)) == 7
    assert not evaluate(output)["layer0.weight_grad"].any()


def test_given_gradients(model: Path, tmp_path: Path) -> None:
    given, ones = tmp_path / "given.onnx", tmp_path / "ones.onnx"
    result = run("grad", model, "-o", given, "--grad-ys", "y5")
    assert result.exit_code == 0, result.stderr
    assert "note: the loss is 'y5' with its gradient from input 'y5_given_grad'" in result.stderr
    run("grad", model, "-o", ones, "--loss", "sum:y5")
    x = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    found, expected = evaluate(given, x=x, y5_given_grad=np.ones((8, 16), np.float32)), evaluate(ones, x=x)
    np.testing.assert_allclose(found["layer0.weight_grad"], expected["layer0.weight_grad"], rtol=1e-4, atol=1e-5)


def test_loss_scale(model: Path, tmp_path: Path) -> None:
    output, plain = tmp_path / "grad.onnx", tmp_path / "plain.onnx"
    assert run("grad", model, "-o", plain).exit_code == 0
    data = json.loads(run("grad", model, "-o", output, "--loss-scale", "input", "--json").stdout)
    assert data["loss_scale"] == "loss_scale"
    found, expected = evaluate(output, loss_scale=np.asarray(1024, np.float32)), evaluate(plain)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-7)
    result = run("grad", model, "-o", output, "--loss-scale", "much", "--force")
    assert result.exit_code == 2
    assert "`--loss-scale much` is not a positive number" in failure(result)


def test_a_gradient_of_gradients(model: Path, tmp_path: Path) -> None:
    first, second, planned = tmp_path / "first.onnx", tmp_path / "second.onnx", tmp_path / "planned.onnx"
    assert run("rewrite", model, "-o", first, "--loss", "sum", "--strategy", "sqrt").exit_code == 0
    penalty = ("--loss", "loss", "--loss", "sum-of-squares:layer0.weight_grad")
    result = run("grad", first, "-o", second, *penalty)
    assert result.exit_code == 0, result.stderr
    assert "note: the model is a training graph of 'loss'" in result.stderr
    assert len(names(second)) == 3 + 6
    assert run("rewrite", first, "-o", planned, *penalty).exit_code == 0
    found, expected = evaluate(planned), evaluate(second)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("command", ["analyze", "rewrite"])
def test_other_commands_take_them_too(command: str, model: Path, tmp_path: Path) -> None:
    arguments = () if command == "analyze" else ("-o", tmp_path / "out.onnx")
    strategy = ("--strategy", "none")
    options = ("--retain-grad", "y2", "--grad-ys", "y5", "--accumulation", "lazy", "--loss-scale", "8")
    result = run(command, model, *arguments, *strategy, *options)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--grad-ys", "nope"], "`--grad-ys nope` is not a tensor that a node of the model makes"),
        (["--retain-grad", "layer0.weight"], "`--retain-grad layer0.weight` matches no floating-point"),
        (["--loss", "mean", "--loss", "nope"], "`nope` is neither a loss nor an output"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_names_that_do_not_exist(arguments: list[str], said: str, model: Path, tmp_path: Path) -> None:
    result = run("grad", model, "-o", tmp_path / "out.onnx", *arguments)
    assert result.exit_code == 2
    assert said in failure(result)


def test_the_file_of_parameters_is_not_overwritten(model: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("w0\n", encoding="utf-8")
    result = run("grad", model, "-o", names, "--params", names, "--force")
    assert result.exit_code == 2
    assert "is a file that this command reads" in failure(result)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--time-checkpoints", "3"],
            "--time-checkpoints changes nothing: the model has no loop and no recurrent layer",
        ),
        (["--store", "none"], "--store changes nothing: the model has no loop and no recurrent layer"),
        (
            ["--straight-through"],
            "--straight-through changes nothing: no pair of QuantizeLinear and DequantizeLinear and",
        ),
    ],
)
def test_an_option_that_changes_nothing_has_a_note(options: list[str], said: str, model: Path, tmp_path: Path) -> None:
    result = run("grad", model, "-o", tmp_path / "grad.onnx", *options)
    assert result.exit_code == 0, result.stderr
    assert said in result.stderr
