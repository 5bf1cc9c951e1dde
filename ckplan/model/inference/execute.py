"""Run a model once in onnxruntime on the CPU, with seeded inputs, in a process with limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.isolation.arrays import is_exotic, load_arrays, save_arrays
from ckplan.isolation.evaluate import MEMORY, SECONDS, EvaluationError, evaluate
from ckplan.isolation.folders import temporary_folder
from ckplan.model.files.external import in_one_folder
from ckplan.model.inference.infer import static_shape

SEED = 0
MOST_ELEMENTS = 1 << 26
"""Elements of all inputs together beyond which no run is tried: they would take a gigabyte to draw."""
# Larger initializers are fed as inputs, so that the probe has no protobuf limit and reads external data in place.
_KEEP_BYTES = 4096
_TYPES = {
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(double)": ir.DataType.DOUBLE,
    "tensor(float16)": ir.DataType.FLOAT16,
    "tensor(bfloat16)": ir.DataType.BFLOAT16,
    "tensor(int8)": ir.DataType.INT8,
    "tensor(int16)": ir.DataType.INT16,
    "tensor(int32)": ir.DataType.INT32,
    "tensor(int64)": ir.DataType.INT64,
    "tensor(uint8)": ir.DataType.UINT8,
    "tensor(uint16)": ir.DataType.UINT16,
    "tensor(uint32)": ir.DataType.UINT32,
    "tensor(uint64)": ir.DataType.UINT64,
    "tensor(bool)": ir.DataType.BOOL,
    "tensor(string)": ir.DataType.STRING,
}


def random_inputs(model: ir.Model) -> dict[str, np.ndarray]:
    """Seeded inputs: standard normal for floats, 0 or 1 for integers and booleans (safe as indices and masks).

    Raises:
        ModelError: they are too large.
    """
    elements = sum(prod(static_shape(value) or ()) for value in model.graph.inputs)
    if elements > MOST_ELEMENTS:
        raise ModelError(
            f"the model has to be run once to be understood, and its inputs have {elements:,} elements",
            "give smaller sizes with --dim or --shape",
        )
    generator = np.random.default_rng(SEED)
    return {
        value.name or "": _random_array(value, generator)
        for value in model.graph.inputs
        if isinstance(value.type, ir.TensorType)
    }


def _random_array(value: ir.Value, generator: np.random.Generator) -> np.ndarray:
    shape = static_shape(value) or ()
    dtype = value.dtype or ir.DataType.FLOAT
    if dtype == ir.DataType.STRING:
        return np.full(shape, "", dtype=object)
    if dtype.is_floating_point():
        return np.asarray(generator.standard_normal(shape)).astype(dtype.numpy())
    return generator.integers(0, 2, shape).astype(dtype.numpy())


def execute(
    model: ir.Model, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]
) -> tuple[list[np.ndarray], dict[str, ir.DataType]]:
    """Run `model`, which is consumed, and return the named outputs and the element types of all its outputs.

    Weights are fed as inputs, so that there is no protobuf limit and external data is read in place. Some kernels
    insist on constant operands: when the first try fails, a second keeps every weight inside the model.

    Raises:
        EnvironmentUnavailableError: onnxruntime is not installed.
        EvaluationError: onnxruntime cannot run the model, or not within the limits of memory and time.
    """
    seconds = SECONDS + len(model.graph) / 50
    with temporary_folder() as folder:
        try:
            proto, weights = _without_weights(model.clone())
            return _run(folder / "1", proto, weights, inputs, outputs, seconds)
        except EvaluationError:
            proto, root = _with_weights(model)
            return _run(folder / "2", proto, {}, inputs, outputs, seconds, root)


def _run(
    folder: Path,
    proto: bytes,
    weights: Mapping[str, ir.TensorProtocol],
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    seconds: float,
    root: str = "",
) -> tuple[list[np.ndarray], dict[str, ir.DataType]]:
    elsewhere = {name: entry for name, tensor in weights.items() if (entry := _elsewhere(name, tensor)) is not None}
    arrays = {**{name: weights[name].numpy() for name in weights.keys() - elsewhere.keys()}, **inputs}
    save_arrays(folder / "inputs", arrays)
    (folder / "model.onnx").write_bytes(proto)
    types = {name: int(ir.DataType.from_numpy(array.dtype)) for name, array in arrays.items() if is_exotic(array.dtype)}
    held = len(proto) + sum(array.nbytes for array in arrays.values())
    held += sum(weights[name].nbytes for name, entry in elsewhere.items() if "file" in entry)
    told = evaluate(
        "run",
        memory=MEMORY + 2 * held,
        seconds=seconds,
        source=str(folder / "model.onnx"),
        root=root,
        inputs=str(folder / "inputs"),
        elsewhere=list(elsewhere.values()),
        types={**types, **{name: int(weights[name].dtype) for name in elsewhere}},
        outputs=list(outputs),
        results=str(folder / "results"),
    )
    results = load_arrays(folder / "results")
    return [results[name] for name in outputs], {name: _TYPES[text] for name, text in told.items() if text in _TYPES}


def _elsewhere(name: str, tensor: ir.TensorProtocol) -> dict[str, Any] | None:
    """Where the process finds a weight that need not be written for it: in a data file, or one number everywhere."""
    dtype = tensor.dtype.numpy()
    entry = {"name": name, "shape": tensor.shape.numpy(), "dtype": dtype.name}
    if isinstance(tensor, ir.ExternalTensor):
        whole = tensor.size * dtype.itemsize == tensor.nbytes  # not packed
        return {**entry, "file": str(tensor.path), "offset": tensor.offset or 0} if whole and tensor.size else None
    array = tensor.numpy()
    if array.size > 1 and not any(array.strides) and array.dtype.kind in "iufb":
        return {**entry, "fill": array.reshape(-1)[0].item()}
    return None


def _without_weights(model: ir.Model) -> tuple[bytes, dict[str, ir.TensorProtocol]]:
    weights = {}
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and (tensor.nbytes > _KEEP_BYTES or isinstance(tensor, ir.ExternalTensor)):
            weights[name] = tensor
            del model.graph.initializers[name]
            model.graph.inputs.append(value)
    return ir.to_proto(model).SerializeToString(), weights


def _with_weights(model: ir.Model) -> tuple[bytes, str]:
    folder = in_one_folder(model)
    return bytes(ir.to_proto(model).SerializeToString()), folder
