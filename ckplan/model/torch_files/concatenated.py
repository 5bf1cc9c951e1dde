"""A parameter inside of what torch's default exporter concatenated is computed with again, as its numbers show.

``torch.cat([p, q])`` of two parameters is one tensor in the file. Where ``p`` is read elsewhere as well, it is there
too, and its numbers stand in the other one to the bit. What stands beside them is a parameter of its own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.model.constants import unused_name
from ckplan.model.structure import is_unstructured
from ckplan.model.torch_files.exporter_metadata import folded_from
from ckplan.model.torch_files.functions import Array, add_parameter, array_of, make_instead

_CONCATENATED = re.compile(r"cat(_\d+)?")


@dataclass(frozen=True)
class _Part:
    """Where the numbers of a tensor stand along an axis of another, perhaps transposed."""

    start: int
    stop: int
    source: ir.Value
    turned: bool


def is_concatenated(value: ir.Value) -> bool:
    """Whether torch's default exporter computed an initializer by a concatenation."""
    return any(map(_CONCATENATED.fullmatch, (str(value.name), *folded_from(value))))


def put_concat(graph: ir.Graph, value: ir.Value, sources: Sequence[ir.Value]) -> bool:
    """Put a Concat of the sources, and of what stands beside them, in the place of an initializer that holds them all.

    Args:
        graph: in whose initializers they are.
        value: of numbers of the sources' type, computed of them.
        sources: parameters.

    Returns:
        Whether it does.
    """
    if not is_concatenated(value) or not all(map(is_unstructured, sources)):
        return False
    array = array_of(value)
    for axis in range(array.ndim):
        parts = [part for source in sources for part in _places(array, axis, source)]
        parts.sort(key=lambda part: part.start)
        apart = all(one.stop <= other.start for one, other in itertools.pairwise(parts))
        if apart and {part.source for part in parts} == set(sources):
            _put(graph, value, axis, parts)
            return True
    return False


def _places(array: Array, axis: int, source: ir.Value) -> list[_Part]:
    """Where a source stands along an axis of an array."""
    block, found = array_of(source), []
    if block.dtype != array.dtype:
        return []
    for turned in (False, True) if block.ndim == 2 else (False,):
        lines = np.moveaxis(block.T if turned else block, axis, 0) if block.ndim == array.ndim else np.zeros(0)
        within = np.moveaxis(array, axis, 0)
        if lines.shape[1:] != within.shape[1:] or not 0 < len(lines) < len(within):
            continue
        starts = np.flatnonzero((within == lines[0]).reshape(len(within), -1).all(axis=1))
        whole = [int(one) for one in starts if np.array_equal(within[one : one + len(lines)], lines)]
        found += [_Part(start, start + len(lines), source, turned) for start in whole]
    return found


def _put(graph: ir.Graph, value: ir.Value, axis: int, parts: list[_Part]) -> None:
    name, array, first = str(value.name), array_of(value), graph[0]
    operands: list[ir.Value] = []
    ends = [0, *(part.stop for part in parts)]
    for end, part in zip(ends, [*parts, None], strict=True):
        start = array.shape[axis] if part is None else part.start
        if end < start:
            operands.append(add_parameter(graph, value, "part", array.take(range(end, start), axis)))
        if part is not None and part.turned:
            turn = ir.node("Transpose", [part.source], {"perm": [1, 0]}, name=unused_name(graph, f"{name}/Transpose"))
            turn.outputs[0].name, turn.outputs[0].type = turn.name, value.type
            graph.insert_before(first, turn)
            operands.append(turn.outputs[0])
        elif part is not None:
            operands.append(part.source)
    make_instead(graph, value, ir.node("Concat", operands, {"axis": axis}), before=first)
