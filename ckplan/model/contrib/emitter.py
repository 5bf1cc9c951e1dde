"""Emits the standard nodes that take the place of a fused one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan.model.constants import mark_constant, unused_name
from ckplan.model.inference.infer import static_shape
from ckplan.operators.matching import input_of

_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

#: The mark of the constants that expansions bring along; see `ckplan.model.constants.mark_constant`.
EXPANSION = "expansion"

Operand = ir.Value | np.ndarray | float | int | None

#: What an expansion puts in the place of a node's outputs; None where there is none.
Results = Sequence[ir.Value | None]


class NotExpandableError(Exception):
    """Raised by an expansion for a form of its operator that standard operators cannot say.

    Args:
        reason: why, as it will stand in brackets after the node's name.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Emitter:
    """``e.<OpType>(*inputs, **attributes)`` emits a standard node and returns its result, type and shape known.

    With ``_outputs`` given it returns a tuple of that many results. A number among the inputs takes the element type
    of the first value among them; an attribute that is None is left out.

    Args:
        node: the node that is replaced; the new ones go before it and are named after it.
        visit: infers the outputs of a new node, and folds what is constant.
        constant: the content of a value that is known in advance, else None.
        main: the graph that gets the constants, which is not that of the node if the node stands in a body.
    """

    def __init__(
        self,
        node: ir.Node,
        visit: Callable[[ir.Node], None],
        constant: Callable[[ir.Value | None], np.ndarray | None],
        main: ir.Graph | None = None,
    ) -> None:
        assert node.graph is not None
        self._main = main or node.graph
        self.node = node
        self.constant = constant
        self.emitted: list[ir.Node] = []
        self._visit = visit
        self._graph = node.graph
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    # -- what the node says ----------------------------------------------------------------------------------------

    def input(self, index: int) -> ir.Value | None:
        """Return an input of the node, None if it is left out."""
        return input_of(self.node, index)

    def required(self, index: int) -> ir.Value:
        """Return an input that the operator demands.

        Raises:
            NotExpandableError: it is not there.
        """
        value = self.input(index)
        if value is None:
            raise NotExpandableError(f"lacks its input {index}")
        return value

    def reads_output(self, index: int) -> bool:
        """Say whether anything needs an output of the node."""
        if index >= len(self.node.outputs):
            return False
        output = self.node.outputs[index]
        return bool(output.uses()) or output.is_graph_output()

    def int_attribute(self, name: str, default: int = 0) -> int:
        """Return an integer attribute, or the operator's default."""
        return self.node.attributes.get_int(name, default)

    def float_attribute(self, name: str, default: float) -> float:
        """Return a float attribute, or the operator's default."""
        return self.node.attributes.get_float(name, default)

    def text_attribute(self, name: str, default: str = "") -> str:
        """Return a string attribute, or the operator's default."""
        return self.node.attributes.get_string(name, default)

    def ints_attribute(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute of integers, None if it is left out."""
        attribute = self.node.attributes.get(name)
        return None if attribute is None else tuple(attribute.as_ints())

    def floats_attribute(self, name: str) -> tuple[float, ...]:
        """Return an attribute of numbers, empty if it is left out."""
        attribute = self.node.attributes.get(name)
        return () if attribute is None else tuple(attribute.as_floats())

    def known(self, index: int, what: str) -> np.ndarray:
        """Return the content of an input that has to be known in advance.

        Args:
            index: of the input.
            what: its name in the documentation.

        Raises:
            NotExpandableError: it is computed at run time.
        """
        array = self.constant(self.input(index))
        if array is None:
            raise NotExpandableError(f"its input '{what}' is computed at run time")
        return array

    def refuse(self, *inputs: int, because: str) -> None:
        """Give up if any of these inputs is there.

        Args:
            inputs: their places.
            because: what the node cannot be expanded with.

        Raises:
            NotExpandableError: one is there.
        """
        if any(self.input(index) is not None for index in inputs):
            raise NotExpandableError(because)

    # -- emitting --------------------------------------------------------------------------------------------------

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)
        return partial(self.emit, op_type)

    def emit(self, op_type: str, *inputs: Operand, _outputs: int = 0, **attributes: Any) -> Any:
        """Emit one node; see the class."""
        like = next((value for value in inputs if isinstance(value, ir.Value)), None)
        operands = [self._operand(value, like) for value in inputs]
        while operands and operands[-1] is None:
            operands.pop()
        name = f"{self.node.name}/{op_type}_{len(self.emitted)}"
        count = _outputs or 1
        outputs = [ir.Value(name=f"{name}_out{i}" if count > 1 else f"{name}_out") for i in range(count)]
        given = {key: value for key, value in attributes.items() if value is not None}
        node = ir.node(op_type, operands, given, outputs=outputs, name=name)
        self._graph.insert_before(self.node, node)
        self.emitted.append(node)
        self._visit(node)
        return tuple(outputs) if _outputs else outputs[0]

    def _operand(self, value: Operand, like: ir.Value | None) -> ir.Value | None:
        if value is None or isinstance(value, ir.Value):
            return value
        if isinstance(value, np.ndarray):
            return self.literal(value)
        assert like is not None
        assert like.dtype is not None
        return self.literal(np.asarray(value, dtype=like.dtype.numpy()))

    def literal(self, array: np.ndarray) -> ir.Value:
        """Return an initializer with this content, marked as a constant of the formula."""
        key = (array.dtype.name, array.shape, array.tobytes())
        found = self._constants.get(key)
        if found is None:
            tensor = ir.Tensor(np.array(array))
            found = ir.Value(
                name=unused_name(self._main, f"{self.node.name}/constant_{len(self._constants)}"),
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape(array.shape),
                const_value=tensor,
            )
            mark_constant(found, EXPANSION)
            self._main.register_initializer(found)
            self._constants[key] = found
        return found

    # -- small helpers ---------------------------------------------------------------------------------------------

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """Return the static shape of a value.

        Raises:
            NotExpandableError: it is not known.
        """
        shape = static_shape(value)
        if shape is None:
            raise NotExpandableError(f"the shape of '{value.name}' is unknown")
        return shape

    def reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Return the value in another shape; itself if it has that shape."""
        if self.shape(value) == tuple(shape):
            return value
        result: ir.Value = self.Reshape(
            value, np.asarray(shape, dtype=np.int64), allowzero=1 if 0 in tuple(shape) else None
        )
        return result

    def cast(self, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        """Return the value in an element type; itself if it has it."""
        if dtype is None or value.dtype == dtype:
            return value
        result: ir.Value = self.Cast(value, to=int(dtype))
        return result

    def wide(self, value: ir.Value) -> ir.Value:
        """Return the value in at least single precision, for sums."""
        return self.cast(value, ir.DataType.FLOAT) if value.dtype in _NARROW else value

    def scale(self, value: ir.Value, factor: float) -> ir.Value:
        """Return the value times a number; itself for 1."""
        if factor == 1:
            return value
        result: ir.Value = self.Mul(value, factor)
        return result

    def transpose(self, value: ir.Value, perm: Sequence[int]) -> ir.Value:
        """Return the value with its axes permuted; itself if the order stays."""
        if list(perm) == sorted(perm):
            return value
        result: ir.Value = self.Transpose(value, perm=list(perm))
        return result

    def plus(self, value: ir.Value, *others: ir.Value | None) -> ir.Value:
        """Return the sum of a value and of those of the others that are there."""
        for other in others:
            value = value if other is None else self.Add(value, other)
        return value

    def slice(self, value: ir.Value, start: int, end: int, axis: int) -> ir.Value:
        """Return a range along an axis; the value itself for all of it."""
        if start == 0 and end >= self.shape(value)[axis]:
            return value
        bounds = [np.asarray([number], dtype=np.int64) for number in (start, end, axis)]
        result: ir.Value = self.Slice(value, *bounds)
        return result
