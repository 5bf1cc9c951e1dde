"""Bytes that onnxruntime's CPU kernels take outside its allocator, where its counters do not see them.

Some kernels that go by indices copy them, or the places that they stand for, into a vector of eight bytes each
(``core/providers/cpu/tensor``: ``scatter.cc``, ``scatter_nd.cc``, ``gather_nd.cc``, ``onehot.cc``). The heap grows by
it all the same. Read off the heap meter, each kernel alone (onnxruntime 1.31); ``tests/runtime/test_outside.py`` does
so again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_PLACE = 8
"""Bytes of an index, or of a place in memory."""

_BY_INDEX = {"OneHot": 0, "Scatter": 1, "ScatterElements": 1}
"""Operators that copy each index, and where their indices stand among their inputs."""

_BY_TUPLE = {"GatherND": 1, "ScatterND": 1}
"""The same for operators whose indices are tuples along the last axis, each of which gives one place."""


def index_input(op_type: str) -> int | None:
    """Which input of an operator is copied to a place outside the allocator; None if there is none."""
    return _BY_INDEX.get(op_type, _BY_TUPLE.get(op_type))


def outside_bytes(op_type: str, indices: Sequence[int]) -> int:
    """What a kernel takes outside the allocator, in bytes.

    Args:
        op_type: its operator.
        indices: shape of the input that `index_input` names.
    """
    if index_input(op_type) is None:
        return 0
    return _PLACE * math.prod(indices[:-1] if op_type in _BY_TUPLE else indices)
