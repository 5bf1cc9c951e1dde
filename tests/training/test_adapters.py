"""Adapters are trained, merged, inserted beside quantised weights, and exchanged with PEFT."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file

import ckplan
from ckplan.autodiff.lora import Lora
from ckplan.cli import cli
from ckplan.errors import ModelError
from ckplan.training.adapters import read_adapter, write_adapter
from ckplan.training.export import export_weights
from tests.autodiff.test_lora import BASES, INPUTS, OUTPUTS, A, B
from tests.training.network import CLASSES, HIDDEN, NAMES, data, files, network
from tests.training.test_weights import held, tied

SHAPES = {
    "first.lora_A.weight": (2, 6),
    "first.lora_B.weight": (HIDDEN, 2),
    "second.lora_A.weight": (2, HIDDEN),
    "second.lora_B.weight": (CLASSES, 2),
}


def scores_of(model: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, feeds)[0]
    return found


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A folder with a model, a run of its adapters, and what that came to."""
    folder = tmp_path_factory.mktemp("lora")
    model, step = files(folder, optimizer="adam", lora="rank=2,alpha=4")
    trainer = ckplan.Trainer(
        step, data(), learning_rate=0.03, model=model, eval_data=data(), checkpoints=folder / "run"
    )
    made = trainer.train(6)
    assert made[-1].score is not None
    assert made[0].score is not None
    assert made[-1].score.loss < made[0].score.loss
    assert {name: array.shape for name, array in trainer.weights.items()} == SHAPES
    return folder, made[-1].score.accuracy or 0.0


def test_a_merged_model_is_the_trained_one(trained: tuple[Path, float]) -> None:
    folder, accuracy = trained
    result = run("export-weights", folder / "run", folder / "net.onnx", "-o", folder / "merged.onnx")
    assert result.exit_code == 0, result.stderr
    scores = scores_of(folder / "merged.onnx", {"x": data()["x"]})
    assert np.mean(scores.argmax(axis=1) == data()["labels"]) == accuracy
    before, after = held(folder / "net.onnx"), held(folder / "merged.onnx")
    assert before.keys() == after.keys()
    assert [name for name in NAMES if not np.array_equal(before[name], after[name])] == [NAMES[0], NAMES[2]]


def test_adapter_files_are_those_of_peft(trained: tuple[Path, float]) -> None:
    folder, _ = trained
    words = ["export-weights", folder / "run", folder / "net.onnx", "-o", folder / "adapter", "--adapter"]
    assert run(*words).exit_code == 0
    tensors = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert {name: array.shape for name, array in tensors.items()} == {
        f"base_model.model.{name}": shape for name, shape in SHAPES.items()
    }
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 4)
    assert config["target_modules"] == ["first", "second"]
    assert run(*words).exit_code == 2
    whole, parts = folder / "whole.onnx", folder / "parts.onnx"
    for source, out in ((folder / "run", whole), (folder / "adapter", parts)):
        assert run("export-weights", source, folder / "net.onnx", "-o", out).exit_code == 0
    assert whole.read_bytes() == parts.read_bytes()


def test_peft_reads_them_and_writes_such(trained: tuple[Path, float], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    peft = pytest.importorskip("peft", reason="peft is not installed")
    from tests.training.network import INPUTS as SIZE
    from tests.training.network import weights

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(SIZE, HIDDEN), torch.nn.Linear(HIDDEN, CLASSES)
            self.load_state_dict({name: torch.from_numpy(array) for name, array in weights().items()})

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    folder, _ = trained
    values = ckplan.read_checkpoint(folder / "run")
    write_adapter(tmp_path / "ours", values.values, Lora(rank=2, alpha=4))
    x = torch.from_numpy(data()["x"])
    export_weights(folder / "net.onnx", {n: values.values[n] for n in SHAPES}, tmp_path / "m.onnx", lora=values.lora)
    theirs = peft.PeftModel.from_pretrained(Network(), tmp_path / "ours")(x).detach().numpy()
    np.testing.assert_allclose(theirs, scores_of(tmp_path / "m.onnx", {"x": data()["x"]}), atol=1e-5)
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=["first", "second"], init_lora_weights=False)
    other = peft.get_peft_model(Network(), config)
    other.save_pretrained(tmp_path / "theirs")
    found, lora = read_adapter(tmp_path / "theirs")
    export_weights(folder / "net.onnx", found, tmp_path / "n.onnx", lora=lora)
    np.testing.assert_allclose(other(x).detach().numpy(), scores_of(tmp_path / "n.onnx", {"x": data()["x"]}), atol=1e-5)


