"""Rows that are cut where data say are those that masks choose, and what is put together again is written at theirs.

A mixture of experts that sorts its tokens by expert cuts them into as many parts as there are experts, ``torch.split(x,
counts.tolist())``. A row is in a part if its place lies between the part's ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ckplan.model.inference.infer import is_known, static_shape
from ckplan.model.masks.mask_rewriting import Rewriting
from ckplan.model.node_reads import fixed_integers
from ckplan.model.rewiring import put_in_place
from ckplan.operators.matching import input_of

Part = tuple[ir.Value, int]
"""The sizes of all parts, and which of them it is."""


def cuts_by_data(node: ir.Node) -> bool:
    """Whether a node cuts rows of a known number into parts whose sizes follow from data."""
    data, sizes = input_of(node, 0), input_of(node, 1)
    shape = None if data is None else static_shape(data)
    if node.op_type != "Split" or node.domain or sizes is None or not shape or static_shape(sizes) is None:
        return False
    if node.attributes.get_int("axis", 0) % len(shape) != 0:
        return False
    return fixed_integers(node, 1) is None and not all(is_known(output) for output in node.outputs)


def choose_cut_rows(rewriting: Rewriting) -> dict[ir.Value, Part]:
    """Let masks choose the rows of parts, in place; shapes are inferred behind it.

    Returns:
        What is chosen now, and which part that is. What is cut behind it again may have a known size once
        :func:`write_parts` has been there.
    """
    parts: dict[ir.Value, Part] = {}
    masks: dict[Part, ir.Value] = {}
    for node in [node for node in rewriting.graph if cuts_by_data(node)]:
        data, sizes = node.inputs[:2]
        assert data is not None
        assert sizes is not None
        for index, output in enumerate(node.outputs):
            part = sizes, index
            if part not in masks:
                masks[part] = _mask(rewriting, node, part, (static_shape(data) or ())[0])
            chosen = rewriting.emit(node, "Compress", data, masks[part], axis=0)
            ir.convenience.replace_all_uses_with(output, chosen, replace_graph_outputs=True)
            parts[chosen] = part
    return parts


def write_parts(rewriting: Rewriting, chosen: Mapping[ir.Value, Part]) -> None:
    """Write what all parts have become at their rows where a Concat puts it one behind the other, in place.

    Args:
        rewriting: the model; what is not row by row is found by what is done with masks next.
        chosen: what :func:`choose_cut_rows` has found.
    """
    parts = dict(chosen)
    masks = {part: value.producer().inputs[1] for value, part in chosen.items()}  # type: ignore[union-attr]
    for node in list(rewriting.graph):
        read = [parts[value] for value in node.inputs if value in parts]
        if not read or node.domain:
            continue
        if node.op_type == "Concat" and len(read) == len(node.inputs) and _are_all(read):
            _write_together(rewriting, node, [masks[part] for part in read])
        elif len(set(read)) == 1:
            parts.update((output, read[0]) for output in node.outputs if not is_known(output))


def _are_all(parts: list[Part]) -> bool:
    """Whether these are all parts of what was cut, in their order."""
    sizes = parts[0][0]
    return parts == [(sizes, index) for index in range((static_shape(sizes) or (0,))[0])]


def _mask(rewriting: Rewriting, before: ir.Node, part: Part, rows: int) -> ir.Value:
    """Emit which of the rows are in a part."""
    sizes, index = part
    places = rewriting.constant(np.arange(rows, dtype=np.int64))
    sizes = rewriting.emit(before, "Cast", sizes, to=int(ir.DataType.INT64))
    ends = rewriting.emit(before, "CumSum", sizes, rewriting.constant(np.asarray(0)))
    begins = rewriting.emit(before, "Sub", ends, sizes)
    begin, end = (rewriting.emit(before, "Gather", among, rewriting.numbers(index)) for among in (begins, ends))
    begun = rewriting.emit(before, "GreaterOrEqual", places, begin)
    return rewriting.emit(before, "And", begun, rewriting.emit(before, "Less", places, end))


def _write_together(rewriting: Rewriting, node: ir.Node, masks: Sequence[ir.Value | None]) -> None:
    """Write the parts that a Concat puts one behind the other at the rows that masks choose."""
    output = node.outputs[0]
    if output.shape is None or output.dtype is None or node.attributes.get_int("axis", 0) % len(output.shape):
        return
    rest = [size for size in list(output.shape)[1:] if isinstance(size, int)]
    rows = None if masks[0] is None else static_shape(masks[0])
    if len(rest) + 1 != len(output.shape) or rows is None:
        return
    written = rewriting.emit(node, "Expand", rewriting.number(0, output.dtype), rewriting.numbers(*rows, *rest))
    for mask, part in zip(masks, node.inputs, strict=True):
        places = rewriting.emit(node, "Transpose", rewriting.emit(node, "NonZero", mask), perm=(1, 0))
        written = rewriting.emit(node, "ScatterND", written, places, part)
    put_in_place(node, written)
