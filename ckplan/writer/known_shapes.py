"""Of which values onnxruntime may know the whole shape in a planned file, where activations declare none.

What reads a value of unknown shape is of unknown shape itself, or of a partly known one; what is made from weights and
constants alone is not. This is said of operators at large: where one tells a shape by something else (the mean that
BatchNormalization returns has as many entries as its scale), onnxruntime knows more than is said here.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.keys import ROLE
from ckplan.runtime.sizes import SMALL, bytes_of, dimensions_of


def is_named(value: ir.Value) -> bool:
    """Whether a planned file declares no shape of a value, or one by names (see `buffer_names`).

    Small tensors are among them: a mean of known length would give its length away to what is made with it. Not so rows
    of integers, which are shapes and axes, and what is returned, whose shape is the file's to say.
    """
    dims = dimensions_of(value)
    if not dims or value.producer() is None or value.is_graph_output():
        return False
    return tells_shape(value) or len(dims) > 1 or bytes_of(value) >= SMALL


def tells_shape(value: ir.Value) -> bool:
    """Whether a value is one whose shape those of others follow from: no shape or axis itself. Masks are among them.

    Integers are where there are many: indices, and buckets of relative positions.
    """
    if value.dtype is None:
        return False
    return value.dtype.is_floating_point() or value.dtype is ir.DataType.BOOL or bytes_of(value) >= SMALL


class KnownShapes:
    """Of which values onnxruntime may know the whole shape, each found once."""

    def __init__(self) -> None:
        self._found: dict[ir.Value, bool] = {}

    def is_known(self, value: ir.Value) -> bool:
        """Whether onnxruntime may know the whole shape of a value."""
        waiting = [value]
        while waiting:
            current = waiting[-1]
            reads = [] if current in self._found else [read for read in _inputs_of(current) if read not in self._found]
            waiting += reads
            if not reads:
                self._found[waiting.pop()] = self._tells(current)
        return self._found[value]

    def _tells(self, value: ir.Value) -> bool:
        node = value.producer()
        if value in self._found:
            return self._found[value]
        if node is None:
            return value.is_initializer() or not value.is_graph_input()  # what is fed is read through an alias
        if node.metadata_props.get(ROLE) == "control":
            # An alias hides dimensions: one of a single number has none to hide.
            return node.op_type in ("Size", "Max", "Expand") or dimensions_of(value) == ()
        return not is_named(value) or all(self._found[read] for read in _inputs_of(value))


def _inputs_of(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [] if node is None else [read for read in node.inputs if read is not None]
