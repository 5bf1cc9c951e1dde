"""What values an integer input may take, read off the operators that it reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from ckplan.keys import CLASSES, LABELS, ROLE
from ckplan.model.files.metadata import finite, told
from ckplan.model.traits import LOSS_OPERATORS
from ckplan.operators.matching import is_op
from ckplan.runtime.sizes import dimensions_of

_MOVES = ("Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape")
_SAME_VALUES = frozenset({*_MOVES, "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"})
"""Operators that pass values on from their first input (Concat from all) and only move them about."""

_GATHERS = frozenset(["Gather", "GatherElements", "ScatterElements"])


def upper_bound(model: ir.Model, value: ir.Value) -> tuple[int, str] | None:
    """The number below which an integer input has to stay.

    Args:
        model: the model; its shapes as far as they are known.
        value: one of its inputs.

    Returns:
        The bound and the reason for it: what is declared, else the tightest of several; None if nothing bounds the
        input. What reads only elements that a Where has chosen bounds the input if nothing else does: the others may
        be larger.
    """
    declared = list(_declared(model, value))
    always: list[tuple[int, str]] = []
    chosen: list[tuple[int, str]] = []
    for reached, node, index, is_chosen in _readers(value):
        bound = _bound_at(node, index, reached)
        if bound is not None:
            (chosen if is_chosen else always).append((bound, f"{node.op_type} '{node.name}'"))
    return min(declared or always or chosen, default=None)


def _declared(model: ir.Model, value: ir.Value) -> Iterator[tuple[int, str]]:
    for found in (value.metadata_props.get(CLASSES), told(model.metadata_props, LABELS).get(str(value.name))):
        classes = finite(found)
        if classes is not None and classes >= 1:
            yield int(classes), "declared classes"


def _readers(value: ir.Value) -> Iterator[tuple[ir.Value, ir.Node, int, bool]]:
    """All uses of a value, also behind what only moves or casts its elements, and whether a Where chose some."""
    pending, seen = [(value, False)], {value}
    while pending:
        current, is_chosen = pending.pop()
        for use in current.uses():
            node, index = use.node, use.idx
            yield current, node, index, is_chosen
            moved = node.op_type in _SAME_VALUES and (index == 0 or node.op_type == "Concat")
            chosen = node.op_type == "Where" and index > 0
            picked = node.op_type in ("Gather", "GatherElements", "GatherND") and index == 0
            passed = node.outputs if node.domain == "" and (moved or chosen or picked) else _rows_of(node, index)
            fresh = [reached for reached in passed if reached not in seen]
            seen.update(fresh)
            pending.extend((reached, is_chosen or chosen) for reached in fresh)


def _rows_of(node: ir.Node, index: int) -> Sequence[ir.Value]:
    """What a Scan's body gets of an input: its rows."""
    body = node.attributes.get("body") if is_op(node, "Scan") else None
    return [] if body is None else body.as_graph().inputs[index : index + 1]


def _bound_at(node: ir.Node, index: int, value: ir.Value) -> int | None:
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _GATHERS and index == 1:
        return _dim(node.inputs[0], node.attributes.get_int("axis", 0))
    if node.op_type in ("GatherND", "ScatterND") and index == 1:
        depth = _dim(value, -1)
        sizes = [_dim(node.inputs[0], axis + node.attributes.get_int("batch_dims", 0)) for axis in range(depth or 0)]
        known = [size for size in sizes if size is not None]
        return min(known, default=None)
    if node.op_type in LOSS_OPERATORS and index == 1:
        return _dim(node.inputs[0], 1)
    if node.op_type == "OneHot" and index == 0:
        return _scalar(node.inputs[1])
    return None


def _dim(value: ir.Value | None, axis: int) -> int | None:
    """Size of an axis of a value, where it is known."""
    value = _behind_aliases(value)
    if value is None:
        return None
    shape = dimensions_of(value) if value.const_value is None else tuple(value.const_value.shape.numpy())
    if shape is None and value.shape is not None:
        shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    if shape is None or not -len(shape) <= axis < len(shape) or shape[axis] < 0:
        return None
    return shape[axis]


def _behind_aliases(value: ir.Value | None) -> ir.Value | None:
    """What control edges of a planned file pass on: they hide shapes from onnxruntime, and so from inference."""
    while value is not None and (maker := value.producer()) is not None and maker.metadata_props.get(ROLE) == "control":
        if maker.op_type != "Unsqueeze":
            break
        value = maker.inputs[0]
    return value


def _scalar(value: ir.Value | None) -> int | None:
    """The number in a constant scalar or one-element tensor."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return int(np.asarray(tensor.numpy()).reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None
