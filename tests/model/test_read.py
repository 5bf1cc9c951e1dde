"""Files that cannot be read: one line each, naming the file and the remedy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckplan.errors import ModelError
from ckplan.model import load
from tests.model.models import normal, parse, write

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


@pytest.mark.skipif(os.name == "nt", reason="needs named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    os.mkfifo(path)
    assert "is no regular file" in message(path)


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


def test_sparse_initializers_are_refused_by_name(tmp_path: Path) -> None:
    model = parse(TEXT)
    sparse = model.graph.sparse_initializer.add(dims=[3, 4])
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.ones(1, np.float32), "w"))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.array([5])))
    onnx.checker.check_model(model)
    text = message(write(model, tmp_path))
    assert "reads the sparse initializer 'w'" in text
    assert "write it as a dense one" in text


def test_a_sparse_constant_is_no_damage(tmp_path: Path) -> None:
    model = parse(TEXT, {"w": normal(0, 3, 4)})
    values, indices = (
        onnx.numpy_helper.from_array(array) for array in (np.ones(1, np.float32), np.array([5], np.int64))
    )
    sparse = onnx.helper.make_sparse_tensor(values, indices, [3, 4])
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["s"], sparse_value=sparse))
    text = message(write(model, tmp_path))
    assert "damaged" not in text
    assert "write it as a dense one" in text


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
