"""Control edges out of standard operators: a node that waits for a tensor it does not read.

``alias = Reshape(t, Where(OptionalHasElement(after), shape, shape))`` is ``t`` itself, without a copy, but ready only
once ``after`` is. No data of ``after`` is read (on a GPU nothing is synchronised), the value is always ``shape``, and
no optimiser of onnxruntime can know that: the alias also keeps a recomputed node from being merged with the original.
OptionalHasElement reads plain tensors since opset 18 (https://onnx.ai/onnx/operators/onnx__OptionalHasElement.html).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.errors import ModelError

ROLE = "pkg.ckplan.role"
"""Node metadata: ``control`` for the nodes of a control edge, ``recompute`` for a repeated node."""


class ControlEdges:
    """Makes control edges and shares their parts.

    Attributes:
        initializers: the shapes that the edges need, to be added to the graph.
        count: number of aliases made.
    """

    def __init__(self) -> None:
        self.initializers: dict[str, ir.Value] = {}
        self.count = 0
        self._ready: dict[ir.Value, ir.Value] = {}
        self._shapes: dict[tuple[ir.Value, str], ir.Value] = {}
        self._aliases: dict[tuple[ir.Value, ir.Value], ir.Value] = {}

    def alias(self, tensor: ir.Value, after: ir.Value) -> tuple[ir.Value, list[ir.Node]]:
        """An alias of ``tensor`` that waits for ``after``, and the nodes that are new, in order.

        Raises:
            ModelError: the shape of ``tensor`` is not static.
        """
        known = self._aliases.get((tensor, after))
        if known is not None:
            return known, []
        new: list[ir.Node] = []
        if after not in self._ready:
            self._ready[after] = self._emit(
                new, "OptionalHasElement", [after], f"{after.name}/ready", ir.DataType.BOOL, ()
            )
        shape = self._shape(tensor)
        key = (after, shape.name or "")
        if key not in self._shapes:
            rank = (int(shape.shape[0]),) if shape.shape is not None else ()  # type: ignore[arg-type]
            name = f"{after.name}/ready/{shape.name}"
            self._shapes[key] = self._emit(
                new, "Where", [self._ready[after], shape, shape], name, ir.DataType.INT64, rank
            )
        assert tensor.shape is not None
        name = f"{tensor.name}/after{self.count}"
        alias = self._emit(new, "Reshape", [tensor, self._shapes[key]], name, tensor.dtype, tuple(tensor.shape))
        # An empty tensor has zeros in its shape, which Reshape would otherwise read as "copy this dimension".
        if 0 in tensor.shape:
            new[-1].attributes["allowzero"] = ir.AttrInt64("allowzero", 1)
        self.count += 1
        self._aliases[tensor, after] = alias
        return alias, new

    def _shape(self, tensor: ir.Value) -> ir.Value:
        if tensor.shape is None or not all(isinstance(dim, int) for dim in tensor.shape):
            raise ModelError(f"value '{tensor.name}' has no static shape", "bind its dimensions with --dim")
        dims = [int(dim) for dim in tensor.shape]  # type: ignore[arg-type]
        name = "ckplan/shape" + "".join(f"_{dim}" for dim in dims)
        if name not in self.initializers:
            array = np.array(dims, np.int64)
            self.initializers[name] = ir.Value(
                name=name,
                shape=ir.Shape(array.shape),
                type=ir.TensorType(ir.DataType.INT64),
                const_value=ir.tensor(array, name=name),
            )
        return self.initializers[name]

    @staticmethod
    def _emit(
        new: list[ir.Node],
        op_type: str,
        inputs: list[ir.Value],
        name: str,
        dtype: ir.DataType | None,
        shape: tuple[int | ir.SymbolicDim, ...],
    ) -> ir.Value:
        node = ir.node(op_type, inputs, name=name, metadata_props={ROLE: "control"})
        value = node.outputs[0]
        value.name = name
        value.shape = ir.Shape(shape)
        if dtype is not None:
            value.type = ir.TensorType(dtype)
        new.append(node)
        return value
