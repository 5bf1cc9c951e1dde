"""Emits ONNX nodes whose results carry dtype and static shape from the start.

Gradient rules are written against :class:`Builder`; ``op.Mul(a, b)`` emits a ``Mul`` node and returns its result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Literal, Protocol, cast, overload

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir
from onnx_ir.convenience import convert_attribute

from ckplan.autodiff.idioms.broadcasting import shape_of_number
from ckplan.autodiff.precision import in_single, narrow_type
from ckplan.autodiff.reading import dtype_of, shape_of, size_of
from ckplan.autodiff.registry import NoGradientError
from ckplan.errors import ModelError
from ckplan.keys import PHASE
from ckplan.model.inference.infer import static_shape
from ckplan.model.node_reads import fixed_tensor
from ckplan.operators.matching import input_of

#: Key in ``Node.meta`` of a gradient node: the forward node that it belongs to.
FORWARD = "ckplan.forward"

#: Constants up to this many elements are shown to shape inference, which needs axes, shapes, pads and the like.
_SMALL = 1024

#: Up to this many rows are added up by a matrix product: 4 to 7 times as fast as ReduceSum over the first axis.
_FEW_ROWS = 64

#: Up to this many elements any form is fast, and one pass over leading and trailing axes as fast as two.
_FEW_ELEMENTS, ONE_PASS = 2**14, 2**21

#: Element types of which onnxruntime has a product that adds up in the same precision as ReduceSum.
_PRODUCT_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)

#: Factors that float16 can hold without loss lie between these powers of two; others are applied in steps.
_NORMAL = (2.0**-14, 2.0**15)

_ATTRIBUTE_TYPES = {
    onnx.defs.OpSchema.AttrType.INT: ir.AttributeType.INT,
    onnx.defs.OpSchema.AttrType.INTS: ir.AttributeType.INTS,
    onnx.defs.OpSchema.AttrType.FLOAT: ir.AttributeType.FLOAT,
    onnx.defs.OpSchema.AttrType.FLOATS: ir.AttributeType.FLOATS,
    onnx.defs.OpSchema.AttrType.STRING: ir.AttributeType.STRING,
    onnx.defs.OpSchema.AttrType.STRINGS: ir.AttributeType.STRINGS,
    onnx.defs.OpSchema.AttrType.TENSOR: ir.AttributeType.TENSOR,
}

Device = Literal["cpu", "cuda"]

Operand = ir.Value | np.ndarray | np.generic | float | int | bool | None

#: Gradients of a node's outputs or inputs; None where there is none.
Gradients = Sequence[ir.Value | None]


class Emitter(Protocol):
    """What ``op.<OpType>`` is: a function that emits one node."""

    @overload
    def __call__(self, *inputs: Operand, _outputs: int, **attributes: Any) -> tuple[ir.Value, ...]: ...

    @overload
    def __call__(self, *inputs: Operand, **attributes: Any) -> ir.Value: ...


class Builder:
    """Emits nodes into a graph.

    ``op.<OpType>(*inputs, **attributes)`` emits a node and returns its result; with ``_outputs`` given, a tuple of that
    many results. An input is a value, None for one that is left out, a Python number, or a numpy array. A number takes
    the element type of the first value among the inputs that is not boolean. Numbers and arrays become initializers,
    one for equal content. An attribute that is None is left out. Where ONNX cannot tell a result's shape, ``_shape``
    says it; the result then has the element type that numbers would take. An operator of a domain that ONNX does not
    define is emitted with ``op.emit("FancyGrad", x, dy, _domain="my.ops", _shape=shape_of(x))``.

    Args:
        graph: the graph that gets the nodes and initializers.
        opset_imports: opset versions by domain, for shape inference.
        wanted: the values whose gradients are needed.
        functions: local functions of the model; see :mod:`ckplan.autodiff.composites`.
        device: whose kernels the nodes are for.

    Attributes:
        partials: the gradients found so far, by forward value; see :meth:`take_partial`.
        pending: constant factors that those gradients still have to be multiplied by, where not 1.
        factor: the factor that a rule registered with ``factor="absorb"`` has to multiply its results by.
        sums: the results of the Adds that sum the gradients of a value with several readers, in order.
        watched: values whose gradients are kept once they are complete, for rules of nodes that lie before them.
    """

    def __init__(
        self,
        graph: ir.Graph,
        opset_imports: dict[str, int],
        wanted: Container[ir.Value] = (),
        functions: MutableMapping[ir.OperatorIdentifier, ir.Function] | None = None,
        device: Device = "cpu",
    ) -> None:
        self.graph = graph
        self.opset_imports = opset_imports
        self.wanted = wanted
        self.functions = {} if functions is None else functions
        self.device = device
        self.partials: dict[ir.Value, ir.Value] = {}
        self.pending: dict[ir.Value, float] = {}
        self.factor = 1.0
        self.sums: list[ir.Value] = []
        self.watched: dict[ir.Value, ir.Value | None] = {}
        self._before: ir.Node | None = None
        self._forward: ir.Node | None = None
        self._scope = "ckplan"
        self._phase = "backward"
        self._recorded: list[ir.Node] | None = None
        self._counters: dict[str, int] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    # -- what rules may ask ----------------------------------------------------------------------------------------

    def wants(self, value: ir.Value | None) -> bool:
        """Say whether a gradient of this value is needed at all."""
        return value is not None and value in self.wanted

    def take_partial(self, value: ir.Value) -> ir.Value | None:
        """Hand over the sum of the gradients that reached this value so far, None if there are none yet.

        A rule that can add onto a tensor in place takes it and returns the sum including its own contribution.
        """
        partial = self.partials.pop(value, None)
        return None if partial is None else self.scale(partial, self.pending.pop(value, 1.0))

    def constant_of(self, value: ir.Value | None) -> np.ndarray | None:
        """Return the content of a value that is fixed in the file, None if it is absent, computed, fed or trained."""
        tensor = None if self.wants(value) else fixed_tensor(value)
        return None if tensor is None else tensor.numpy()

    def number_of(self, value: ir.Value | None) -> float | None:
        """Return the number that a value of one element is fixed to in the file, None as `constant_of` or of more."""
        known = self.constant_of(value)
        return float(known.reshape(())) if known is not None and known.size == 1 else None

    def constant_ints(self, node: ir.Node, index: int, what: str) -> tuple[int, ...] | None:
        """Return an integer input of a node such as its axes, None if it is left out.

        Args:
            node: the node.
            index: which input.
            what: the input's name in the operator's documentation, for the error.

        Raises:
            NoGradientError: the input is computed at run time.
        """
        value = input_of(node, index)
        if value is None:
            return None
        array = self.constant_of(value)
        if array is None:
            raise NoGradientError(f"its input '{what}' is computed at run time")
        return tuple(int(number) for number in array.reshape(-1))

    @cached_property
    def largest(self) -> int:
        """Elements of the largest tensor that nodes of the graph make, as of when this is first asked for."""
        shapes = (static_shape(value) for node in self.graph for value in node.outputs)
        return max((math.prod(shape) for shape in shapes if shape is not None), default=0)

    # -- emitting --------------------------------------------------------------------------------------------------

    @contextmanager
    def scope(
        self, name: str, phase: str = "backward", before: ir.Node | None = None, forward: ir.Node | None = None
    ) -> Iterator[None]:
        """Name what is emitted inside ``<name>/<OpType>_<k>``, mark its phase, and say where it goes.

        Args:
            name: prefix of the nodes' names.
            phase: ``forward`` or ``backward``.
            before: the nodes go before this one; without it, to the end of the graph.
            forward: the node whose gradient is made; each emitted node's ``meta`` says so under :data:`FORWARD`.
        """
        saved = self._scope, self._phase, self._before, self._forward
        self._scope, self._phase, self._before = name, phase, before
        self._forward = forward or self._forward
        try:
            yield
        finally:
            self._scope, self._phase, self._before, self._forward = saved

    @contextmanager
    def recording(self) -> Iterator[list[ir.Node]]:
        """Collect the nodes that are emitted inside, in order."""
        nodes: list[ir.Node] = []
        saved, self._recorded = self._recorded, nodes
        try:
            yield nodes
        finally:
            self._recorded = saved

    def insert(self, node: ir.Node) -> None:
        """Put a node where the current scope says."""
        if self._recorded is not None:
            self._recorded.append(node)
        if self._forward is not None:
            node.meta[FORWARD] = self._forward
        if self._before is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self._before, node)

    def constant(self, array: np.ndarray | np.generic | Sequence[int], name: str = "ckplan/constant") -> ir.Value:
        """Return an initializer with this content; a sequence of ints becomes int64."""
        data = np.asarray(array) if isinstance(array, (np.ndarray, np.generic)) else np.asarray(array, dtype=np.int64)
        key = (data.dtype.name, data.shape, data.tobytes())
        found = self._constants.get(key)
        if found is None:
            tensor = ir.Tensor(np.ascontiguousarray(data).reshape(data.shape), name=self._unique(name, always=True))
            found = self._constants[key] = ir.Value(
                name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(data.shape), const_value=tensor
            )
        if found.name not in self.graph.initializers:  # new, or pruned when nothing read it any more
            self.graph.register_initializer(found)
        return found

    def __getattr__(self, op_type: str) -> Emitter:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)
        return cast("Emitter", partial(self.emit, op_type))

    def emit(
        self,
        op_type: str,
        *inputs: Operand,
        _outputs: int | None = None,
        _shape: Sequence[int] | None = None,
        _domain: str = "",
        **attributes: Any,
    ) -> Any:
        """Emit one node; see the class.

        Raises:
            ModelError: shape inference rejects the node or cannot tell a static shape.
        """
        given_values = [value for value in inputs if isinstance(value, ir.Value)]
        # The condition of Where does not tell the type of its branches.
        like = next((v for v in given_values if v.dtype != ir.DataType.BOOL), given_values[0] if given_values else None)
        operands = [self._operand(value, like, op_type) for value in inputs]
        while operands and operands[-1] is None:
            operands.pop()
        schema = None if _domain else onnx.defs.get_schema(op_type, self.opset_imports[""])
        given = {
            key: convert_attribute(key, value, _ATTRIBUTE_TYPES[schema.attributes[key].type] if schema else None)
            for key, value in attributes.items()
            if value is not None
        }
        kind = narrow_type(operands)
        if schema is not None and kind is not None and in_single(schema, operands, attributes):
            return self._emit_in_single(kind, op_type, operands, _outputs, attributes)
        endings = ["_out"] if _outputs is None or _outputs == 1 else [f"_out{i}" for i in range(_outputs)]
        name = self._unique(f"{self._scope}/{op_type}", always=True)
        while any(name + ending in self._names for ending in endings):  # left by a node that was folded
            name = self._unique(f"{self._scope}/{op_type}", always=True)
        results = [ir.Value(name=name + ending) for ending in endings]
        node = ir.node(
            op_type, operands, given, domain=_domain, outputs=results, name=name, metadata_props={PHASE: self._phase}
        )
        self.opset_imports.setdefault(_domain, 1)
        if _shape is None:
            self.infer(node)
        else:
            assert like is not None
            assert like.dtype is not None
            results[0].type, results[0].shape = ir.TensorType(like.dtype), ir.Shape(_shape)
        self.insert(node)
        self._names.update(cast("str", result.name) for result in results)
        return results[0] if _outputs is None else tuple(results)

    def _emit_in_single(
        self,
        kind: ir.DataType,
        op_type: str,
        operands: Sequence[ir.Value | None],
        outputs: int | None,
        attributes: dict[str, Any],
    ) -> Any:
        """Emit a node of half-precision operands in float32, its results in their type again."""
        if op_type == "Size" and operands[0] is not None and size_of(operands[0]) > 1:
            # One element is there when all are.
            ends = (np.asarray([end], dtype=np.int64) for end in (0, 1))
            operands = [self.Slice(self.reshape(operands[0], [size_of(operands[0])]), *ends)]
        single = ir.DataType.FLOAT
        wide = [self.Cast(v, to=single) if v is not None and v.dtype == kind else v for v in operands]
        found = self.emit(op_type, *wide, _outputs=outputs, **attributes)
        results = [self.Cast(r, to=kind) if r.dtype == single else r for r in (found if outputs else [found])]
        return tuple(results) if outputs else results[0]

    def infer(self, node: ir.Node) -> None:
        """Fill in dtype and static shape of a node's outputs from those of its inputs.

        Raises:
            ModelError: inference rejects the node or cannot tell a static shape.
        """
        schema = onnx.defs.get_schema(node.op_type, self.opset_imports[node.domain], node.domain)
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, onnx.TensorProto] = {}
        for value in node.inputs:
            if value is None:
                continue
            name = cast("str", value.name)
            types[name] = onnx.helper.make_tensor_type_proto(int(cast("ir.DataType", value.dtype)), shape_of(value))
            tensor = fixed_tensor(value)
            if tensor is not None and tensor.size <= _SMALL:
                data[name] = ir.serde.serialize_tensor(tensor)
        try:
            # The generic ir.to_proto takes ten times as long to find out what it was given.
            inferred = onnx.shape_inference.infer_node_outputs(schema, ir.serde.serialize_node(node), types, data)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            raise ModelError(f"{node.op_type} '{node.name}' is not valid: {error}") from error
        for value in node.outputs:
            found = inferred.get(value.name or "")
            if found is None:
                if value.uses() or value.name:
                    raise ModelError(f"no shape can be inferred for an output of {node.op_type} '{node.name}'")
                continue
            value.type = ir.TensorType(ir.DataType(found.tensor_type.elem_type))
            dims = found.tensor_type.shape.dim
            value.shape = ir.Shape([dim.dim_value if dim.HasField("dim_value") else None for dim in dims])
            if not found.tensor_type.HasField("shape") or not value.shape.is_static():
                raise ModelError(f"the shape of {node.op_type} '{node.name}' depends on values known only at run time")

    def _operand(self, value: Operand, like: ir.Value | None, op_type: str) -> ir.Value | None:
        if value is None or isinstance(value, ir.Value):
            return value
        if isinstance(value, (np.ndarray, np.generic)):
            fast = shape_of_number(op_type, shape_of(like)) if like is not None and value.ndim == 0 else value.shape
            return self.constant(value.reshape(fast))
        if like is None:
            raise TypeError("a number among the inputs takes its element type from a value, and there is none")
        return self.constant(np.full(shape_of_number(op_type, shape_of(like)), value, dtype=dtype_of(like)))

    # -- small helpers ---------------------------------------------------------------------------------------------

    def reshape(self, value: ir.Value, shape: Collection[int]) -> ir.Value:
        """Return the value in another shape of as many elements; itself if it has that shape. Costs no memory."""
        if shape_of(value) == tuple(shape):
            return value
        return self.Reshape(value, np.asarray(list(shape), dtype=np.int64), allowzero=1 if 0 in shape else None)

    def transpose(self, value: ir.Value, perm: Sequence[int]) -> ir.Value:
        """Return the value with its axes permuted; itself if the order stays, a free Reshape if only ones move."""
        shape = shape_of(value)
        moving = [axis for axis in perm if shape[axis] != 1]
        if moving == sorted(moving):
            return self.reshape(value, [shape[axis] for axis in perm])
        return self.Transpose(value, perm=list(perm))

    def reduce_sum(self, value: ir.Value, axes: Collection[int], keepdims: bool = True) -> ir.Value:
        """Sum over some axes; over none, the value itself; over axes of one element, a free Reshape.

        In onnxruntime's fastest form: trailing axes of a large tensor first, few long rows by a product with ones.
        """
        shape, every = shape_of(value), sorted({axis % len(shape_of(value)) for axis in axes})
        kept = [1 if axis in every else dim for axis, dim in enumerate(shape) if keepdims or axis not in every]
        summed = [axis for axis in every if shape[axis] != 1]
        if not summed:
            return self.reshape(value, kept)
        rest = [axis for axis, dim in enumerate(shape) if axis not in summed and dim != 1]
        if rest and summed[0] < rest[0] and rest[-1] < summed[-1] and size_of(value) > ONE_PASS:
            trailing = [axis for axis in (summed if keepdims else every) if axis > rest[-1]]
            value = self.ReduceSum(value, np.asarray(trailing, dtype=np.int64), keepdims=int(keepdims))
            return self.reshape(self.reduce_sum(value, [a for a in every if a < rest[-1]], keepdims), kept)
        rows, columns = (math.prod(shape[axis] for axis in group) for group in (summed, rest))
        few = 0 < rows <= min(_FEW_ROWS, columns) and rows * columns > _FEW_ELEMENTS
        if few and rest and summed[-1] < rest[0] and value.dtype in _PRODUCT_TYPES:
            value = self.MatMul(np.ones([1, rows], dtype_of(value)), self.reshape(value, [rows, columns]))
            return self.reshape(value, kept)
        named = summed if keepdims else every
        return self.reshape(self.ReduceSum(value, np.asarray(named, dtype=np.int64), keepdims=int(keepdims)), kept)

    def scale(self, value: ir.Value, factor: float) -> ir.Value:
        """Multiply by a number: no node for 1, a new constant where the value is a small constant itself."""
        if factor == 1:
            return value
        known = self.constant_of(value)
        if known is not None and known.size <= _SMALL:
            return self.constant((known * factor).astype(known.dtype))
        if value.dtype == ir.DataType.FLOAT16 and factor and not _NORMAL[0] <= abs(factor) <= _NORMAL[1]:
            step = _NORMAL[1] if abs(factor) > 1 else _NORMAL[0]
            return self.scale(self.Mul(value, step), factor / step)
        return self.Mul(value, factor)

    def sum_to_shape(self, value: ir.Value, shape: Collection[int]) -> ir.Value:
        """Undo broadcasting: sum over the axes along which ``shape`` was stretched to the value's shape."""
        have, want = shape_of(value), tuple(shape)
        if have == want:
            return value
        lead = len(have) - len(want)
        axes = [axis for axis, dim in enumerate(have) if axis < lead or (want[axis - lead] == 1 and dim != 1)]
        return self.reshape(self.reduce_sum(value, axes, keepdims=not lead), want)

    def zeros(self, shape: Collection[int], like: ir.Value) -> ir.Value:
        """Return zeros of the element type of ``like``, made when ``like`` exists.

        A constant would be simpler, but onnxruntime would compute it when the file is loaded and hold it forever.
        """
        return self.expand(self.Cast(self.Less(self.Size(like), np.int64(0)), to=like.dtype), shape)

    def cast(self, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        """Return the value in an element type; itself if it has that type."""
        return value if value.dtype == dtype else self.Cast(value, to=dtype)

    def wide(self, value: ir.Value) -> ir.Value:
        """Return the value in at least single precision."""
        return self.Cast(value, to=ir.DataType.FLOAT) if dtype_of(value).itemsize < 4 else value

    def expand(self, value: ir.Value, shape: Collection[int]) -> ir.Value:
        """Broadcast to a shape; no node if it is that shape already."""
        if shape_of(value) == tuple(shape):
            return value
        return self.Expand(value, np.asarray(list(shape), dtype=np.int64))

    # -- names -----------------------------------------------------------------------------------------------------

    @cached_property
    def _names(self) -> set[str]:
        names = {node.name for node in self.graph.all_nodes() if node.name}
        values = (v for node in self.graph.all_nodes() for v in node.outputs)
        named = {v.name for v in (*values, *self.graph.inputs, *self.graph.initializers.values()) if v.name}
        return names | named

    def _unique(self, name: str, always: bool = False) -> str:
        """Return a name that no value and no node has; with ``always`` a number is appended in any case."""
        if not always and name not in self._names:
            self._names.add(name)
            return name
        while True:
            number = self._counters.get(name, 0)
            self._counters[name] = number + 1
            candidate = f"{name}_{number}"
            if candidate not in self._names:
                self._names.add(candidate)
                return candidate

    def unique_name(self, name: str) -> str:
        """Return ``name``, or if a value or node has it, the name with a number appended; taken from then on."""
        return self._unique(name)
