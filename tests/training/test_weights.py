"""Trained weights stand in the model in the forms that they had there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ckplan
from ckplan.errors import UsageError
from ckplan.training.export import export_weights
from tests.model.models import normal, parse
from tests.training.network import NAMES, data, files, network, weights


def held(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def trained(factor: float = 2.0) -> dict[str, np.ndarray]:
    return {name: array * np.float32(factor) + np.float32(0.25) for name, array in weights().items()}


def test_they_replace_those_of_the_file_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    onnx.save(network(), source)
    assert export_weights(source, trained(), tmp_path / "out.onnx") == ()
    before, after = onnx.load(source), onnx.load(tmp_path / "out.onnx")
    for name, array in trained().items():
        np.testing.assert_array_equal(held(tmp_path / "out.onnx")[name], array)
    assert before.graph.node == after.graph.node
    assert before.graph.input == after.graph.input


def test_weights_in_a_data_file_are_in_one_again(tmp_path: Path) -> None:
    source, out = tmp_path / "net.onnx", tmp_path / "out" / "net.onnx"
    model = network()
    frozen = numpy_helper.from_array(np.arange(400, dtype=np.float32), "frozen")
    wide = helper.make_tensor_value_info("wide", TensorProto.FLOAT, [400])
    model.graph.initializer.append(frozen)
    model.graph.node.append(helper.make_node("Neg", ["frozen"], ["wide"]))
    model.graph.output.append(wide)
    rng = np.random.default_rng(0)
    large = numpy_helper.from_array(rng.normal(size=(400, 4)).astype(np.float32), "large")
    model.graph.initializer.append(large)
    model.graph.node.append(helper.make_node("MatMul", ["wide", "large"], ["other"]))
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [4]))
    onnx.save(model, source, save_as_external_data=True, location="net.data", size_threshold=1000)
    out.parent.mkdir()
    new = {**trained(), "large": rng.normal(size=(400, 4)).astype(np.float32)}
    notes = export_weights(source, new, out)
    assert any("net.onnx.data" in note for note in notes)
    stored = {t.name: t.data_location for t in onnx.load(out, load_external_data=False).graph.initializer}
    assert stored["large"] == TensorProto.EXTERNAL
    for name, array in {**new, "frozen": np.arange(400, dtype=np.float32)}.items():
        np.testing.assert_array_equal(held(out)[name], array)
    onnx.checker.check_model(out)
    assert held(source)["large"].tolist() == numpy_helper.to_array(large).tolist()


def test_a_half_precision_model_stays_one(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    onnx.save(network(np.float16), source)
    export_weights(source, trained(), tmp_path / "out.onnx")
    for name, array in held(tmp_path / "out.onnx").items():
        assert array.dtype == np.float16
        np.testing.assert_allclose(array, trained()[name], rtol=1e-3)


def tied(copy: str = "val_12") -> onnx.ModelProto:
    """A table of words, and its transpose as an exporter folds it, under a name of its own."""
    table = np.random.default_rng(1).normal(size=(20, 6)).astype(np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["words.weight", "ids"], ["h"]),
            helper.make_node("MatMul", ["h", copy], ["scores"]),
        ],
        "tied",
        [info("ids", TensorProto.INT64, ["batch"])],
        [info("scores", TensorProto.FLOAT, ["batch", 20])],
        [numpy_helper.from_array(table, "words.weight"), numpy_helper.from_array(table.T.copy(), copy)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_a_transposed_copy_follows_its_weight(tmp_path: Path) -> None:
    source, out = tmp_path / "tied.onnx", tmp_path / "out.onnx"
    onnx.save(tied(), source)
    step = tmp_path / "step.onnx"
    ckplan.save(ckplan.open_model(source, dims={"batch": 4}, loss="cross-entropy", optimizer="adam").model, step)
    ids = np.arange(20)
    trainer = ckplan.Trainer(step, {"ids": ids, "labels": (ids + 1) % 20}, learning_rate=0.1, model=source,
                             eval_data={"ids": ids, "labels": (ids + 1) % 20})  # fmt: skip
    made = trainer.train(30)
    trainer.save(out, source)
    after = held(out)
    np.testing.assert_array_equal(after["val_12"], after["words.weight"].T)
    assert not np.array_equal(after["words.weight"], held(source)["words.weight"])
    (scores,) = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"]).run(["scores"], {"ids": ids})
    assert made[-1].score is not None
    assert np.mean(scores.argmax(axis=1) == (ids + 1) % 20) == pytest.approx(made[-1].score.accuracy)


@pytest.mark.parametrize("copied", ["t", "Transpose.1", "head/transpose_1:0"])
def test_a_copy_follows_its_weight_by_whatever_name_it_is_joined(tmp_path: Path, copied: str) -> None:
    weight, new = normal(7, 4, 6), normal(8, 4, 6)
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y) '
    model = parse(
        f'{text} {{ h = MatMul(x, own) y = MatMul(h, "{copied}") }}', {"own": weight, copied: weight.T.copy()}
    )
    onnx.save(model, tmp_path / "model.onnx")
    assert set(ckplan.open_model(model, loss="mse").training.gradients) == {"own"}
    export_weights(tmp_path / "model.onnx", {"own": new}, tmp_path / "out.onnx")
    np.testing.assert_array_equal(held(tmp_path / "out.onnx")[copied], new.T)


def test_weights_in_constant_nodes_stay_there(tmp_path: Path) -> None:
    model = network()
    moved = [tensor for tensor in model.graph.initializer if tensor.name == NAMES[2]]
    model.graph.initializer.remove(moved[0])
    model.graph.node.insert(0, helper.make_node("Constant", [], [NAMES[2]], value=moved[0]))
    zeros = numpy_helper.from_array(np.asarray([4], np.int64), "size")
    model.graph.initializer.extend([zeros])
    model.graph.initializer.remove(next(tensor for tensor in model.graph.initializer if tensor.name == NAMES[3]))
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["size"], [NAMES[3]]))
    source, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    onnx.save(model, source)
    export_weights(source, trained(), out)
    constants = {node.output[0]: node for node in onnx.load(out).graph.node if node.op_type == "Constant"}
    for name in NAMES[2:]:
        np.testing.assert_array_equal(numpy_helper.to_array(constants[name].attribute[0].t), trained()[name])
    onnx.checker.check_model(out)


def test_merged_running_statistics_come_apart(tmp_path: Path) -> None:
    """Exporters merge what is equal: here two layers share their scale and running variance, and both their shifts."""
    info = helper.make_tensor_value_info
    ones, zeros = numpy_helper.from_array(np.ones(3, np.float32), "one"), np.zeros(3, np.float32)
    nodes: list[Any] = [
        helper.make_node("BatchNormalization", ["x", "one", "zero", "zero", "one"], ["a"], name="first"),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("BatchNormalization", ["b", "one", "zero", "zero", "one"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes, "norms", [info("x", TensorProto.FLOAT, [5, 3])], [info("y", TensorProto.FLOAT, [5, 3])],
        [ones, numpy_helper.from_array(zeros, "zero")],
    )  # fmt: skip
    source, step, out = (tmp_path / f"{name}.onnx" for name in ("norms", "step", "out"))
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), source)
    opened = ckplan.open_model(source, loss="mse", training=True, optimizer="sgd")
    ckplan.save(opened.model, step)
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(10, 3)).astype(np.float32) for name in ("x", "target")}
    trainer = ckplan.Trainer(step, given, learning_rate=0.1, model=source, eval_data=given)
    made = trainer.train(2)
    trainer.save(out, source)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    losses = [
        np.mean((session.run(None, {"x": given["x"][p]})[0] - given["target"][p]) ** 2)
        for p in (slice(5), slice(5, 10))
    ]
    assert made[-1].score is not None
    assert made[-1].score.loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_weights_may_be_those_of_a_torch_module(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    onnx.save(network(), tmp_path / "net.onnx")
    given = {name: array + 1 for name, array in weights().items()}
    ckplan.export_weights(
        tmp_path / "net.onnx", {name: torch.from_numpy(array) for name, array in given.items()}, tmp_path / "out.onnx"
    )
    found = {one.name: numpy_helper.to_array(one) for one in onnx.load(tmp_path / "out.onnx").graph.initializer}
    for name in NAMES:
        np.testing.assert_array_equal(found[name], given[name])
    asking = {NAMES[0]: torch.ones(10, 6, requires_grad=True)}
    with pytest.raises(UsageError, match=r"weight 'first.weight' is no array: Can't call numpy"):
        ckplan.export_weights(tmp_path / "net.onnx", asking, tmp_path / "other.onnx")
    complex_ = {NAMES[0]: given[NAMES[0]].astype(np.complex64)}
    with pytest.raises(UsageError, match=r"weight 'first.weight' is of complex numbers; give real ones"):
        ckplan.export_weights(tmp_path / "net.onnx", complex_, tmp_path / "other.onnx")


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    _, step = files(tmp_path, optimizer="sgd")
    trainer = ckplan.Trainer(step, data())
    onnx.save(tied(), tmp_path / "tied.onnx")
    with pytest.raises(UsageError, match=r"of another model: 4 of 4 are not in .*, such as 'first.weight'"):
        trainer.save(tmp_path / "out.onnx", tmp_path / "tied.onnx")
    assert not (tmp_path / "out.onnx").exists()
    other = network()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((3, 6), np.float32), NAMES[0]))
    onnx.save(other, tmp_path / "other.onnx")
    with pytest.raises(UsageError, match=r"'first.weight' has shape \[10, 6\], and \[3, 6\] in"):
        trainer.save(tmp_path / "out.onnx", tmp_path / "other.onnx")


def test_a_kernel_that_is_a_moved_copy_follows_its_weight(tmp_path: Path) -> None:
    weight, new = normal(7, 4, 4), normal(8, 4, 4)
    model = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4,1] y) '
        '{ h = MatMul(x, "onnx::MatMul_3") u = Unsqueeze(h, two) y = Conv(u, "onnx::Conv_4") }',
        {"onnx::MatMul_3": weight, "onnx::Conv_4": weight.T[..., None], "two": np.array([2])},
    )
    onnx.save(model, tmp_path / "model.onnx")
    export_weights(tmp_path / "model.onnx", {"onnx::MatMul_3": new}, tmp_path / "out.onnx")
    np.testing.assert_array_equal(held(tmp_path / "out.onnx")["onnx::Conv_4"], new.T[..., None])
