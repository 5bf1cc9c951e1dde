"""Columns of the places that a mask chooses, [n] of the n chosen, from node to node.

``rows, slots = torch.where(asked == expert)`` are two columns of a table of places. Exporters cut the table that a
NonZero finds and put columns together again; of ``weights[rows, slots]`` the old one makes a number of both, a column
times a size and another column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.node_reads import fixed_integers, fixed_tensor

_TABLE = 2
"""Rank of columns side by side."""
Column = tuple[int, ...]
"""What a column is: a number times the first column of the places, another times the second, ..., and one more."""


@dataclass(frozen=True)
class Columns:
    """Columns of the places that a mask chooses.

    Attributes:
        finder: the NonZero that finds them.
        columns: what each is.
        across: whether they lie across, [columns, n], as a NonZero writes them, in place of [n, columns].
        flat: whether it is one, [n].
        repeated: whether it is one side by side with itself, [n, any].
    """

    finder: ir.Node
    columns: tuple[Column, ...]
    across: bool = False
    flat: bool = False
    repeated: bool = False

    @property
    def is_table(self) -> bool:
        """Whether these are columns side by side, [n, columns]."""
        return not (self.across or self.flat or self.repeated)


def found_columns(finder: ir.Node) -> Columns:
    """The columns that a NonZero finds, whose mask has a static shape."""
    mask = finder.inputs[0]
    rank = len((static_shape(mask) if mask is not None else None) or ())
    return Columns(finder, tuple(map(tuple, np.eye(rank, rank + 1, dtype=int).tolist())), across=True)


def columns_behind(node: ir.Node, known: dict[ir.Value, Columns]) -> Iterator[tuple[ir.Value, Columns]]:
    """Tell which columns the outputs of a node are, if it only cuts, turns and joins them, or reckons with them."""
    first = known.get(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    if node.domain:
        return
    if node.op_type == "Split" and first is not None:
        yield from _split(node, first)
        return
    if node.op_type == "Concat":
        found = _joined(node, known)
    elif node.op_type in ("Add", "Mul"):
        found = _reckoned(node, known)
    else:
        rule = _RULES.get(node.op_type)
        found = None if rule is None or first is None else rule(node, first)
    if found is not None:
        yield node.outputs[0], found


def _axis(node: ir.Node, default: int) -> int:
    return node.attributes.get_int("axis", default) % 2


def _same(node: ir.Node, found: Columns) -> Columns | None:
    return found if len(node.inputs) == 1 else None


def _transposed(node: ir.Node, found: Columns) -> Columns | None:
    turns = not (found.flat or found.repeated) and list(node.attributes.get_ints("perm") or (1, 0)) == [1, 0]
    return replace(found, across=not found.across) if turns else None


def _cut(found: Columns, axis: int, places: slice) -> Columns | None:
    """Some of the columns, where an axis is that along which they lie side by side."""
    if found.flat or found.repeated or axis != (0 if found.across else 1):
        return None
    return replace(found, columns=found.columns[places])


def _split(node: ir.Node, found: Columns) -> Iterator[tuple[ir.Value, Columns]]:
    sizes = fixed_integers(node, 1) or [1] * len(node.outputs)
    start = 0
    for output, size in zip(node.outputs, sizes, strict=False):
        part = _cut(found, _axis(node, 0), slice(start, start + size))
        if part is not None:
            yield output, part
        start += size


def _sliced(node: ir.Node, found: Columns) -> Columns | None:
    start, end, axes, steps = (fixed_integers(node, index) for index in (1, 2, 3, 4))
    if start is None or end is None or axes is None or len(axes) != 1 or steps not in (None, [1]):
        return None
    return _cut(found, axes[0] % 2, slice(start[0], end[0]))


def _gathered(node: ir.Node, found: Columns) -> Columns | None:
    named, index = fixed_integers(node, 1), node.inputs[1]
    if named is None or len(named) != 1 or index is None:
        return None
    place = named[0] % len(found.columns)
    part = _cut(found, _axis(node, 0), slice(place, place + 1))
    return part if part is None or static_shape(index) != () else replace(part, across=False, flat=True)


def _squeezed(node: ir.Node, found: Columns) -> Columns | None:
    named = fixed_integers(node, 1)
    if found.flat or found.repeated or len(found.columns) > 1 or named is None or len(named) != 1:
        return None
    return replace(found, across=False, flat=True) if named[0] % 2 == (0 if found.across else 1) else None


def _unsqueezed(node: ir.Node, found: Columns) -> Columns | None:
    named = fixed_integers(node, 1)
    if not found.flat or named is None or len(named) != 1:
        return None
    return replace(found, flat=False, across=named[0] % 2 == 0)


def _reshaped(node: ir.Node, found: Columns) -> Columns | None:
    named = fixed_integers(node, 1)
    if len(found.columns) > 1 or found.repeated or named not in ([-1], [-1, 1], [1, -1]):
        return None
    return replace(found, across=named == [1, -1], flat=named == [-1])


def _expanded(node: ir.Node, found: Columns) -> Columns | None:
    """A column side by side with itself, as where rows are scattered, or as it is."""
    shape = node.outputs[0].shape
    rank = None if shape is None else len(shape)
    if found.flat:
        return found if rank == 1 else None
    return replace(found, repeated=True) if rank == _TABLE and found.is_table and len(found.columns) == 1 else None


def _joined(node: ir.Node, known: dict[ir.Value, Columns]) -> Columns | None:
    parts = [known[value] for value in node.inputs if value in known]
    if len(parts) < len(node.inputs) or len({part.finder for part in parts}) != 1:
        return None
    across = parts[0].across
    if any(part.flat or part.repeated or part.across != across for part in parts):
        return None
    if _axis(node, 0) != (0 if across else 1):
        return None
    return replace(parts[0], columns=tuple(column for part in parts for column in part.columns))


def _reckoned(node: ir.Node, known: dict[ir.Value, Columns]) -> Columns | None:
    """Columns plus a number or others, or times a number."""
    one, other = (None if value is None else known.get(value) for value in node.inputs)
    columns = [found for found in (one, other) if found is not None]
    if not columns or any(len(found.columns) != 1 or found.repeated for found in columns):
        return None
    (first,) = columns[0].columns
    if len(columns) > 1:
        if node.op_type == "Mul" or replace(columns[0], columns=()) != replace(columns[1], columns=()):
            return None
        (second,) = columns[1].columns
        return replace(columns[0], columns=(tuple(a + b for a, b in zip(first, second, strict=True)),))
    constant = fixed_tensor(node.inputs[0] if one is None else node.inputs[1])
    if constant is None or constant.numpy().size != 1 or constant.numpy().ndim > 1 + (not columns[0].flat):
        return None
    number = int(constant.numpy().reshape(-1)[0])
    if node.op_type == "Mul":
        return replace(columns[0], columns=(tuple(number * part for part in first),))
    return replace(columns[0], columns=((*first[:-1], first[-1] + number),))


_RULES = {
    **dict.fromkeys(("Cast", "Identity", "Max", "Min"), _same),
    "Expand": _expanded,
    "Gather": _gathered,
    "Reshape": _reshaped,
    "Slice": _sliced,
    "Squeeze": _squeezed,
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
}
