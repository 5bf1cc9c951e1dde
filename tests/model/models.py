"""What the tests of `ckplan.model` share: models in ONNX's text form, files on disk, and runs in onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
from onnx import numpy_helper

from ckplan.model import ForwardModel, load

Arrays = Mapping[str, np.ndarray]


def parse(text: str, weights: Arrays | None = None, *, as_inputs: bool = False) -> onnx.ModelProto:
    """A model from its text, with `weights` added as initializers (and as graph inputs, as IR 3 has it)."""
    model = onnx.parser.parse_model(text)
    for name, array in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
        if as_inputs:
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
    return model


def write(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def run(model: ir.Model | onnx.ModelProto, inputs: Arrays) -> list[np.ndarray]:
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def assert_normal(model: ir.Model) -> None:
    """What `load` promises of every model."""
    graph = model.graph
    assert graph.opset_imports[""] >= 21
    assert model.ir_version >= 10
    assert not model.functions
    assert not set(graph.inputs) & set(graph.initializers.values())
    names = [node.name for node in ir.traversal.RecursiveGraphIterator(graph)]
    assert all(names)
    assert len(names) == len(set(names))
    values = [*graph.inputs, *graph.initializers.values(), *(output for node in graph for output in node.outputs)]
    for value in values:
        assert value.name
        assert value.dtype is not None, value
        assert value.shape is not None, value
        assert all(isinstance(size, int) for size in value.shape), value
    assert len({value.name for value in values}) == len(values)
    tensors = [value.const_value for value in graph.initializers.values() if value.const_value is not None]
    if sum(math.inf if isinstance(tensor, ir.ExternalTensor) else tensor.nbytes for tensor in tensors) < 50e6:
        onnx.checker.check_model(ir.to_proto(model))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def loaded(folder: Path, text: str, weights: Arrays | None = None, **options: object) -> ForwardModel:
    """The loaded model of a text, which is checked to be normal."""
    forward = load(write(parse(text, weights), folder), **options)  # type: ignore[arg-type]
    assert_normal(forward.model)
    return forward
