"""Masks of Dropout in bits: of the bools that the backward pass needs as they were, eight lie in a byte until then.

A mask cannot be drawn a second time, so every plan keeps it, a byte an element. A product of small integers puts eight
planes of it, an eighth of the elements each, into the bits of one plane of bytes. Whatever reads the mask takes it
apart again, for the forward pass, which a plan may repeat, and for the backward pass. What is taken apart is what was
drawn, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import FORWARD, Builder
from ckplan.autodiff.pieces.regions import BITS, SMALLEST_MASK, Region
from ckplan.autodiff.reading import shape_of, size_of
from ckplan.keys import ONCE, PHASE
from ckplan.model.traits import why_only_once

_POWERS = np.left_shift(1, np.arange(BITS)).astype(np.uint8)
"""The byte in which each bit stands alone."""


def pack_masks(op: Builder, pieces: int) -> list[Region]:
    """Put the masks that cannot be made again into bits.

    Args:
        op: builder of a training graph whose composites are nodes again.
        pieces: 1 leaves all masks as they are.

    Returns:
        A region for each mask, packed or not, that the forward pass draws and the backward pass reads.
    """
    places = {node: place for place, node in enumerate(op.graph)}
    regions = []
    for node in list(op.graph):
        for mask in node.outputs:
            if _is_kept(node, mask) and all(reader in places for reader in mask.consumers()):
                if pieces > 1:
                    _pack(op, mask, places)
                count = size_of(mask)
                regions.append(Region("masks", str(mask.name), "elements", count, count, _title(node), pieces))
    return regions


def _is_kept(node: ir.Node, value: ir.Value) -> bool:
    """Say whether a value is a mask of the forward pass that the backward pass reads and no plan makes again."""
    if value.dtype != ir.DataType.BOOL or _phase(node) == "backward":
        return False
    if value.shape is None or not value.shape.is_static():  # what a Loop stacks whose steps the data count
        return False
    is_read = any(_phase(reader) == "backward" for reader in value.consumers())
    return is_read and size_of(value) >= SMALLEST_MASK and bool(why_only_once(node))


def _title(node: ir.Node) -> str:
    """The name of the Dropout that draws a mask, of which the node may be a part."""
    return str(node.name).rpartition("/")[0] if ONCE in node.metadata_props else str(node.name)


def _phase(node: ir.Node) -> str:
    return node.metadata_props.get(PHASE, "forward")


def _pack(op: Builder, mask: ir.Value, places: Mapping[ir.Node, int]) -> None:
    """Let all that reads a mask read what bits say instead."""
    node = mask.producer()
    assert node is not None
    uses = sorted(mask.uses(), key=lambda use: places[use.node])
    with op.scope(f"{_title(node)}/bits", "forward", before=uses[0].node):
        bits = _packed(op, mask)
    for phase in ("forward", "backward"):
        own = [use for use in uses if _phase(use.node) == phase]
        if not own:
            continue
        first = own[0].node
        with op.scope(f"{_title(node)}/bits", phase, before=first, forward=first.meta.get(FORWARD)):
            # Of another shape, so that nobody takes it for what the forward pass made and keeps that till now.
            found = _unpacked(op, bits if phase == "forward" else op.reshape(bits, [size_of(bits)]), shape_of(mask))
        for use in own:
            use.node.replace_input_with(use.idx, found)


def _packed(op: Builder, mask: ir.Value) -> ir.Value:
    """Emit the bytes of a mask, (1, an eighth of its elements rounded up)."""
    count = size_of(mask)
    numbers = op.Cast(mask, to=ir.DataType.UINT8)
    if left := -count % BITS:
        numbers = op.Pad(op.reshape(numbers, [count]), np.asarray([0, left], dtype=np.int64))
    bits = op.MatMulInteger(_POWERS[np.newaxis], op.reshape(numbers, [BITS, (count + left) // BITS]))
    packed = op.Cast(bits, to=ir.DataType.UINT8)
    maker = packed.producer()
    assert maker is not None
    maker.metadata_props[ONCE] = "bits"
    return packed


def _unpacked(op: Builder, packed: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """Emit the mask of a shape whose bytes these are."""
    bits = op.Cast(op.BitwiseAnd(packed, _POWERS[:, np.newaxis]), to=ir.DataType.BOOL)
    count = int(np.prod(shape))
    if count < size_of(bits):
        ends = (np.asarray([end], dtype=np.int64) for end in (0, count))
        bits = op.Slice(op.reshape(bits, [size_of(bits)]), *ends)
    return op.reshape(bits, shape)
