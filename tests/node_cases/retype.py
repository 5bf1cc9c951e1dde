"""Copies of a model in another floating type: every float of one precision becomes one of another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tests.node_cases.cases import FLOATS

_TYPE_ATTRIBUTES = frozenset({"to", "dtype"})
"""Attributes that name an element type."""


def retyped(model: onnx.ModelProto, wanted: int) -> onnx.ModelProto:
    """Copy a model with all floats, declared, stored and cast to, in the element type ``wanted``."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _graph(copy.graph, wanted)
    for function in copy.functions:
        for node in function.node:
            _node(node, wanted)
    return copy


def in_type(value: Any, wanted: int) -> Any:
    """Turn floating arrays, alone or in a list, to the element type ``wanted``; other values stay."""
    if isinstance(value, list):
        return [in_type(item, wanted) for item in value]
    if value is None:
        return None
    array = np.asarray(value)
    known = onnx.helper.np_dtype_to_tensor_dtype(array.dtype) if array.dtype.kind != "U" else 0
    return array.astype(onnx.helper.tensor_dtype_to_np_dtype(wanted)) if known in FLOATS else array


def _graph(graph: onnx.GraphProto, wanted: int) -> None:
    for tensor in graph.initializer:
        _tensor(tensor, wanted)
    for value in (*graph.input, *graph.output, *graph.value_info):
        _type(value.type, wanted)
    for node in graph.node:
        _node(node, wanted)


def _type(kind: onnx.TypeProto, wanted: int) -> None:
    if kind.HasField("sequence_type"):
        _type(kind.sequence_type.elem_type, wanted)
    elif kind.HasField("optional_type"):
        _type(kind.optional_type.elem_type, wanted)
    elif kind.tensor_type.elem_type in FLOATS:
        kind.tensor_type.elem_type = wanted


def _tensor(tensor: TensorProto, wanted: int) -> None:
    if tensor.data_type in FLOATS:
        tensor.CopyFrom(onnx.numpy_helper.from_array(in_type(onnx.numpy_helper.to_array(tensor), wanted), tensor.name))


def _node(node: onnx.NodeProto, wanted: int) -> None:
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in FLOATS:
            attribute.i = wanted
        elif attribute.HasField("t"):
            _tensor(attribute.t, wanted)
        elif attribute.HasField("g"):
            _graph(attribute.g, wanted)
        elif attribute.HasField("tp"):
            _type(attribute.tp, wanted)
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            numbers: float | Iterable[float] = attribute.f if attribute.name == "value_float" else attribute.floats
            array = in_type(np.asarray(numbers, dtype=np.float32), wanted)
            attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(array)))
