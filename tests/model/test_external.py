"""Tensors in data files: every layout that hubs and exporters make is read, every escape and every damage is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ckplan.errors import ModelError
from ckplan.model import load
from ckplan.model.files.external import external_tensors, in_one_folder
from ckplan.model.files.read import read
from tests.isolation.limits import few_open_files
from tests.model.external_models import arrays, attention, refer, write_external, write_hub_cache


def held(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a model's initializers."""
    initializers = load(path).model.graph.initializers
    return {name: v.const_value.numpy() for name, v in initializers.items() if v.const_value is not None}


def check(path: Path) -> None:
    found = held(path)
    for name in ("first.weight", "second.weight", "mask"):
        np.testing.assert_array_equal(found[name], arrays()[name])


def test_a_data_file_beside_the_model_with_constants_in_it(tmp_path: Path) -> None:
    check(write_external(tmp_path))


def test_the_cache_of_a_hub(tmp_path: Path) -> None:
    path = write_hub_cache(tmp_path)
    check(path)
    alone = path.with_name("alone.onnx")
    alone.write_bytes(path.read_bytes())
    check(alone)


def test_a_hard_link(tmp_path: Path) -> None:
    path = write_external(tmp_path)
    os.link(tmp_path / "model.onnx.data", tmp_path / "elsewhere")
    check(path)


def test_a_link_to_a_model_with_its_data_beside_it(tmp_path: Path) -> None:
    real = write_external(tmp_path / "real")
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in (real, real.with_name("model.onnx.data")):
        (linked / file.name).symlink_to(file)
    check(linked / "model.onnx")


def test_a_folder_below_that_of_the_model(tmp_path: Path) -> None:
    model, data = attention(arrays(), "weights/all.bin")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "all.bin").write_bytes(data)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    check(tmp_path / "model.onnx")


def test_tensors_that_share_their_bytes(tmp_path: Path) -> None:
    model, data = attention(arrays())
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for entry, same in zip(weights["second.weight"].external_data, weights["first.weight"].external_data, strict=True):
        entry.value = same.value
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "model.onnx.data").write_bytes(data)
    found = held(tmp_path / "model.onnx")
    np.testing.assert_array_equal(found["first.weight"], found["second.weight"])


def test_constants_of_nodes_and_of_bodies(tmp_path: Path) -> None:
    weight, bias = np.full((3, 3), 2.0, np.float32), np.full((3,), 5.0, np.float32)
    inside = helper.make_graph(
        [
            helper.make_node("Constant", [], ["b"], value=refer("b", bias, "d.bin", 36)),
            helper.make_node("Add", ["p", "b"], ["q"]),
        ],
        "then",
        [],
        [helper.make_tensor_value_info("q", onnx.TensorProto.FLOAT, None)],
    )
    otherwise = helper.make_graph(
        [helper.make_node("Neg", ["p"], ["r"])],
        "else",
        [],
        [helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, None)],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["w"], value=refer("w", weight, "d.bin", 0)),
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("If", ["c"], ["y"], then_branch=inside, else_branch=otherwise),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "d.bin").write_bytes(weight.tobytes() + bias.tobytes())
    assert {tensor.name for tensor in external_tensors(read(tmp_path / "m.onnx"))} == {"w", "b"}
    np.testing.assert_array_equal(held(tmp_path / "m.onnx")["w"], weight)
    np.testing.assert_array_equal(held(tmp_path / "m.onnx")["b"], bias)


