"""Along which axis of a tensor the samples of a batch lie, from node to node, as long as none of them reads another.

What holds for samples holds for whatever an input has along its first axis. A value with samples along an axis has a
block of that axis for each of them, in their order: behind a Reshape to rows, tokens of one sample after the other.
Such a block is made of the same blocks of what its node reads, and of what does not depend on samples at all. A node of
which that is not known here mixes samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.node_reads import fixed_integers
from ckplan.operators.matching import input_of
from ckplan.operators.table import ELEMENTWISE, REDUCTIONS


@dataclass(frozen=True)
class Along:
    """What a node does sample by sample.

    Attributes:
        axis: of its outputs that the samples lie along.
        cut: the axes along which a block is to be taken of inputs that do not depend on samples, by their places.
    """

    axis: int
    cut: Mapping[int, int] = field(default_factory=dict)


Axes = Sequence[int | None]
"""For each input of a node the axis that samples lie along, None where it does not depend on them."""

_Rule = Callable[[ir.Node, Axes, int], Along | None]


def along_samples(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    """What a node does sample by sample; None where it mixes samples, or where that is not known.

    Args:
        node: a node with static shapes all around it.
        axes: those of its inputs; one at least has one.
        samples: number of samples; each of these axes is a multiple of it.
    """
    rule = None if node.domain else _RULES.get(node.op_type)
    shapes = [None if value is None else static_shape(value) for value in (*node.inputs, *node.outputs)]
    there = [shape for shape, value in zip(shapes, (*node.inputs, *node.outputs), strict=True) if value is not None]
    if rule is None or not samples or any(shape is None for shape in there):
        return None
    found = rule(node, axes, samples)
    if found is None or any(_shape(value)[found.axis] % samples for value in node.outputs if value.name):
        return None
    return found


def _shape(value: ir.Value | None) -> tuple[int, ...]:
    shape = None if value is None else static_shape(value)
    return () if shape is None else shape


def _broadcast(node: ir.Node, axes: Axes, samples: int, rank: int | None = None) -> Along | None:
    """Samples along one axis of all operands, counted from behind; of others a block, where they are as long there."""
    rank = len(_shape(node.outputs[0])) if rank is None else rank
    ahead = [rank - len(_shape(value)) for value in node.inputs]
    places = {axis + more for axis, more in zip(axes, ahead, strict=True) if axis is not None}
    if len(places) != 1:
        return None
    (place,) = places
    size = _shape(node.outputs[0])[place]
    cut = {}
    for index, (value, axis, more) in enumerate(zip(node.inputs, axes, ahead, strict=True)):
        shape = _shape(value)
        if value is None or place < more or (axis is None and shape[place - more] == 1):
            continue
        if shape[place - more] != size:
            return None
        if axis is None:
            cut[index] = place - more
    return Along(place, cut)


def _first_of_first(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    """Samples along the first axis of the first input and of the only output; nothing else depends on them."""
    only = all(not value.name for value in node.outputs[1:])
    return Along(0) if only and axes[0] == 0 and not any(axis is not None for axis in axes[1:]) else None


def _batch_normalization(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    return None if node.attributes.get_int("training_mode", 0) else _first_of_first(node, axes, samples)


def _resize(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    """Between places of a sample; sizes that name the samples would have to be written anew."""
    named = node.attributes.get_ints("axes")
    if input_of(node, 3) is not None and (named is None or 0 in named):
        return None
    same = _shape(node.inputs[0])[0] == _shape(node.outputs[0])[0]
    return _first_of_first(node, axes, samples) if same else None


def _grid_sample(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    if axes == [0, 0]:
        return Along(0)
    return {(0, None): Along(0, {1: 0}), (None, 0): Along(0, {0: 0})}.get((axes[0], axes[1]))


def _matmul(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    left, right = (len(_shape(value)) for value in node.inputs)
    rank = len(_shape(node.outputs[0]))
    if left < 2 or right < 2:
        alone = axes[1] is None and right == 1 and axes[0] is not None and axes[0] < left - 1
        return Along(axes[0]) if alone and axes[0] is not None else None
    if axes[1] is None and axes[0] == left - 2:
        return Along(rank - 2)
    if axes[0] is None and axes[1] == right - 1:
        return Along(rank - 1)
    ends = zip(axes, (left, right), strict=True)
    if any(axis is not None and axis >= own - 2 for axis, own in ends):
        return None
    return _broadcast(node, axes, samples, rank)


def _gemm(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    row = 1 if node.attributes.get_int("transA", 0) else 0
    if axes[0] != row or axes[1] is not None:
        return None
    shape = _shape(input_of(node, 2))
    rows = _shape(node.outputs[0])[0]
    full = len(shape) == 2 and shape[0] == rows
    if len(axes) > 2 and axes[2] is not None:
        return Along(0) if full and axes[2] == 0 else None
    return Along(0, {2: 0} if full and rows > 1 else {})


def _transpose(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    assert axes[0] is not None
    rank = len(_shape(node.inputs[0]))
    order = list(node.attributes.get_ints("perm") or reversed(range(rank)))
    return Along(order.index(axes[0]))


def _reshape(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    """Samples stay whole where as much stands before them, and a multiple of their number is an axis there."""
    axis, before, after = axes[0], _shape(node.inputs[0]), _shape(node.outputs[0])
    if axis is None or 0 in before or (node.op_type == "Reshape" and fixed_integers(node, 1) is None):
        return None
    ahead = math.prod(before[:axis])
    places = (place for place, dim in enumerate(after) if math.prod(after[:place]) == ahead and dim % samples == 0)
    place = next(places, None)
    return None if place is None else Along(place)


def _expand(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    if axes[0] is None or fixed_integers(node, 1) is None:
        return None
    return Along(axes[0] + len(_shape(node.outputs[0])) - len(_shape(node.inputs[0])))


def _concat(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    shape = _shape(node.outputs[0])
    joined = node.attributes.get_int("axis", 0) % len(shape)
    places = {axis for axis in axes if axis is not None}
    place = places.pop()
    if places or place == joined:
        return None
    return Along(place, {index: place for index, axis in enumerate(axes) if axis is None})


def _other_axis(default: int) -> _Rule:
    """Works along one axis, and that is not the one of the samples."""

    def rule(node: ir.Node, axes: Axes, samples: int) -> Along | None:
        axis = node.attributes.get_int("axis", default) % len(_shape(node.inputs[0]))
        alone = axes[0] is not None and axes[0] != axis and not any(more is not None for more in axes[1:])
        return Along(axes[0]) if alone and axes[0] is not None else None

    return rule


def _trailing(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    """Normalises all axes from one on, behind the samples."""
    axis = node.attributes.get_int("axis", -1) % len(_shape(node.inputs[0]))
    alone = axes[0] is not None and axes[0] < axis and not any(more is not None for more in axes[1:])
    return Along(axes[0]) if alone and axes[0] is not None else None


def _slice(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    rank = len(_shape(node.inputs[0]))
    starts = _shape(input_of(node, 1))
    named = list(range(starts[0])) if input_of(node, 3) is None else fixed_integers(node, 3)
    if named is None or axes[0] is None or axes[0] in {axis % rank for axis in named}:
        return None
    return Along(axes[0])


def _pad(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    rank, pads = len(_shape(node.inputs[0])), fixed_integers(node, 1)
    named = list(range(rank)) if input_of(node, 3) is None else fixed_integers(node, 3)
    if pads is None or named is None or axes[0] is None:
        return None
    sizes = zip(named, pads, pads[len(named) :], strict=False)
    grows = any(axis % rank == axes[0] and (begin or end) for axis, begin, end in sizes)
    return None if grows else Along(axes[0])


def _gather(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    rank, more = (len(_shape(value)) for value in node.inputs)
    axis = node.attributes.get_int("axis", 0) % rank
    data, indices = axes
    if data is None:
        return None if indices is None else Along(axis + indices)
    if indices is not None or data == axis:
        return None
    return Along(data if data < axis else data - 1 + more)


def _elements(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    """Takes or puts single elements along one axis, at places that each sample has of its own: that is another axis."""
    rank = len(_shape(node.outputs[0]))
    places = {axis for axis in axes if axis is not None}
    place = places.pop()
    sizes = {_shape(value)[place] for value in node.inputs}
    if places or len(sizes) > 1 or place == node.attributes.get_int("axis", 0) % rank:
        return None
    return Along(place, {index: place for index, axis in enumerate(axes) if axis is None})


def _reduce(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    rank = len(_shape(node.inputs[0]))
    named = node.attributes.get_ints("axes") if input_of(node, 1) is None else fixed_integers(node, 1)
    if not named and not node.attributes.get_int("noop_with_empty_axes", 0):
        return None
    return _reduced(node, axes[0], {axis % rank for axis in named or ()})


def _arg_reduce(node: ir.Node, axes: Axes, samples: int) -> Along | None:
    return _reduced(node, axes[0], {node.attributes.get_int("axis", 0) % len(_shape(node.inputs[0]))})


def _reduced(node: ir.Node, axis: int | None, reduced: set[int]) -> Along | None:
    if axis is None or axis in reduced:
        return None
    kept = node.attributes.get_int("keepdims", 1)
    return Along(axis if kept else axis - sum(other < axis for other in reduced))


_SAMPLE_BY_SAMPLE = (
    *("AveragePool", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
    *("GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool", "SpaceToDepth"),
)

TO_SHAPE = frozenset({"Expand", "Flatten", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators whose result is told by its shape: of a block, by another one."""

_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(ELEMENTWISE, _broadcast),
    **dict.fromkeys(_SAMPLE_BY_SAMPLE, _first_of_first),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_reduce),
    **dict.fromkeys(("GatherElements", "ScatterElements"), _elements),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax", "TopK"), _other_axis(-1)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _trailing),
    **dict.fromkeys(TO_SHAPE - {"Expand"}, _reshape),
    "BatchNormalization": _batch_normalization,
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "GridSample": _grid_sample,
    "MatMul": _matmul,
    "Pad": _pad,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _other_axis(0),
    "Transpose": _transpose,
}

KNOWN = frozenset(_RULES)
"""The operators of which it is known what they do sample by sample."""
