"""What inference cannot tell is learnt by running the model once in onnxruntime."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.errors import EnvironmentUnavailableError, ModelError
from ckplan.model.infer import is_known, static_shape

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


def unknown_values(graph: ir.Graph) -> list[ir.Value]:
    """Tensors of the main graph whose type or shape is not known; sequences, maps and optionals are left out."""
    return [
        output
        for node in graph
        for output in node.outputs
        if output.name and not is_known(output) and (output.type is None or isinstance(output.type, ir.TensorType))
    ]


def learn(model: ir.Model) -> tuple[str, ...]:
    """Fill in every type and shape still unknown from one run with seeded inputs (floats normal, integers 0 or 1).

    Only shapes leave the session, not the tensors, unless a tensor's element type is unknown too.

    Args:
        model: inputs with static shapes; its outputs' types are updated in place.

    Returns:
        Notes; empty when nothing was unknown.

    Raises:
        ModelError: onnxruntime cannot run the model, so that shapes remain unknown.
        EnvironmentUnavailableError: onnxruntime is not installed.
    """
    unknown = unknown_values(model.graph)
    if not unknown:
        return ()
    try:
        import onnxruntime
    except ImportError:
        raise EnvironmentUnavailableError(
            f"the shape of {len(unknown)} value(s) can only be learnt by a run, and onnxruntime is not installed",
            "pip install onnxruntime",
        ) from None
    reason = ""
    for keep in (_KEEP_BYTES, 1 << 30):
        # Some kernels insist on constant operands: the second try keeps every weight inside the model.
        try:
            _run(onnxruntime, model, unknown, keep)
            reason = ""
            break
        except Exception as error:  # onnxruntime has its own exception classes for each status code
            reason = " ".join(str(error).split())[:300]
        finally:
            gc.collect()
    left = unknown_values(model.graph)
    if left:
        producer = left[0].producer()
        name = f"{producer.op_type} '{producer.name}'" if producer is not None else f"'{left[0].name}'"
        raise ModelError(
            f"the shape of {len(left)} value(s) is unknown, first the output of {name}, and onnxruntime cannot run the "
            f"model ({reason or 'no shape came back'})",
            "give input shapes that the model accepts with --shape",
        )
    return (f"the shapes of {len(unknown)} value(s) come from a run in onnxruntime, first '{unknown[0].name}'",)


def random_array(value: ir.Value, generator: np.random.Generator) -> np.ndarray:
    """A seeded input: standard normal for floats, 0 or 1 for integers and booleans (safe as indices and masks)."""
    shape = static_shape(value) or ()
    dtype = value.dtype or ir.DataType.FLOAT
    if dtype == ir.DataType.STRING:
        return np.full(shape, "", dtype=object)
    if dtype.is_floating_point():
        return generator.standard_normal(shape).astype(dtype.numpy())
    return generator.integers(0, 2, shape).astype(dtype.numpy())


def _run(onnxruntime: object, model: ir.Model, unknown: Sequence[ir.Value], keep: int) -> None:
    from typing import Any

    ort: Any = onnxruntime
    proto, feeds = _probe_model(model, unknown, keep)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(SEED)
    inputs = {
        value.name or "": random_array(value, generator)
        for value in model.graph.inputs
        if isinstance(value.type, ir.TensorType)
    }
    values = {
        name: ort.OrtValue.ortvalue_from_numpy(array)
        if array.dtype.kind != "V"
        else ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, int(ir.DataType.from_numpy(array.dtype)))
        for name, array in {**feeds, **inputs}.items()
    }
    types = {output.name: _TYPES.get(output.type) for output in session.get_outputs()}
    shapes = session.run_with_ort_values([_shape_name(index) for index in range(len(unknown))], values)
    for index, value in enumerate(unknown):
        if value.dtype is None:
            dtype = types.get(value.name)
            if dtype is None:
                continue
            value.dtype = dtype
        value.shape = ir.Shape([int(size) for size in shapes[index].numpy()])


def _shape_name(index: int) -> str:
    return f"pkg.ckplan.shape_{index}"


def _probe_model(model: ir.Model, unknown: Sequence[ir.Value], keep: int) -> tuple[bytes, dict[str, np.ndarray]]:
    clone = model.clone()
    graph = clone.graph
    values = {output.name: output for node in graph for output in node.outputs}
    feeds = {}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or (tensor.nbytes <= keep and not isinstance(tensor, ir.ExternalTensor)):
            continue
        if keep > _KEEP_BYTES:
            value.const_value = ir.Tensor(np.asarray(tensor.numpy()), name=name)
            continue
        feeds[name] = np.ascontiguousarray(tensor.numpy())
        del graph.initializers[name]
        graph.inputs.append(value)
    graph.outputs.clear()
    for index, original in enumerate(unknown):
        value = values[original.name]
        if value.dtype is None:
            graph.outputs.append(value)
        shape = ir.node("Shape", inputs=[value], name=_shape_name(index))
        shape.outputs[0].name = _shape_name(index)
        shape.outputs[0].dtype = ir.DataType.INT64
        graph.append(shape)
        graph.outputs.append(shape.outputs[0])
    for value in values.values():
        if not is_known(value) or value.shape is None:
            value.shape = None
    return ir.to_proto(clone).SerializeToString(), feeds
