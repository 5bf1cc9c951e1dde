"""Zeros that a Pad puts around an image for convolutions, which can do so themselves.

The gradient of a convolution's weight reads what the convolution reads: behind a Pad that is a copy of the image, which
is kept besides the image itself. onnxruntime joins the two as well, but not where anything else reads the copy. The Pad
of a weight it takes for that of the image, and does not load what it makes of them: there a Reshape stands between.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import attr_ints, attr_str, required_input, shape_of
from ckplan.operators.matching import input_of, is_op


def pad_in_convolutions(op: Builder, held: Set[ir.Value]) -> None:
    """Let convolutions pad for themselves where all that read a Pad are such.

    Args:
        op: builder of the forward graph.
        held: values that have to stay.
    """
    for node in list(op.graph):
        borders = _borders(op, node)
        made = node.outputs[0] if node.outputs else None
        if borders is None or made is None or made in held or made.is_graph_output():
            continue
        uses = made.uses()
        if uses and all(index == 0 and _can_pad(reader) for reader, index in uses):
            before, after = borders
            for reader, _ in uses:
                own = attr_ints(reader, "pads") or (0,) * 2 * len(before)
                pads = [there + more for there, more in zip(own, [*before, *after], strict=True)]
                reader.attributes["pads"] = ir.AttrInt64s("pads", pads)
                reader.replace_input_with(0, required_input(node, 0))
            op.graph.remove(node, safe=True)
            continue
        for reader in [reader for reader, index in uses if index == 1 and is_op(reader, "Conv")]:
            with op.scope(str(reader.name), "forward", before=reader):
                apart = op.Reshape(made, np.asarray(shape_of(made), np.int64))
            reader.replace_input_with(1, apart)


def _borders(op: Builder, node: ir.Node) -> tuple[list[int], list[int]] | None:
    """What a Pad puts before and behind each spatial axis, None if it is none that a convolution can do."""
    if not is_op(node, "Pad") or attr_str(node, "mode", "constant") != "constant":
        return None
    value, pads, axes = input_of(node, 2), op.constant_of(input_of(node, 1)), op.constant_of(input_of(node, 3))
    if pads is None or (axes is None and input_of(node, 3) is not None):
        return None
    if value is not None and ((number := op.constant_of(value)) is None or np.any(number)):
        return None
    rank = len(shape_of(required_input(node, 0)))
    padded = [int(axis) % rank for axis in axes] if axes is not None else list(range(rank))
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(padded):
        before[axis], after[axis] = int(pads[place]), int(pads[place + len(padded)])
    if min([*before, *after], default=0) < 0 or any([*before[:2], *after[:2]]):
        return None
    return before[2:], after[2:]


def _can_pad(node: ir.Node) -> bool:
    automatic = attr_str(node, "auto_pad", "NOTSET") != "NOTSET"
    return is_op(node, "Conv") and not automatic
