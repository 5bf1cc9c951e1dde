"""Files that cannot be read: one line each, naming the file and the remedy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckplan.errors import ModelError
from ckplan.model import load
from ckplan.pipeline import StepOptions
from ckplan.pipeline.sources import forward_of
from tests.model.models import normal, parse, run, write

TEXT = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[2, 3] x) => (float[2, 4] y) { y = MatMul(x, w) }
"""


def external(folder: Path, size: int = 256) -> Path:
    model = parse(TEXT, {"w": normal(0, 3, 4)})
    path = folder / "external.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    data = folder / "weights.bin"
    data.write_bytes(data.read_bytes()[:size])
    return path


def message(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(path)
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.hint
    return text


def test_missing_file_and_directory(tmp_path: Path) -> None:
    assert "no such file" in message(tmp_path / "nothing.onnx")
    assert "is a directory" in message(tmp_path)


def test_a_file_that_is_called_nearly_so_is_named(tmp_path: Path) -> None:
    (tmp_path / "network.onnx").touch()
    for name in ("netwrok.onnx", "network.onx", "network"):
        assert message(tmp_path / name) == f"no such file: {tmp_path / name}; did you mean `network.onnx`?"
    assert message(tmp_path / "ten.onnx").endswith("; check the path")  # alike by its ending alone
    assert message(tmp_path / "elsewhere" / "network.onnx").endswith("; check the path")


@pytest.mark.skipif(os.name == "nt", reason="needs named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    os.mkfifo(path)
    assert "is not a regular file" in message(path)


def test_a_model_on_stdin_is_to_be_saved() -> None:
    assert message(Path("-")) == "a model is not read from stdin; save the model as a file first"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"PK\x03\x04 and so on", "torch.onnx.export"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x08\x00\x00\x00ORTM rest", "ORT format"),
        (b"this is plain text, no model at all", "not an ONNX model"),
    ],
)
def test_what_is_no_model(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    text = message(path)
    assert expected in text
    assert str(path) in text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_truncated_anywhere(tmp_path: Path, data: st.DataObject) -> None:
    whole = parse(TEXT, {"w": normal(0, 3, 4)}).SerializeToString()
    cut = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[:cut])
    assert str(path) in message(path)


def test_no_nodes_and_no_outputs(tmp_path: Path) -> None:
    model = parse(TEXT, {"w": normal(0, 3, 4)})
    del model.graph.output[:]
    assert "no outputs" in message(write(model, tmp_path))
    del model.graph.node[:]
    assert "no nodes" in message(write(model, tmp_path))


def test_value_that_nothing_produces(tmp_path: Path) -> None:
    text = message(write(parse(TEXT), tmp_path))
    assert "MatMul" in text
    assert "'w'" in text


def test_an_attribute_without_a_type(tmp_path: Path) -> None:
    model = parse(TEXT, {"w": normal(0, 3, 4)})
    model.graph.node[0].attribute.add(name="mode")
    assert "attribute 'mode' of MatMul" in message(write(model, tmp_path))


def sparse_tensor(indices: np.ndarray) -> onnx.SparseTensorProto:
    values = onnx.numpy_helper.from_array(np.asarray([2, -1], np.float32), "w")
    return onnx.helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(indices), [3, 4])


@pytest.mark.parametrize("indices", [[1, 7], [[0, 1], [1, 3]]], ids=["places", "axes"])
@pytest.mark.parametrize("where", ["initializer", "Constant", "branch"])
def test_sparse_tensors_become_dense(tmp_path: Path, indices: list[int], where: str) -> None:
    model, sparse = parse(TEXT), sparse_tensor(np.asarray(indices, np.int64))
    constant = onnx.helper.make_node("Constant", [], ["w"], sparse_value=sparse)
    if where == "initializer":
        model.graph.sparse_initializer.append(sparse)
    elif where == "Constant":
        model.graph.node.insert(0, constant)
    else:
        model = parse(
            """<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x, bool c) => (float[2,4] y) {
                y = If(c) <then_branch = t () => (float[2,4] a) { a = MatMul(x, w) },
                           else_branch = e () => (float[2,4] b) { b = MatMul(x, v) }>
            }""",
            {"v": normal(0, 3, 4)},
        )
        model.graph.node[0].attribute[0].g.node.insert(0, constant)
    onnx.checker.check_model(model)
    forward = load(write(model, tmp_path), fixed={"c": 1} if where == "branch" else None)
    weight = forward.model.graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), [[0, 2, 0, 0], [0, 0, 0, -1], [0, 0, 0, 0]])
    assert any("('w', 2 of 12 elements)" in note for note in forward.notes)
    feeds = {"x": normal(1, 2, 3)}
    expected = run(model, {**feeds, **({"c": np.asarray(True)} if where == "branch" else {})})
    np.testing.assert_allclose(run(forward.model, feeds)[0], expected[0], rtol=1e-6)


SPARSE = {
    "initializer": "y = MatMul(x, w)",
    "initializer and input": "y = MatMul(x, w)",
    "Constant": "w = Constant<value_float = 0.>() y = MatMul(x, w)",
    "function": "y = f.product(x)",
    "branch of a function": "y = f.chosen(x)",
}
OF_FUNCTIONS = """
<domain: "f", opset_import: ["": 13]> product (x) => (y) { w = Constant<value_float = 0.>() y = MatMul(x, w) }
<domain: "f", opset_import: ["": 13]> chosen (x) => (y) {
    c = Constant<value_int = 1>()
    b = Cast<to = 9>(c)
    y = If(b) <then_branch = t () => (a) { w = Constant<value_float = 0.>() a = MatMul(x, w) },
               else_branch = e () => (z) { w = Constant<value_float = 0.>() z = MatMul(x, w) }>
}"""


