"""Shape and type inference of one node at a time, by the rules that the operators' schemas carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ckplan.model.node_reads import captured, fixed_tensor
from ckplan.operators.matching import is_op
from ckplan.operators.record import MICROSOFT

# Operands that decide a shape (targets, pads, axes, repeats) are small; larger ones are not worth serialising.
_DATA_LIMIT = 2048

# Of initializers, which may be weights, only as many numbers as such operands have are looked at.
_OPERAND = 64

# Operators whose schema says nothing of the output's shape.
_LIKE_ITS_INPUT = frozenset({"GroupNormalization", "MeanVarianceNormalization"})

_SIMPLE = frozenset(ir.AttributeType[name] for name in ("FLOAT", "INT", "STRING", "FLOATS", "INTS", "STRINGS"))

_found: dict[Hashable, tuple[onnx.TypeProto | None, ...]] = {}
"""What was inferred, by all that it depends on: layers repeat, and one graph is gone through several times."""
_MOST_FOUND = 1 << 14


class NodeInference:
    """Infers node outputs; holds what is the same for every node of a model (an infer call costs about 20 us)."""

    def __init__(self, graph: ir.Graph, ir_version: int) -> None:
        self._opsets = dict(graph.opset_imports)
        self._imports = [onnx.helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
        self._ir_version = ir_version
        self._schemas: dict[tuple[str, str], onnx.defs.OpSchema | None] = {}

    def run(self, node: ir.Node, constant: Callable[[ir.Value], np.ndarray | None]) -> str:
        """Set type and shape of the node's outputs where inference knows better than what is there.

        Args:
            node: all the types it needs stand on its inputs (for a control flow node, on its captures too).
            constant: the array of a value that is constant, else None.

        Returns:
            An empty string, or why inference failed.
        """
        if node.domain == MICROSOFT:
            _infer_of_onnxruntime(node)
        schema = self._schema(node)
        if schema is None:
            return ""
        values = [value for value in node.inputs if value is not None]
        nested = [attribute for attribute in node.attributes.values() if attribute.type == ir.AttributeType.GRAPH]
        if nested:
            values.extend(captured(node))
        if any(value.type is None for value in values):
            return ""
        arrays = [_operand(value, constant) for value in values]
        key = None if nested else self._key(node, arrays)
        found = None if key is None else _found.get(key)
        if found is None:
            types = {value.name or "": proto for value in values if (proto := type_of(value)) is not None}
            operands = zip(values, arrays, strict=True)
            data = {v.name or "": onnx.numpy_helper.from_array(array) for v, array in operands if array is not None}
            try:
                # The generic ir.to_proto takes ten times as long to find out what it was given.
                inferred = onnx.shape_inference.infer_node_outputs(
                    schema,
                    ir.serde.serialize_node(node),
                    types,
                    data,
                    opset_imports=self._imports,
                    ir_version=self._ir_version,
                )
            except Exception as error:  # InferenceError, ValidationError, or a C++ exception as RuntimeError
                return " ".join(str(error).split())  # whole: what it says is looked for in it
            found = tuple(inferred.get(output.name or "") for output in node.outputs)
            if key is not None:
                if len(_found) >= _MOST_FOUND:
                    _found.clear()
                _found[key] = found
        for output, proto in zip(node.outputs, found, strict=True):
            if proto is not None:
                _merge(output, proto)
        if is_op(node, _LIKE_ITS_INPUT) and node.inputs[0] is not None:
            like = type_of(node.inputs[0])
            assert like is not None
            _merge(node.outputs[0], like)
        return ""

    def _key(self, node: ir.Node, arrays: Sequence[np.ndarray | None]) -> Hashable | None:
        """What inference goes by, names left out; None where that is more than a few numbers."""
        attributes: list[Hashable] = []
        for attribute in node.attributes.values():
            if attribute.type not in _SIMPLE:
                return None
            value = attribute.value
            simple = value if isinstance(value, int | float | str) else tuple(value)
            attributes.append((attribute.name, attribute.type, simple))
        inputs: list[Hashable] = []
        for read in node.inputs:
            if read is not None and not isinstance(read.type, ir.TensorType):
                return None
            dims = None if read is None or read.shape is None else tuple(_dimension(dim) for dim in read.shape)
            inputs.append(None if read is None else (read.dtype, dims))
        operands = tuple(None if array is None else (array.dtype.str, array.shape, array.tobytes()) for array in arrays)
        named = tuple(bool(output.name) for output in node.outputs)
        version = self._ir_version, tuple(self._opsets.items())
        return version, node.domain, node.op_type, tuple(attributes), tuple(inputs), operands, named

    def _schema(self, node: ir.Node) -> onnx.defs.OpSchema | None:
        key = (node.domain, node.op_type)
        if key not in self._schemas:
            try:
                self._schemas[key] = onnx.defs.get_schema(node.op_type, self._opsets.get(node.domain, 1), node.domain)
            except onnx.defs.SchemaError:
                self._schemas[key] = None
        return self._schemas[key]


def _infer_of_onnxruntime(node: ir.Node) -> None:
    """Set type and shape of what those of onnxruntime's own operators make that are not written in ONNX's."""
    read, made = node.inputs[0] if node.inputs else None, node.outputs[0]
    if read is None or read.shape is None or read.type is None:
        return
    if node.op_type == "Inverse":
        made.type, made.shape = read.type, ir.Shape(read.shape.dims)
    elif node.op_type == "MatMulNBits":
        made.type, made.shape = read.type, ir.Shape([*read.shape.dims[:-1], node.attributes["N"].as_int()])
    elif node.op_type == "GatherBlockQuantized":
        rows, scales, sizes = node.inputs[1], node.inputs[2], list(read.shape.dims)
        if rows is None or rows.shape is None or scales is None or not isinstance(sizes[-1], int):
            return
        if read.dtype == ir.DataType.UINT8:  # several numbers in each
            sizes[-1] *= 8 // node.attributes.get_int("bits", 4)
        axis = node.attributes.get_int("gather_axis", 0) % len(sizes)
        made.type, made.shape = scales.type, ir.Shape([*sizes[:axis], *rows.shape.dims, *sizes[axis + 1 :]])


def _operand(value: ir.Value, constant: Callable[[ir.Value], np.ndarray | None]) -> np.ndarray | None:
    """The array of a value that is constant, where it may decide a shape."""
    array = constant(value)
    if array is None:
        array = _small_initializer(value)
    return array if array is not None and array.size <= _DATA_LIMIT and array.dtype.kind in "iufb" else None


def _dimension(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def _small_initializer(value: ir.Value) -> np.ndarray | None:
    """Operands such as the scales of a Resize decide shapes too, though folding treats floats as weights."""
    tensor = fixed_tensor(value)
    if tensor is None or tensor.size > _OPERAND or tensor.dtype == ir.DataType.STRING:
        return None
    return np.asarray(tensor.numpy())


def small_constant(value: ir.Value) -> np.ndarray | None:
    """The content of a value that the file fixes, in a Constant node or an initializer, if it may decide a shape."""
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return tensor.numpy() if tensor is not None and tensor.size <= _OPERAND else None


def type_of(value: ir.Value) -> onnx.TypeProto | None:
    """The value's type with its shape as a proto; None when its type is unknown."""
    if value.type is None:
        return None
    proto = ir.serde.serialize_type(value.type)
    if value.shape is not None:
        ir.serde.serialize_shape_into(proto, value.shape)
    return proto


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """The shape as numbers, or None when a dimension (or the rank) is not known."""
    if value.shape is None:
        return None
    sizes = tuple(dim for dim in value.shape if isinstance(dim, int))
    return sizes if len(sizes) == len(value.shape) else None


def is_vector(value: ir.Value) -> bool:
    """Whether a value has one axis, further ones of size one not counted; False where sizes are not known."""
    sizes = static_shape(value) or ()
    return bool(sizes) and max(sizes) == math.prod(sizes)


def is_known(value: ir.Value) -> bool:
    """Whether the element type and every dimension of the value are known."""
    return value.dtype is not None and static_shape(value) is not None


def _merge(output: ir.Value, proto: onnx.TypeProto) -> None:
    inferred_type = ir.serde.deserialize_type_proto_for_type(proto)
    if inferred_type is not None:
        output.type = inferred_type
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    if shape is None:
        return
    if output.shape is None or len(output.shape) != len(shape):
        output.shape = shape
        return
    merged = [new if isinstance(new, int) else old for old, new in zip(output.shape, shape, strict=True)]
    output.shape = ir.Shape(merged)
