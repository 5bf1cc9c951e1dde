"""Every sample model is valid, runs in onnxruntime, and is what its paper describes."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from sample_models.catalogue import BUILDERS, SMALL
from sample_models.feeds import random_feeds
from sample_models.generate import HERE, main, serialized
from sample_models.light_models import NAMES, light_model
from sample_models.light_models import main as light_main
from sample_models.random_weights import generator, uniform

PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3": 5_483_032,
    "densenet121": 7_978_856,
    "unet": 7_763_041,
    "gpt": 124_439_808,
    "bert": 109_483_778 - (512 - 128) * 768,  # published with 512 positions
    "vit": 86_567_656,
    "lstm": 6_500_000 + 2 * 3_385_200 + 6_510_000,
}
"""Trainable numbers of the published networks (torchvision, torch hub, transformers)."""

REDUCED: dict[str, dict[str, Any]] = {
    "resnet18": {"image": 64, "width": 8},
    "resnet50": {"image": 64, "width": 8},
    "vgg16": {"image": 32, "width": 4, "hidden": 32},
    "mobilenet_v2": {"image": 64, "percent": 25, "head": 64},
    "mobilenet_v3": {"image": 64, "percent": 25, "hidden": 64},
    "densenet121": {"image": 64, "growth": 4},
    "densenet": {"image": 64, "growth": 4, "blocks": (2, 3)},
    "unet": {"image": 32, "width": 4},
    "gpt": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64, "sequence": 16, "tied": False},
    "bert": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64, "sequence": 16},
    "vit": {"image": 32, "patch": 8, "layers": 2, "width": 32, "heads": 2},
    "lstm": {"width": 32, "vocabulary": 64, "sequence": 8},
    "mlp": {"width": 32},
    "tanh_chain": {"width": 32},
}
"""Every builder at a size that runs at once."""

WITH_TRAINING_MODE = ("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3", "densenet121", "densenet", "unet")


def _parameter_count(model: onnx.ModelProto) -> int:
    """Numbers that training would change: of tensors with dimensions, without running statistics."""
    return sum(
        prod(tensor.dims)
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and tensor.dims and ".running_" not in tensor.name
    )


def _run(model: onnx.ModelProto, batch: int) -> list[NDArray[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(serialized(model), options, providers=["CPUExecutionProvider"])
    results: list[NDArray[Any]] = session.run(None, random_feeds(model, batch=batch))
    return results


def _check_runs(model: onnx.ModelProto, batch: int) -> None:
    """Valid by onnx's strictest check, and outputs of the declared shape, finite and of order one."""
    onnx.checker.check_model(model, full_check=True)
    for result, declared in zip(_run(model, batch), model.graph.output, strict=True):
        shape = [dimension.dim_value or batch for dimension in declared.type.tensor_type.shape.dim]
        assert list(result.shape) == shape
        size = float(np.sqrt(np.square(result, dtype=np.float64).mean()))
        assert 0.03 < size < 30


def test_every_builder_is_tested() -> None:
    assert REDUCED.keys() == BUILDERS.keys()
    assert PARAMETERS.keys() <= BUILDERS.keys()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", REDUCED)
def test_builder_makes_a_model_that_runs_at_any_batch(name: str, batch: int) -> None:
    _check_runs(BUILDERS[name](**REDUCED[name]), batch)


@pytest.mark.parametrize("name", REDUCED)
def test_builder_takes_a_fixed_batch(name: str) -> None:
    model = BUILDERS[name](batch=2, **REDUCED[name])
    assert all(value.type.tensor_type.shape.dim[0].dim_value == 2 for value in model.graph.input)
    _check_runs(model, batch=5)


@pytest.mark.parametrize("name", WITH_TRAINING_MODE)
def test_training_mode_normalises_by_the_batch(name: str) -> None:
    model = BUILDERS[name](training=True, **REDUCED[name])
    nodes = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert all(len(node.output) == 3 for node in nodes)
    _check_runs(model, batch=4)
    inference = BUILDERS[name](**REDUCED[name])
    assert _parameter_count(model) == _parameter_count(inference)
    assert not np.allclose(_run(model, 4)[0], _run(inference, 4)[0])


@pytest.mark.parametrize("name", [name for name in PARAMETERS if PARAMETERS[name] < 10**7])
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert _parameter_count(BUILDERS[name]()) == PARAMETERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PARAMETERS if PARAMETERS[name] >= 10**7])
def test_parameter_count_of_a_large_model_is_the_published_one(name: str) -> None:
    assert _parameter_count(BUILDERS[name]()) == PARAMETERS[name]


