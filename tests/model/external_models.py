"""Models whose tensors lie in data files, as torch's default exporter leaves them: weights, masks and constants too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

SIZE = 24


def refer(name: str, array: np.ndarray, location: str, offset: int, length: int | None = None) -> onnx.TensorProto:
    """A tensor whose bytes lie in another file."""
    tensor = TensorProto(
        name=name,
        data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
        dims=array.shape,
        data_location=TensorProto.EXTERNAL,
    )
    entries = {"location": location, "offset": offset, "length": array.nbytes if length is None else length}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def arrays(size: int = SIZE) -> dict[str, np.ndarray]:
    """Two weights, a causal mask of booleans and what stands where it is false."""
    draw = np.random.default_rng(0)
    return {
        "first.weight": (draw.standard_normal((size, size)) / size**0.5).astype(np.float32),
        "second.weight": (draw.standard_normal((size, size)) / size**0.5).astype(np.float32),
        "mask": np.tril(np.ones((size, size), dtype=np.bool_)),
        "shape": np.asarray([size, size], dtype=np.int64),
    }


def attention(held: Mapping[str, np.ndarray], location: str = "model.onnx.data") -> tuple[onnx.ModelProto, bytes]:
    """A model of two products and a mask between them, all tensors outside, and the bytes of its data file."""
    tensors, data = [], b""
    for name, array in held.items():
        tensors.append(refer(name, array, location, len(data)))
        data += array.tobytes()
    size = held["mask"].shape[0]
    nodes = [
        helper.make_node("MatMul", ["x", "first.weight"], ["a"], name="first"),
        helper.make_node("Tanh", ["a"], ["b"], name="tanh"),
        helper.make_node("Reshape", ["b", "shape"], ["c"], name="reshape"),
        helper.make_node("Where", ["mask", "c", "low"], ["d"], name="where"),
        helper.make_node("Softmax", ["d"], ["e"], name="softmax"),
        helper.make_node("MatMul", ["e", "second.weight"], ["y"], name="second"),
    ]
    low = helper.make_tensor("low", TensorProto.FLOAT, [], [-1e4])
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size, size])],
        [*tensors, low],
    )
    imports = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, producer_name="pytorch"), data


def write_external(folder: Path, name: str = "model.onnx", size: int = SIZE) -> Path:
    """The model and its data file in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    model, data = attention(arrays(size), f"{name}.data")
    (folder / name).write_bytes(model.SerializeToString())
    (folder / f"{name}.data").write_bytes(data)
    return folder / name


def write_hub_cache(folder: Path) -> Path:
    """The same in the layout of the Hugging Face hub's cache: model and data are links into a store."""
    repository = folder / "models--owner--name"
    store, snapshot = repository / "blobs", repository / "snapshots" / "0123abcd" / "onnx"
    store.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    path = write_external(folder / "made")
    for number, file in enumerate((path, path.with_name("model.onnx.data"))):
        file.rename(store / f"{number:x}e5")
        (snapshot / file.name).symlink_to(Path("../../../blobs") / f"{number:x}e5")
    return snapshot / path.name