def relocated(location: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        model, _ = attention(arrays(), location)
        (folder / "model.onnx").write_bytes(model.SerializeToString())

    return change


def linked_out(folder: Path) -> None:
    outside = folder.parent / "secret"
    (folder / "model.onnx.data").rename(outside)
    (folder / "model.onnx.data").symlink_to(outside)


def entry(name: str, key: str, value: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        model, _ = attention(arrays())
        (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
        (found,) = (found for found in tensor.external_data if found.key == key)
        found.value = value
        (folder / "model.onnx").write_bytes(model.SerializeToString())

    return change


def short(folder: Path) -> None:
    data = folder / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-4])


def unreadable(folder: Path) -> None:
    (folder / "model.onnx.data").unlink()
    (folder / "model.onnx.data").mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "up": (relocated("../outside.bin"), "outside the model's folder"),
    "down and up": (relocated("down/../../outside.bin"), "outside the model's folder"),
    "absolute": (relocated("/etc/passwd"), "an absolute path"),
    "drive": (relocated("C:\\weights.bin"), "an absolute path"),
    "nameless": (relocated(""), "without a name"),
    "link": (linked_out, "a link to"),
    "missing": (lambda folder: (folder / "model.onnx.data").unlink(), "does not exist"),
    "folder": (unreadable, "not a regular file"),
    "short": (short, "too short"),
    "overlap": (entry("second.weight", "offset", "8"), "overlap"),
    "negative": (entry("second.weight", "offset", "-8"), "must be non-negative, got -8"),
    "length": (entry("second.weight", "length", "8"), "takes 2304 bytes"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_escapes_and_damage_are_named_when_the_model_is_read(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    path = write_external(tmp_path / "in")
    damage(path.parent)
    with pytest.raises(ModelError, match=words) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_data_file_without_permission(tmp_path: Path) -> None:
    path = write_external(tmp_path)
    (tmp_path / "model.onnx.data").chmod(0)
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        read(path)


def test_one_folder_for_all_data_files(tmp_path: Path) -> None:
    import onnx_ir as ir

    parts = arrays()
    model, _ = attention(parts)
    for tensor in model.graph.initializer:
        if tensor.name in parts:
            tensor.CopyFrom(refer(tensor.name, parts[tensor.name], f"{tensor.name}/data", 0))
            (tmp_path / tensor.name).mkdir()
            (tmp_path / tensor.name / "data").write_bytes(parts[tensor.name].tobytes())
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    found = read(tmp_path / "model.onnx")
    root = in_one_folder(found)
    assert root == os.path.realpath(tmp_path)
    for tensor in ir.to_proto(found).graph.initializer:
        if tensor.name.endswith("weight"):
            (path,) = (entry.value for entry in tensor.external_data if entry.key == "location")
            array = np.frombuffer((Path(root) / path).read_bytes(), parts[tensor.name].dtype)
            np.testing.assert_array_equal(array.reshape(parts[tensor.name].shape), parts[tensor.name])
        else:
            np.testing.assert_array_equal(numpy_helper.to_array(tensor), parts.get(tensor.name, np.float32(-1e4)))


def test_more_tensors_than_files_may_be_open(tmp_path: Path) -> None:
    rows = np.arange(80 * 512, dtype=np.float32).reshape(80, 512)
    names = [f"layer{i}.weight" for i in range(len(rows))]
    nodes = [helper.make_node("Sum", ["x", *names], ["y"])]
    tensors = [refer(name, row, "data", i * row.nbytes) for i, (name, row) in enumerate(zip(names, rows, strict=True))]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [512]) for name in "xy"]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], tensors)
    (tmp_path / "data").write_bytes(rows.tobytes())
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "model.onnx")
    with few_open_files():
        found = held(tmp_path / "model.onnx")  # each array holds its file open
    for name, row in zip(names, rows, strict=True):
        np.testing.assert_array_equal(found[name], row)


def test_a_tensor_without_elements(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Concat", ["x", "w"], ["y"], axis=0)],
        "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
        [refer("w", np.zeros(0, np.float32), "data", 0)],
    )
    (tmp_path / "data").touch()
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "model.onnx")
    tensor = read(tmp_path / "model.onnx").graph.initializers["w"].const_value
    assert tensor is not None
    assert [tensor.tobytes(), tensor.tobytes()] == [b"", b""]
    assert tensor.numpy().shape == (0,)
