"""Bytes that onnxruntime's CPU kernels take outside its allocator, where its counters do not see them.

Some kernels that go by indices copy them, or the places that they stand for, into a vector of eight bytes each
(``core/providers/cpu/tensor``: ``scatter.cc``, ``scatter_nd.cc``, ``gather_nd.cc``, ``onehot.cc``). A GridSample that
is linear and pads with zeros writes down four places and weights for each place of a sample (``grid_sample.cc``). The
heap grows by it all the same. Read off the heap meter, each kernel alone (onnxruntime 1.31);
``tests/runtime/test_outside.py`` does so again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # processes that run models read this, and none of that
    import onnx_ir as ir

INDEX = 8
"""Bytes of an index, or of a place in memory."""

_BY_INDEX = {"OneHot": 0, "Scatter": 1, "ScatterElements": 1}
"""Operators that copy each index, and where their indices stand among their inputs."""

_BY_TUPLE = {"GatherND": 1, "ScatterND": 1}
"""The same for operators whose indices are tuples along the last axis, each of which gives one place."""

_BY_SAMPLE = {"GridSample": 1}
"""The same for operators whose tuples are those of samples, which they go through one after the other."""

_OF_PLANES = 4
"""Axes of the tuples of planes: in volumes, these operators write nothing down."""

_LINEAR = ("", "bilinear", "linear")
"""What the mode of a GridSample is called; empty for the default."""

_CORNERS, _PLACE = 4, 40
"""Weights of a place between others, and bytes of what stands beside them: four indices and a mask."""


def index_input(op_type: str) -> int | None:
    """Which input of an operator is copied to a place outside the allocator; None if there is none."""
    return (_BY_INDEX | _BY_TUPLE | _BY_SAMPLE).get(op_type)


def places_outside(op_type: str, indices: Sequence[int]) -> int:
    """How many places a kernel writes down outside the allocator.

    Args:
        op_type: its operator.
        indices: shape of the input that `index_input` names.
    """
    if index_input(op_type) is None:
        return 0
    if op_type in _BY_SAMPLE:
        return math.prod(indices[1:-1]) if len(indices) == _OF_PLANES else 0
    return math.prod(indices[:-1] if op_type in _BY_TUPLE else indices)


def place_bytes(node: ir.Node) -> int:
    """What a node's kernel takes outside the allocator for each of these places, in bytes."""
    if node.op_type not in _BY_SAMPLE:
        return INDEX
    mode, padding = (node.attributes.get_string(name, "") for name in ("mode", "padding_mode"))
    if node.domain or mode not in _LINEAR or padding not in ("", "zeros"):
        return 0
    image = node.inputs[0]
    size = 4 if image is None or image.dtype is None else image.dtype.itemsize
    return _PLACE + _CORNERS * int(size)
