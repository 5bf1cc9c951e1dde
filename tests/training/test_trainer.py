"""The loop: evaluation, early end, accumulation, loss scale, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import ckplan
from ckplan.errors import CheckFailedError, CkplanError, ModelError, UsageError
from tests.training.network import BATCH, NAMES, data, files, network, with_dropout


def test_a_planned_file_trains_like_a_plain_one(tmp_path: Path) -> None:
    model, step = files(tmp_path, optimizer="adam")
    planned = tmp_path / "planned.onnx"
    ckplan.rewrite(model, dims={"batch": BATCH}, loss="cross-entropy", optimizer="adam", output=planned)
    ended = []
    for file in (step, planned):
        trainer = ckplan.Trainer(file, data())
        trainer.train(3)
        ended.append(trainer.weights)
    for name in NAMES:
        np.testing.assert_array_equal(*(weights[name] for weights in ended))


def test_each_epoch_is_told_and_scored_on_other_data(tmp_path: Path) -> None:
    model, step = files(tmp_path, optimizer="adam")
    told: list[Any] = []
    trainer = ckplan.Trainer(step, data(), learning_rate=0.02, model=model, eval_data=data(21))
    made = trainer.train(5, each_epoch=told.append)
    assert told == made
    assert [epoch.number for epoch in made] == [1, 2, 3, 4, 5]
    assert made[-1].loss < made[0].loss
    assert str(made[0]).startswith(f"epoch  1: loss {made[0].loss:.3f}, on evaluation data")
    score = made[-1].score
    assert score is not None
    scores = scores_of(tmp_path, trainer, model, data(21)["x"])
    labels = data(21)["labels"]
    assert score.accuracy == pytest.approx(np.mean(scores.argmax(axis=1) == labels))
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    assert score.loss == pytest.approx(-logs[np.arange(21), labels].mean(), rel=1e-5)


def scores_of(folder: Path, trainer: ckplan.Trainer, model: Path, x: np.ndarray) -> np.ndarray:
    """What the saved model computes in plain onnxruntime."""
    import onnxruntime

    trainer.save(folder / "trained.onnx", model, force=True)
    session = onnxruntime.InferenceSession(folder / "trained.onnx", providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(["scores"], {"x": x})[0]
    return found


def test_it_ends_when_the_loss_on_other_data_no_longer_falls(tmp_path: Path) -> None:
    model, step = files(tmp_path, optimizer="adam")
    trainer = ckplan.Trainer(
        step, data(16), learning_rate=0.05, model=model, eval_data=data(8), patience=2, checkpoints=tmp_path / "run"
    )
    made = trainer.train(200)
    assert len(made) < 200
    losses = [epoch.score.loss for epoch in made if epoch.score]
    assert min(losses) == losses[-3] == trainer.state.best
    best = ckplan.read_checkpoint(tmp_path / "run" / "best.safetensors")
    assert best.state.epoch == len(made) - 2


def test_a_loss_that_is_no_number_ends_it_with_the_values_before(tmp_path: Path) -> None:
    _, step = files(tmp_path, optimizer="sgd")
    trainer = ckplan.Trainer(step, data(), learning_rate=3e38, checkpoints=tmp_path / "run")
    with pytest.raises(CheckFailedError, match="lower the learning rate, or write the step with --clip-norm") as error:
        trainer.train(5)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 1
    assert not list((tmp_path / "run").glob("*.safetensors")) or all(
        np.isfinite(array).all() for array in ckplan.read_checkpoint(tmp_path / "run").values.values()
    )


def test_an_overflow_of_float16_gradients_skips_updates_until_the_scale_fits(tmp_path: Path) -> None:
    _, step = files(tmp_path, np.float16, optimizer="adam", loss_scale="input")
    given = data(dtype=np.float16)
    given["x"] = given["x"] * np.float16(8)
    trainer = ckplan.Trainer(step, given)
    trainer._scale = type(trainer._scale)(2.0**24)
    made = trainer.train(4)
    assert made[-1].skipped > 0
    assert trainer.state.scale < 2**24
    assert trainer._stepper.values["step"] == trainer.state.step - made[-1].skipped
    assert made[-1].loss < made[0].loss
    assert all(np.isfinite(array).all() for array in trainer.weights.values())


def test_running_statistics_are_trained_with_summed_gradients(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx")
    onnx.save(model, tmp_path / "digits.onnx")
    step = tmp_path / "grads.onnx"
    opened = ckplan.open_model(tmp_path / "digits.onnx", dims={"batch": 4}, loss="cross-entropy", training=True)
    ckplan.save(opened.model, step)
    rng = np.random.default_rng(0)
    given = {"image": rng.normal(size=(16, 1, 8, 8)).astype(np.float32), "labels": np.arange(16) % 10}
    trainer = ckplan.Trainer(step, given, batch=8, optimizer="adam", model=tmp_path / "digits.onnx", eval_data=given)
    before = {name: array.copy() for name, array in trainer.weights.items()}
    made = trainer.train(2)
    assert made[-1].score is not None
    assert not [name for name, array in trainer.weights.items() if np.array_equal(array, before[name])]
    assert any("running_mean" in name for name in before)


WRONG = {
    "shape": ({"x": np.zeros((9, 5), np.float32), "labels": np.zeros(9, np.int64)}, "the step takes"),
    "lacking": ({"x": np.zeros((9, 6), np.float32)}, "no array `labels`"),
    "lengths": ({"x": np.zeros((9, 6), np.float32), "labels": np.zeros(8, np.int64)}, "different numbers"),
    "type": ({"x": np.zeros((9, 6), np.float32), "labels": np.zeros(9)}, "labels` in the data is float64"),
    "nan": ({"x": np.full((9, 6), np.nan, np.float32), "labels": np.zeros(9, np.int64)}, "first in sample 0"),
    "negative": (
        {"x": np.zeros((9, 6), np.float32), "labels": np.asarray([0, 1, 3, -1, 0, 0, 0, 0, 9])},
        "`labels` in the data holds -1, first in sample 3, and the loss has 4 classes; give numbers from 0 to 3; to",
    ),
    "no class": (
        {"x": np.zeros((9, 6), np.float32), "labels": np.full(9, 4)},
        "`labels` in the data holds 4, first in sample 0, and the loss has 4 classes",
    ),
    "ragged": ({"x": [[1.0] * 6, [1.0]], "labels": [0, 1]}, "`x` in the data is no array: setting an array element"),
    "pair": ((np.zeros((9, 6)), np.zeros(9)), "give a table of arrays by input, or the path of a file"),
    "few": ({"x": np.zeros((7, 6), np.float32), "labels": np.zeros(7, np.int64)}, "7 sample"),
}


@pytest.mark.parametrize("name", WRONG)
def test_data_that_do_not_fit_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    given, said = WRONG[name]
    _, step = files(tmp_path, optimizer="sgd")
    refused(UsageError, said, step, given)


READER = """<ir_version: 10, opset_import: ["" : 21]> g (int64[4, 3] tokens, int64[4, LENGTH] labels) => (float[] loss)
    <float[9, 9] table = {NUMBERS}> {
        rows = Gather(table, tokens) h = Tanh(rows) scores = Transpose<perm = [0, 2, 1]>(h)
        one = Constant<value_ints = [1]>() last = Constant<value_ints = [9]>() later = Slice(labels, one, last, one)
        loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(scores, READ)
    }"""


WEIGHTED = """<ir_version: 10, opset_import: ["" : 21]> g (float[batch, 3] x, int64[batch] labels) => (float[] loss)
    <float[3, 3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}, float[3] classes = {1, 2, 5}> {
        scores = MatMul(x, w) loss = SoftmaxCrossEntropyLoss<reduction = "REDUCTION">(scores, labels, classes)
    }"""


def reader(folder: Path, read: str, optimizer: str | None = "sgd") -> Path:
    """A step of a reader of texts, whose loss reads all ``labels``, or only the ``later`` ones."""
    numbers = ", ".join(f"{number:.4f}" for number in np.random.default_rng(0).normal(size=81))
    text = READER.replace("NUMBERS", numbers).replace("READ", read)
    file = folder / "reader.onnx"
    model = onnx.parser.parse_model(text.replace("LENGTH", "4" if read == "later" else "3"))
    onnx.save(model, folder / "model.onnx")
    ckplan.save(ckplan.open_model(model, optimizer=optimizer).model, file)
    return file


def test_the_label_that_a_loss_ignores_is_none_too_many(tmp_path: Path) -> None:
    step = reader(tmp_path, "labels")
    given = {"tokens": np.ones((4, 3), np.int64), "labels": np.full((4, 3), 2)}
    given["labels"][1, 2] = -100
    ckplan.Trainer(step, given).train(1)
    given["labels"][1, 2] = -1
    refused(UsageError, "holds -1, first in sample 1, and the loss has 9 classes; give numbers from 0 to 8, or -100",
            step, given)  # fmt: skip


def test_a_batch_without_a_label_that_counts_is_named(tmp_path: Path) -> None:
    given = {"tokens": np.ones((4, 3), np.int64), "labels": np.full((4, 3), -100)}
    with pytest.raises(CheckFailedError, match="nan in step 1, epoch 1: a batch has only -100 in `labels`, and no"):
        ckplan.Trainer(reader(tmp_path, "labels"), given).train(1)


def test_the_loss_on_other_data_is_the_mean_over_the_labels_that_count(tmp_path: Path) -> None:
    step = reader(tmp_path, "labels")
    given = {"tokens": np.ones((4, 3), np.int64), "labels": np.full((4, 3), 2)}
    other = {"tokens": np.arange(36).reshape(12, 3) % 9, "labels": np.full((12, 3), -100)}
    other["labels"][0, :2], other["labels"][6, 0] = 3, 5  # three labels of two batches, and none in the last

    def loss_of(rows: slice) -> float:
        data = {name: array[rows] for name, array in other.items()}
        trainer = ckplan.Trainer(step, given, model=tmp_path / "model.onnx", eval_data=data, learning_rate=0.0)
        (epoch,) = trainer.train(1)
        assert epoch.score is not None
        return epoch.score.loss

    parts = [loss_of(slice(0, 4)), loss_of(slice(4, 8))]
    assert parts[0] != parts[1]
    assert loss_of(slice(0, 12)) == pytest.approx((2 * parts[0] + parts[1]) / 3, rel=1e-6)


MASKED = """<ir_version: 10, opset_import: ["" : 21]> g (float[batch, 3] x, int64[batch] labels) => (float[] loss)
    <float[3, 3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
        penalty = Constant<value_float = 3.0>() one = Constant<value_ints = [1]>() ignored = Constant<value_int = 1>()
        scores = MatMul(x, w) logs = LogSoftmax(scores) places = Unsqueeze(labels, one)
        picked = GatherElements<axis = 1>(logs, places) losses = Squeeze(picked, one)
        none = Equal(labels, ignored) some = Not(none) counted = CastLike(some, x) kept = Mul(losses, counted)
        total = ReduceSum<keepdims = 0>(kept) count = ReduceSum<keepdims = 0>(counted)
        mean = Div(total, count) lost = Neg(mean) loss = Add(lost, penalty)
    }"""


@pytest.mark.parametrize("text", [WEIGHTED.replace("REDUCTION", "mean"), MASKED])
def test_the_loss_on_other_data_does_not_depend_on_their_batches(text: str, tmp_path: Path) -> None:
    """What a mean is divided by differs between batches: weights of classes, or labels that are left out by hand."""
    model = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), model)
    given = {"x": np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32), "labels": np.arange(12) // 4}
    given["labels"][:2] = 2, 0
    scores = []
    for batch in (3, 5, 12):  # in batches of 3, of which one has no label but 1, of 5 and 2, and all at once
        step = tmp_path / f"step{batch}.onnx"
        ckplan.save(ckplan.open_model(model, dims={"batch": batch}, wrt=["w"], optimizer="sgd").model, step)
        trainer = ckplan.Trainer(step, {**given, "labels": given["labels"] * 0}, model=model, eval_data=given,
                                 learning_rate=0.0)  # fmt: skip
        score = trainer.train(1)[0].score
        assert score is not None
        scores.append(score.loss)
    assert scores == pytest.approx([scores[-1]] * 3, rel=1e-6)


def test_a_warm_up_that_does_not_end_has_a_note(tmp_path: Path) -> None:
    _, step = files(tmp_path, optimizer="sgd")
    trainer = ckplan.Trainer(step, data(3 * BATCH), schedule="linear:warmup=6")
    assert trainer.notes(2) == ("the warm-up of 6 updates does not end within the training, of 6",)
    assert not trainer.notes(3)


def test_a_note_names_arrays_that_the_step_does_not_take(tmp_path: Path) -> None:
    model, step = files(tmp_path, optimizer="sgd")
    given, scored = {**data(), "id": np.arange(len(data()["x"]))}, {**data(8), "row": np.arange(8)}
    trainer = ckplan.Trainer(step, given, model=model, eval_data=scored)
    assert trainer.notes(1) == (
        "the step does not take `id` of the data",
        "the step does not take `row` of the evaluation data",
    )


def test_a_note_tells_how_batches_with_fewer_labels_weigh(tmp_path: Path) -> None:
    step = reader(tmp_path, "labels", optimizer=None)
    given = {"tokens": np.ones((8, 3), np.int64), "labels": np.full((8, 3), 2)}
    assert not ckplan.Trainer(step, given, batch=8, optimizer="sgd").notes(1)
    given["labels"][1, 2] = -100
    (note,) = ckplan.Trainer(step, given, batch=8, optimizer="sgd").notes(1)
    assert "the mean of 2 batches" in note
    assert "however many labels in `labels` do not count (-100)" in note


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_note_tells_how_batches_of_classes_with_weights_weigh(reduction: str, tmp_path: Path) -> None:
    step = tmp_path / "step.onnx"
    model = onnx.parser.parse_model(WEIGHTED.replace("REDUCTION", reduction))
    ckplan.save(ckplan.open_model(model, dims={"batch": 4}).model, step)
    given = {"x": np.ones((8, 3), np.float32), "labels": np.arange(8) % 3}
    notes = ckplan.Trainer(step, given, batch=8, optimizer="sgd").notes(1)
    mean = "an update is the mean of 2 batches, each of which weighs as much as the others"
    assert notes == ((f"{mean}, whatever the classes in `labels` weigh",) if reduction == "mean" else ())
    assert not ckplan.Trainer(step, given, optimizer="sgd").notes(1)


def test_a_label_that_no_loss_reads_may_be_any(tmp_path: Path) -> None:
    step = reader(tmp_path, "later")
    given = {"tokens": np.ones((4, 3), np.int64), "labels": np.full((4, 4), 2)}
    given["labels"][:, 0] = 77
    ckplan.Trainer(step, given).train(1)


@pytest.mark.parametrize(("name", "reason"), [("tokens", "Gather '.*'"), ("labels", "declared classes")])
def test_a_step_that_fails_names_the_number_that_is_too_large(tmp_path: Path, name: str, reason: str) -> None:
    given = {"tokens": np.ones((4, 3), np.int64), "labels": np.full((4, 4), 2)}
    given[name][2, 2] = 60
    with pytest.raises(ModelError, match=rf"; `{name}` holds 60, where only numbers below 9 fit \({reason}\)$"):
        ckplan.Trainer(reader(tmp_path, "later"), given).train(1)


def test_a_negative_label_is_no_class_where_a_loss_reads_a_part_of_them(tmp_path: Path) -> None:
    step = reader(tmp_path, "later")
    given = {"tokens": np.ones((4, 3), np.int64), "labels": np.full((4, 4), 2)}
    given["labels"][1] = -100, -100, 2, -100
    ckplan.Trainer(step, given).train(1)
    given["labels"][1] = -1, 2, -1, -100
    said = r"; `labels` holds -100, -1: give numbers from 0 to 8, or what the loss ignores$"
    with pytest.raises(ModelError, match=said):
        ckplan.Trainer(step, given).train(1)


def refused(kind: type[CkplanError], said: str, step: Path, given: Any, **options: Any) -> None:
    with pytest.raises(kind) as error:
        ckplan.Trainer(step, given, **options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    model, step = files(tmp_path, optimizer="sgd")
    refused(UsageError, "optimizer of its own", step, data(), optimizer="adam")
    refused(UsageError, "after every batch", step, data(), batch=2 * BATCH)
    refused(UsageError, "is not a multiple of", step, data(), batch=BATCH + 1)
    refused(UsageError, "--model", step, data(), eval_data=data())
    refused(UsageError, "--eval-data", step, data(), patience=2)
    refused(UsageError, "`--model` is scored on data of its own", step, data(), model=model)
    refused(UsageError, "learning rate", step, data(), learning_rate=float("nan"))
    refused(UsageError, "the seed is -1", step, data(), seed=-1)
    refused(UsageError, "`--every` is 0", step, data(), every=0)
    refused(UsageError, "option `final` of schedule `linear` is -1.0", step, data(), schedule="linear:final=-1")
    refused(ModelError, "no gradients", model, data())
    refused(ModelError, "no such file", tmp_path / "none.onnx", data())
    _, gradients = files(tmp_path)
    refused(UsageError, "name an optimizer", gradients, data())
    with pytest.raises(UsageError, match="did you mean `cosine`"):
        ckplan.Trainer(gradients, data(), optimizer="sgd", schedule="cosin")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[n, 3, 5] x) => (float[n, 3, 5] y) { y = Relu (x) }", "input 'x' has 3 dimensions"),
        ("g (float[n, 8] x) => (float[n, 8] y) { y = Relu (x) }", "it has no weight"),
        (
            "g (float[n, 2] x) => (float[n, 1] y) <float[2, 1] w = {1, 2}> { y = MatMul (x, w) }",
            "MatMul 'node' does not fit",
        ),
    ],
)
def test_scores_are_those_of_the_model_that_the_step_was_made_from(tmp_path: Path, text: str, reason: str) -> None:
    _, step = files(tmp_path, optimizer="adam")
    other = tmp_path / "other.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}'), other)
    said = f"other.onnx is not the model that {step} was made from: {reason}"
    refused(ModelError, said, step, data(), model=other, eval_data=data())


def test_a_model_is_scored_with_the_inputs_that_were_set_for_the_step(tmp_path: Path) -> None:
    model = network()
    model.graph.node.append(onnx.helper.make_node("Mul", ["scores", "factor"], ["scaled"]))
    model.graph.output[0].name = "scaled"
    model.graph.input.append(onnx.helper.make_tensor_value_info("factor", onnx.TensorProto.FLOAT, []))
    onnx.save(model, tmp_path / "scaled.onnx")
    opened = ckplan.open_model(
        tmp_path / "scaled.onnx", dims={"batch": BATCH}, set={"factor": 2.5}, loss="cross-entropy", optimizer="sgd"
    )
    ckplan.save(opened.model, tmp_path / "step.onnx")
    given = {name: array[:BATCH] for name, array in data().items()}
    trainer = ckplan.Trainer(
        tmp_path / "step.onnx", given, model=tmp_path / "scaled.onnx", eval_data=given, learning_rate=0.0
    )
    (epoch,) = trainer.train(1)
    assert epoch.score is not None
    assert epoch.score.loss == pytest.approx(epoch.loss, rel=1e-6)


def test_masks_differ_from_step_to_step_and_come_again_after_a_resume(tmp_path: Path) -> None:
    step = with_dropout(tmp_path)
    whole = ckplan.Trainer(step, data(), checkpoints=tmp_path / "whole")
    whole.train(4)
    ckplan.Trainer(step, data(), checkpoints=tmp_path / "parts").train(2)
    rest = ckplan.Trainer(step, data(), checkpoints=tmp_path / "parts")
    rest.train(4, resume=True)
    for name in NAMES:
        np.testing.assert_array_equal(rest.weights[name], whole.weights[name])


def test_updates_are_made_in_place_where_the_file_is_made_for_it(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    import onnx

    from tests.training.network import network

    onnx.save(network(), model)
    step = tmp_path / "written.onnx"
    ckplan.rewrite(model, dims={"batch": BATCH}, loss="cross-entropy", optimizer="adam", output=step)
    trainer = ckplan.Trainer(step, data())
    assert trainer.step.is_in_place
    held = {name: array.ctypes.data for name, array in trainer.weights.items()}
    trainer.train(2)
    assert {name: array.ctypes.data for name, array in trainer.weights.items()} == held
    other = ckplan.Trainer(step, data())
    buffers = other._stepper._buffers  # type: ignore[attr-defined]
    other._stepper._buffers = type(buffers)(buffers.values)  # type: ignore[attr-defined]
    other._stepper.open(0)
    other.train(2)
    for name in NAMES:
        np.testing.assert_array_equal(other.weights[name], trainer.weights[name])