@pytest.mark.parametrize("name", REDUCED)
def test_nodes_have_names_of_their_own_and_weights_are_read(name: str) -> None:
    graph = BUILDERS[name](**REDUCED[name]).graph
    names = [node.name for node in graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    read = {value for node in graph.node for value in node.input}
    assert {tensor.name for tensor in graph.initializer} <= read
    assert not {value.name for value in graph.input} & {tensor.name for tensor in graph.initializer}


def test_tied_head_reads_the_token_table() -> None:
    options = REDUCED["gpt"] | {"tied": True}
    tied, untied = BUILDERS["gpt"](**options), BUILDERS["gpt"](**REDUCED["gpt"])
    assert _parameter_count(untied) - _parameter_count(tied) == 64 * 32
    readers = [node.op_type for node in tied.graph.node if "transformer.wte.weight" in node.input]
    assert readers == ["Gather", "Gemm"]


def test_gpt_sees_no_later_token() -> None:
    """Logits of a position do not change with the tokens after it; the loss on it alone does not either."""
    model = BUILDERS["gpt"](**REDUCED["gpt"])
    feeds = random_feeds(model, batch=1)
    feeds["labels"][:, 8:] = -100
    session = onnxruntime.InferenceSession(serialized(model), providers=["CPUExecutionProvider"])
    before = session.run(None, feeds)[0]
    feeds["input_ids"][:, 8:] = (feeds["input_ids"][:, 8:] + 1) % 64
    assert session.run(None, feeds)[0] == before
    feeds["input_ids"][:, 7] = (feeds["input_ids"][:, 7] + 1) % 64
    assert session.run(None, feeds)[0] != before


@pytest.mark.parametrize("name", SMALL)
def test_committed_file_is_what_the_generator_writes(name: str) -> None:
    path = HERE / f"{name}.onnx"
    assert path.stat().st_size < 2_000_000
    committed, made = onnx.load(path), SMALL[name]()
    assert committed.graph.node == made.graph.node
    assert serialized(committed) == serialized(made)
    _check_runs(committed, batch=2)


def test_no_other_files_are_committed() -> None:
    assert {path.stem for path in HERE.glob("*.onnx")} == set(SMALL)


def test_seed_changes_the_weights_and_nothing_else() -> None:
    first, again, other = (BUILDERS["mlp"](width=8, seed=seed) for seed in (1, 1, 2))
    assert serialized(first) == serialized(again) != serialized(other)
    assert first.graph.node == other.graph.node


def test_uniform_has_the_mean_and_deviation_asked_for() -> None:
    numbers = uniform(generator(0), (200, 200), 0.5, mean=2.0)
    assert numbers.dtype == np.float32
    assert numbers.mean() == pytest.approx(2.0, abs=0.01)
    assert numbers.std() == pytest.approx(0.5, rel=0.01)


def test_command_line_writes_with_the_options_of_the_builder(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    main(["densenet", "-o", str(path), "--batch", "4", "--growth", "4", "--blocks", "1", "2", "--training"])
    expected = BUILDERS["densenet"](batch=4, growth=4, blocks=(1, 2), training=True)
    assert path.read_bytes() == serialized(expected)


def test_command_line_writes_external_data(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    sizes = []
    for _ in range(2):
        main(["mlp", "-o", str(path), "--width", "64", "--external-data"])
        sizes.append((tmp_path / "model.onnx.data").stat().st_size)
    assert path.stat().st_size < 4096
    assert sizes[0] == sizes[1] >= 64 * 784 * 4
    loaded, made = onnx.load(path).graph, BUILDERS["mlp"](width=64).graph
    assert loaded.node == made.node
    assert [tensor.raw_data for tensor in loaded.initializer] == [tensor.raw_data for tensor in made.initializer]


def test_command_line_writes_all_small_files(tmp_path: Path) -> None:
    main(["--all-small", "-o", str(tmp_path)])
    assert {path.stem for path in tmp_path.iterdir()} == set(SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a model"),
        (["unet", "--image", "30"], "multiple of 16"),
        (["vgg16", "--image", "30"], "multiple of 32"),
        (["vit", "--patch", "9"], "cut in patches"),
        (["gpt", "--heads", "7", "--layers", "1", "--vocabulary", "8"], "shared by 7 heads"),
        (["alexnet"], "invalid choice"),
    ],
)
def test_command_line_tells_what_is_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


LARGE = ("light_bvlc_alexnet", "light_vgg19", "light_zfnet512")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in NAMES]
)
def test_light_model_has_weights_to_train_and_runs(name: str) -> None:
    model = light_model(name)
    onnx.checker.check_model(model, full_check=True)
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    weights = {tensor.name for tensor in model.graph.initializer}
    assert weights <= {value.name for value in model.graph.input}
    assert len(model.graph.input) == len(weights) + 1
    scores = _scores(model)
    result = _run(model, batch=1)[0]
    assert np.all(np.isfinite(result))
    assert 0.03 < float(result.std()) < 10, scores


def _scores(model: onnx.ModelProto) -> str:
    """Make the scores before a final Softmax, which show their size better than probabilities, the only output."""
    last = model.graph.node[-1]
    name = str(last.input[0] if last.op_type == "Softmax" else last.output[0])
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return name


def test_light_models_command_line(tmp_path: Path) -> None:
    path = tmp_path / "light.onnx"
    light_main(["light_squeezenet", "-o", str(path), "--seed", "3"])
    assert path.read_bytes() == serialized(light_model("light_squeezenet", seed=3))
    assert path.read_bytes() != serialized(light_model("light_squeezenet"))
