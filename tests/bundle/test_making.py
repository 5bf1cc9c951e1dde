"""The graphs of a loop compute what one file with the optimizer inside computes, and begin where the model does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ckplan
from ckplan.autodiff import OPTIMIZERS
from ckplan.errors import EnvironmentUnavailableError, InfeasibleError, UsageError
from examples.loops.safetensors import tensors
from tests.cli.conftest import write_model

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
BATCH = {
    name: np.random.default_rng(seed).normal(size=(8, 16)).astype(np.float32)
    for seed, name in enumerate(("x", "target"))
}


def run(path: Path, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a file on those of the values that it asks for."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = {value.name: values[value.name] for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, wanted), strict=True))


def begin(made: ckplan.Artifacts) -> dict[str, np.ndarray]:
    states = {state["name"]: np.zeros(state["shape"], state["dtype"]) for state in made.manifest["states"]}
    return states | tensors(made.path("checkpoint").read_bytes())


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("optimizer", [kind.name for kind in OPTIMIZERS])
def test_the_files_compute_what_one_step_computes(tmp_path: Path, optimizer: str, clip: float | None) -> None:
    model = write_model(tmp_path / "model.onnx", layers=2)
    options = {"dims": {"batch": 8}, "loss": "mse", "optimizer": optimizer, "clip_norm": clip}
    made = ckplan.artifacts(model, tmp_path / "made", **options)
    ckplan.rewrite(model, output=tmp_path / "step.onnx", **options)
    whole = {**BATCH, **begin(made)}
    parts = dict(whole)
    updates = {old: new for new, old in made.updates.items()}
    for _ in range(3):
        outputs = run_overridable(tmp_path / "step.onnx", whole)
        for kind in ("training", "update"):
            parts |= {made.updates.get(name, name): array for name, array in run(made.path(kind), parts).items()}
        assert parts[made.loss] == outputs["loss"]
        whole |= {old: outputs[new] for old, new in updates.items()}
        for name in updates:
            np.testing.assert_allclose(parts[name], whole[name], rtol=1e-6, atol=1e-7, err_msg=name)


def run_overridable(path: Path, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a file whose parameters have a default, on all the values that it takes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    taken = [value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())]
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, {n: values[n] for n in taken if n in values}), strict=True))


def test_the_checkpoint_holds_where_the_model_begins(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx", layers=2)
    made = ckplan.artifacts(model, tmp_path / "made", dims={"batch": 8}, optimizer="sgd:learning_rate=0.25")
    held = tensors(made.path("checkpoint").read_bytes())
    for weight in onnx.load(model).graph.initializer:
        np.testing.assert_array_equal(held.pop(weight.name), onnx.numpy_helper.to_array(weight))
    assert held == {"learning_rate": np.float32(0.25)}
    for kind in ("training", "evaluation", "update"):
        graph = onnx.load(made.path(kind)).graph
        assert not {value.name for value in graph.initializer} & {value.name for value in graph.input}
        read = {name for node in graph.node for name in node.input}
        assert {value.name for value in graph.initializer} <= read


def test_a_plan_is_built_in_if_a_budget_is_given(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    made = ckplan.artifacts(model, tmp_path / "made", dims={"batch": 256}, budget="70%")
    peaks = made.manifest["peak_activations"]
    assert peaks["predicted"] <= 0.7 * peaks["without_a_plan"]
    assert ckplan.measure(made.path("training")).peak_activations <= peaks["predicted"]
    with pytest.raises(InfeasibleError):
        ckplan.artifacts(model, tmp_path / "too small", dims={"batch": 256}, budget="1%")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["made", "model.onnx"]


def test_evaluation_uses_running_statistics(tmp_path: Path) -> None:
    """The file is for inference whatever form the step has: the scores are those of the model that was exported."""
    made = ckplan.artifacts(DIGITS, tmp_path / "made", dims={"batch": 60}, loss="cross-entropy", training=True)
    rng = np.random.default_rng(0)
    batch = {
        "image": rng.random((60, 1, 8, 8), dtype=np.float32),
        "labels": rng.integers(0, 10, 60),
    }
    found = run(made.path("evaluation"), {**batch, **begin(made)})
    (scores,) = onnxruntime.InferenceSession(DIGITS).run(["scores"], {"image": batch["image"]})
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-5, atol=1e-5)
    shifted = scores - scores.max(axis=1, keepdims=True)
    likelihood = shifted[np.arange(60), batch["labels"]] - np.log(np.exp(shifted).sum(axis=1))
    assert found["loss"] == pytest.approx(-likelihood.mean(), rel=1e-5)
    trained = run(made.path("training"), {**batch, **begin(made)})
    assert trained["loss"] != pytest.approx(float(found["loss"]), rel=1e-3)
    assert set(trained) >= {"norm1.running_mean_new", *made.gradients.values()}


def test_a_normalisation_in_training_form_is_evaluated_in_the_other(tmp_path: Path) -> None:
    model = onnx.load(DIGITS)
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
            node.output.extend([f"{node.name}_mean", f"{node.name}_var"])
    onnx.save(model, tmp_path / "model.onnx")
    made = ckplan.artifacts(tmp_path / "model.onnx", tmp_path / "made", dims={"batch": 4}, loss="cross-entropy")
    image = np.random.default_rng(0).random((4, 1, 8, 8), dtype=np.float32)
    labels = np.arange(4)
    found = run(made.path("evaluation"), {"image": image, "labels": labels, **begin(made)})
    (scores,) = onnxruntime.InferenceSession(DIGITS).run(["scores"], {"image": image})
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-5, atol=1e-5)


def test_adapters_are_in_every_file(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx", layers=2)
    made = ckplan.artifacts(model, tmp_path / "made", dims={"batch": 8}, loss="mse", lora="rank=2")
    values = {**BATCH, **begin(made)}
    before = run(made.path("evaluation"), values)
    assert before["loss"] == pytest.approx(run(made.path("training"), values)["loss"], rel=1e-6)
    for name in made.gradients:
        assert name not in {weight.name for weight in onnx.load(model).graph.initializer}
        values[name] = values[name] + np.float32(0.1)
    after = run(made.path("evaluation"), values)
    assert after["loss"] == pytest.approx(run(made.path("training"), values)["loss"], rel=1e-6)
    assert after["loss"] != pytest.approx(before["loss"], rel=1e-3)


def test_given_gradients_have_no_loss_to_follow(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--grad-ys"):
        ckplan.artifacts(write_model(tmp_path / "model.onnx"), tmp_path / "made", grad_ys=["y5"])


def test_an_empty_optimizer_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no optimizer ``"):
        ckplan.artifacts(write_model(tmp_path / "model.onnx"), tmp_path / "made", optimizer="")


def test_a_checkpoint_serves_every_batch_size(tmp_path: Path) -> None:
    options = {"loss": "cross-entropy", "training": True}
    one, other = (ckplan.artifacts(DIGITS, tmp_path / str(n), dims={"batch": n}, **options) for n in (4, 60))
    assert one.path("checkpoint").read_bytes() == other.path("checkpoint").read_bytes()


def test_the_manifest_tells_what_a_loop_has_to_know(tmp_path: Path) -> None:
    made = ckplan.artifacts(DIGITS, tmp_path / "made", dims={"batch": 60}, loss="cross-entropy", training=True)
    told = json.loads((tmp_path / "made" / "manifest.json").read_text())
    assert told["batch"] == [
        {"name": "image", "dtype": "float32", "shape": [60, 1, 8, 8]},
        {"name": "labels", "dtype": "int64", "shape": [60]},
    ]
    assert {"name": "step", "dtype": "int64", "shape": []} in told["states"]
    assert told["updates"]["norm1.running_mean_new"] == "norm1.running_mean"
    held = {*told["files"]["checkpoint"]["tensors"], *(state["name"] for state in told["states"])}
    fed = held | {entry["name"] for entry in told["batch"]} | set(made.gradients.values())
    for kind in ("training", "evaluation", "update"):
        assert {entry["name"] for entry in told["files"][kind]["inputs"]} <= fed


def test_a_folder_that_cannot_be_replaced_is_found_out_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("os.path.ismount", lambda path: Path(path) == folder)
        with pytest.raises(UsageError, match="is a mount point, and cannot be replaced; name a new directory in it"):
            ckplan.artifacts(tmp_path / "no.onnx", folder)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != folder)
    with pytest.raises(EnvironmentUnavailableError, match="no permission to replace"):
        ckplan.artifacts(tmp_path / "no.onnx", folder)


def test_a_folder_that_is_a_link_to_itself(tmp_path: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / name).symlink_to(tmp_path / other)
    with pytest.raises(UsageError, match=r"one is a link that leads back to itself; name another directory"):
        ckplan.artifacts(tmp_path / "no.onnx", tmp_path / "one")