@pytest.mark.parametrize("base", ["MatMul", "Transpose", "int8", "4 bits, zero points"])
def test_adapters_are_merged_into_any_layout_and_inserted_beside_integers(base: str, tmp_path: Path) -> None:
    model, weight = BASES[base]()
    source, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    onnx.save(model, source)
    rng = np.random.default_rng(1)
    values = {A: rng.normal(size=(3, INPUTS)) * 0.1, B: rng.normal(size=(OUTPUTS, 3)) * 0.1}
    export_weights(source, values, out, lora=Lora(rank=3, alpha=6))
    element = model.graph.input[0].type.tensor_type.elem_type
    x = (rng.normal(size=(5, INPUTS)) * 0.2).astype(onnx.helper.tensor_dtype_to_np_dtype(element))
    wanted = np.tanh(x @ (weight + 2 * values[B] @ values[A]).T)
    # onnxruntime multiplies by int8 weights in integers, with the activations rounded to 8 bits.
    limit = {"int8": 0.05, "4 bits, zero points": 1e-5}.get(base, 1e-12)
    np.testing.assert_allclose(scores_of(out, {"x": x}), wanted, atol=limit)
    assert (len(onnx.load(out).graph.node) > len(model.graph.node)) == ("i" in base)
    for tensor in model.graph.initializer:
        if tensor.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8):
            np.testing.assert_array_equal(held(out)[tensor.name], onnx.numpy_helper.to_array(tensor))


def test_a_transposed_copy_gets_the_adapter_too(tmp_path: Path) -> None:
    onnx.save(tied(), tmp_path / "tied.onnx")
    rng = np.random.default_rng(0)
    names = "words.lora_A.weight", "words.lora_B.weight"
    values = {
        names[0]: rng.normal(size=(2, 6)).astype(np.float32),
        names[1]: rng.normal(size=(20, 2)).astype(np.float32),
    }
    export_weights(tmp_path / "tied.onnx", values, tmp_path / "out.onnx", lora=Lora(rank=2))
    before, after = held(tmp_path / "tied.onnx"), held(tmp_path / "out.onnx")
    product = values[names[1]] @ values[names[0]]
    np.testing.assert_allclose(after["words.weight"], before["words.weight"] + product, atol=1e-6)
    np.testing.assert_array_equal(after["val_12"], after["words.weight"].T)


def test_adapters_of_another_model_are_refused(trained: tuple[Path, float], tmp_path: Path) -> None:
    folder, _ = trained
    onnx.save(tied(), tmp_path / "tied.onnx")
    result = run("export-weights", folder / "run", tmp_path / "tied.onnx", "-o", tmp_path / "out.onnx")
    assert result.exit_code == 2
    assert "the adapter is of another model: " in result.stderr
    assert "has no linear layer 'first'" in result.stderr
    other = network()
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((3, 6), np.float32), NAMES[0]))
    onnx.save(other, tmp_path / "other.onnx")
    result = run("export-weights", folder / "run", tmp_path / "other.onnx", "-o", tmp_path / "adapter", "--adapter")
    assert result.exit_code == 2
    assert "layer 'first' has 6 inputs and 3 outputs" in result.stderr
    assert not (tmp_path / "adapter").exists()
    whole = tmp_path / "whole"
    _, step = files(tmp_path, optimizer="sgd")
    ckplan.Trainer(step, data(), checkpoints=whole).train(1)
    result = run("export-weights", whole, tmp_path / "net.onnx", "-o", tmp_path / "adapter", "--adapter")
    assert result.exit_code == 2
    assert "holds no adapters" in result.stderr


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "is damaged"),
        ('{"peft_type": "IA3", "r": 2, "lora_alpha": 2}', "peft_type IA3"),
        ('{"peft_type": "LORA", "r": 2, "lora_alpha": 2, "use_dora": true}', "use_dora is set"),
    ],
)
def test_other_adapters_are_refused(config: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(config)
    with pytest.raises(ModelError, match=said):
        read_adapter(tmp_path)