@pytest.mark.parametrize("where", SPARSE)
@pytest.mark.parametrize("in_memory", [False, True])
def test_sparse_tensors_wherever_they_stand(tmp_path: Path, where: str, in_memory: bool) -> None:
    text = TEXT.replace('"" : 13', '"": 13, "f": 1').replace("y = MatMul(x, w)", SPARSE[where])
    model = parse(text + (OF_FUNCTIONS if "function" in where else ""))
    sparse = sparse_tensor(np.asarray([1, 7], np.int64))
    if "initializer" in where:
        model.graph.sparse_initializer.append(sparse)
    if "input" in where:
        model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 4]))
    called = [node for function in model.functions for node in function.node]
    branches = [node for outer in called for attribute in outer.attribute for node in attribute.g.node]
    for node in (*model.graph.node, *called, *branches):
        if node.op_type == "Constant" and node.output[0] == "w":
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("sparse_value", sparse))
    before = model.SerializeToString()
    forward = forward_of(model if in_memory else write(model, tmp_path), StepOptions())
    assert model.SerializeToString() == before
    x = normal(1, 2, 3)
    dense = np.asarray([[0, 2, 0, 0], [0, 0, 0, -1], [0, 0, 0, 0]], np.float32)
    np.testing.assert_allclose(run(forward.model, {"x": x})[0], x @ dense, rtol=1e-6)


@pytest.mark.parametrize("declared", ["float", "float[N, M]"])
def test_an_input_that_is_an_output_has_the_shape_of_the_input(tmp_path: Path, declared: str) -> None:
    text = TEXT.replace("(float[2, 4] y)", f"(float[2, 4] y, {declared} x)")
    forward = load(write(parse(text, {"w": normal(0, 3, 4)}), tmp_path))
    assert [tuple(value.shape or ()) for value in forward.model.graph.inputs] == [(2, 3)]
    assert not any("N=" in note or "default" in note for note in forward.notes)


def test_two_inputs_of_one_name(tmp_path: Path) -> None:
    model = parse(TEXT, {"w": normal(0, 3, 4)})
    model.graph.input.append(model.graph.input[0])
    assert "2 of its inputs are called 'x'" in message(write(model, tmp_path))


def test_models_in_memory_are_checked_as_files_are() -> None:
    model = parse(TEXT)  # w is not there
    for source in (model, ir.from_proto(model)):
        with pytest.raises(ModelError, match=r"the model is not valid: MatMul .* reads 'w', which nothing produces"):
            forward_of(source, StepOptions())
    with pytest.raises(ModelError, match="the model is not an ONNX model"):
        forward_of(onnx.ModelProto(), StepOptions())


def test_a_sparse_tensor_that_does_not_fit_its_shape(tmp_path: Path) -> None:
    model = parse(TEXT)
    model.graph.sparse_initializer.append(sparse_tensor(np.asarray([1, 12])))
    assert "damaged" in message(write(model, tmp_path))


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_map_from_class_to_score_is_the_tensor_of_scores(tmp_path: Path, in_memory: bool) -> None:
    """The last node that converters of scikit-learn's classifiers write, unless they are told not to."""
    text = TEXT.replace('"" : 13', '"" : 13, "ai.onnx.ml" : 1').replace("y = MatMul(x, w)", "s = MatMul(x, w)")
    model = parse(text, {"w": normal(0, 3, 4)})
    classes = {"classlabels_int64s": [0, 1, 2, 3], "domain": "ai.onnx.ml"}
    model.graph.node.append(onnx.helper.make_node("ZipMap", ["s"], ["y"], "zip", **classes))
    scores = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    a_map = onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, scores)
    model.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(a_map))
    before = model.SerializeToString()
    forward = forward_of(model if in_memory else write(model, tmp_path), StepOptions())
    assert model.SerializeToString() == before
    assert [value.name for value in forward.model.graph.outputs] == ["y"]
    assert any("maps from class to score are tensors of scores: 'y'" in note for note in forward.notes)
    feeds = {"x": normal(1, 2, 3)}
    np.testing.assert_allclose(run(forward.model, feeds)[0], feeds["x"] @ normal(0, 3, 4), rtol=1e-6)


def test_output_that_nothing_produces(tmp_path: Path) -> None:
    model = parse(TEXT, {"w": normal(0, 3, 4)})
    model.graph.output[0].name = "elsewhere"
    assert "'elsewhere'" in message(write(model, tmp_path))


def test_external_data_missing_or_short(tmp_path: Path) -> None:
    path = external(tmp_path, 20)
    text = message(path)
    assert "too short" in text
    assert "48 of 20" in text
    (tmp_path / "weights.bin").unlink()
    assert "weights.bin" in message(path)


def test_external_data_stays_on_disk(tmp_path: Path) -> None:
    model = load(external(tmp_path)).model
    tensor = model.graph.initializers["w"].const_value
    assert type(tensor).__name__ == "ExternalTensor"
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), normal(0, 3, 4))
