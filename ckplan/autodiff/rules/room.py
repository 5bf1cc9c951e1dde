"""How much a gradient may work in without being where the step's memory peaks.

A training graph holds the most when the backward pass begins, or where it comes to the largest activations, beside
which gradients of parameters, which stay till the step ends, have taken the place of what was kept. That is reckoned
from the forward graph, in elements, before the backward pass is known, and rather too low than too high.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from weakref import WeakKeyDictionary

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, size_of
from ckplan.autodiff.rules.elementwise import is_kept
from ckplan.keys import PHASE

#: Tensors of the size of its input beside what a layer's weight gradient reads at once: the input transposed and
#: padded, the gradient of the layer's output, and the gradient of a skip connection.
_BESIDE = 4


#: Functions of each element, whose gradient has three tensors beside what it reads: that of the output, that of the
#: input, and the slope.
_ACTIVATIONS = frozenset({"BatchNormalization", "Clip", "HardSwish", "LeakyRelu", "Relu", "SiLU", "Sigmoid", "Tanh"})
_OF_ACTIVATION = 3


@dataclass(frozen=True)
class Room:
    """What a forward graph leaves.

    Attributes:
        largest: elements of its largest tensor.
        spare: by value, elements that are free where the gradients of its readers are made.
    """

    largest: int
    spare: dict[ir.Value, int]


def largest_of(op: Builder) -> int:
    """Elements of the largest tensor that the graph had when this was first asked."""
    return _room(op).largest


def working_room(op: Builder, x: ir.Value) -> int:
    """Elements that copies of a layer's input may take together.

    Half of the model's largest tensor is of no account. As much as that tensor is where it does not make the peak:
    several tensors of that size are alive where it is made and differentiated, so that no plan goes lower.

    Args:
        op: the builder.
        x: the input.
    """
    room = _room(op)
    return max(room.largest // 2, min(room.largest, room.spare.get(x, 0) - _BESIDE * size_of(x)))


def _room(op: Builder) -> Room:
    room = _ROOMS.get(op.graph)
    if room is None:
        room = _ROOMS[op.graph] = _reckoned(op)
    return room


def _reckoned(op: Builder) -> Room:
    nodes = list(op.graph)
    largest = max((size_of(value) for node in nodes for value in node.outputs if value.shape is not None), default=0)
    nodes = [node for node in nodes if node.metadata_props.get(PHASE) != "backward"]
    kept = list(accumulate(sum(size_of(value) for value in node.outputs if is_kept(op, value)) for node in nodes))
    parameters = [
        sum(size_of(value) for value in set(node.inputs) if value is not None and _is_parameter(op, value))
        for node in nodes
    ]
    done = [sum(parameters) - sofar for sofar in accumulate(parameters)]
    made = [
        _OF_ACTIVATION * sum(map(size_of, node.outputs[:1])) if node.op_type in _ACTIVATIONS else 0 for node in nodes
    ]
    live = [one + other for one, other in zip(kept, made, strict=True)]
    held = [one + other for one, other in zip(live, done, strict=True)]
    spare = {
        value: min(max(live) - kept[index], max(held) - kept[index] - done[index])
        for index, node in enumerate(nodes)
        for value in node.outputs
    }
    return Room(largest, spare)


def _is_parameter(op: Builder, value: ir.Value) -> bool:
    return op.wants(value) and value.producer() is None


_ROOMS: WeakKeyDictionary[ir.Graph, Room] = WeakKeyDictionary()
