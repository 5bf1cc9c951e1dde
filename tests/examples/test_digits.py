"""The example trains, and as torch does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from ckplan import keys
from ckplan.cli import cli
from examples.digits.data import BATCH, batches, digits
from examples.digits.train import FORWARD, accuracy, train

EPOCHS, RATE = 4, 0.002


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the command in the example writes."""
    path = tmp_path_factory.mktemp("digits") / "step.onnx"
    command = f"rewrite {FORWARD} -o {path} --training --optimizer adam --loss cross-entropy --dim batch={BATCH}"
    result = CliRunner().invoke(cli, command.split())
    assert result.exit_code == 0, result.stderr
    return path


@pytest.fixture(scope="module")
def trained(step: Path) -> tuple[list[float], dict[str, np.ndarray]]:
    return train(step, batches(EPOCHS), RATE)


def test_it_learns_to_read_digits(trained: tuple[list[float], dict[str, np.ndarray]]) -> None:
    losses, values = trained
    assert len(losses) == EPOCHS * 25
    assert np.mean(losses[-25:]) < 0.2 < 2 < losses[0]
    assert accuracy(values) > 0.95
    assert accuracy({}) < 0.3
    assert values["step"] == len(losses)


def test_all_parameters_and_statistics_are_trained(trained: tuple[list[float], dict[str, np.ndarray]]) -> None:
    _, values = trained
    before = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(FORWARD).graph.initializer}
    assert before.keys() <= values.keys()
    assert not [name for name, array in before.items() if np.array_equal(array, values[name])]


def test_a_recomputed_normalisation_updates_its_statistics_once(step: Path) -> None:
    """The plan runs normalisations again; what they remember of the first batch is its mean, not a mean of means."""
    model = onnx.load(step)
    repeats = [prop.value for node in model.graph.node for prop in node.metadata_props if prop.key == keys.RECOMPUTE_OF]
    assert any("batch_norm" in name for name in repeats)
    first = next(batches(1))
    _, values = train(step, [first], RATE)
    kernel, bias = (
        onnx.numpy_helper.to_array(tensor)
        for name in ("conv1.weight", "conv1.bias")
        for tensor in onnx.load(FORWARD).graph.initializer
        if tensor.name == name
    )
    padded = np.pad(first[0][:, 0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    made = np.einsum("nhwij,cij->nhwc", windows, kernel[:, 0]) + bias
    np.testing.assert_allclose(values["norm1.running_mean"], 0.1 * made.mean((0, 1, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values["norm1.running_var"], 0.9 + 0.1 * made.var((0, 1, 2)), rtol=1e-5)


def test_torch_gets_there_on_the_same_way(
    trained: tuple[list[float], dict[str, np.ndarray]],
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from examples.digits.compare import accuracy_in_torch, train_in_torch

    ours, values = trained
    theirs, network = train_in_torch(batches(EPOCHS), RATE)
    np.testing.assert_allclose(ours[:25], theirs[:25], rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    assert accuracy(values) == pytest.approx(accuracy_in_torch(network), abs=0.01)


def test_the_data_are_what_they_are_said_to_be() -> None:
    (images, labels), (unseen, _) = digits()
    assert images.shape == (1500, 1, 8, 8)
    assert unseen.shape == (297, 1, 8, 8)
    assert images.min() == 0
    assert images.max() == 1
    assert set(labels) == set(range(10))
