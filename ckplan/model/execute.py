"""Run a model once in onnxruntime on the CPU, with seeded inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan.errors import EnvironmentUnavailableError
from ckplan.model.external import in_one_folder
from ckplan.model.infer import static_shape
from ckplan.operators.sessions import open_session

SEED = 0
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
    """Seeded inputs: standard normal for floats, 0 or 1 for integers and booleans (safe as indices and masks)."""
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
        Exception: whatever onnxruntime raises when it cannot run the model.
    """
    try:
        import onnxruntime
    except ImportError:
        raise EnvironmentUnavailableError(
            "this model can only be understood by running it, and onnxruntime is not installed",
            "pip install onnxruntime",
        ) from None
    try:
        proto, weights = _without_weights(model.clone())
        return _run(onnxruntime, proto, {**weights, **inputs}, outputs)
    except Exception:
        proto, folder = _with_weights(model)
        return _run(onnxruntime, proto, inputs, outputs, folder)


def _run(
    ort: Any, proto: bytes, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], folder: str = ""
) -> tuple[list[np.ndarray], dict[str, ir.DataType]]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    session = open_session(proto, options)
    wanted = {value.name for value in session.get_inputs()}
    feeds = {name: _ort_value(ort, array) for name, array in inputs.items() if name in wanted}
    types = {output.name: _TYPES[output.type] for output in session.get_outputs() if output.type in _TYPES}
    return [value.numpy() for value in session.run_with_ort_values(list(outputs), feeds)], types


def _ort_value(ort: Any, array: np.ndarray) -> Any:
    if array.dtype.kind == "V":  # bfloat16 and the like, which numpy does not know by itself
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, int(ir.DataType.from_numpy(array.dtype)))
    return ort.OrtValue.ortvalue_from_numpy(array)


def _without_weights(model: ir.Model) -> tuple[bytes, dict[str, np.ndarray]]:
    weights = {}
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and (tensor.nbytes > _KEEP_BYTES or isinstance(tensor, ir.ExternalTensor)):
            weights[name] = np.ascontiguousarray(tensor.numpy())
            del model.graph.initializers[name]
            model.graph.inputs.append(value)
    return ir.to_proto(model).SerializeToString(), weights


def _with_weights(model: ir.Model) -> tuple[bytes, str]:
    folder = in_one_folder(model)
    return bytes(ir.to_proto(model).SerializeToString()), folder
