"""Sizes for dimensions that a file leaves open: the smallest of a few that the model works with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.model.fixing import deciding_input
from ckplan.model.inference.infer import static_shape
from ckplan.model.nested_graphs import all_nodes
from ckplan.model.sizes.dims import DEFAULT_LENGTH, Defaults
from ckplan.operators.matching import input_of

PIXELS = (64, 128, 224, 640)
"""Heights and widths, in the order in which they are tried: detectors halve an image five times and more."""
LENGTHS = (DEFAULT_LENGTH, 16, 512, 16000)
"""Lengths of everything else: sound needs more than text."""
_TRIES = 7
_RECURRENT = ("GRU", "LSTM", "RNN")
_BY_ELEMENT = ("GatherElements", "ScatterElements")
"""Operators that have an index for each element: of no scalars, and with as many axes as what they read or write."""


class SizesError(ModelError):
    """The model does not work with the sizes of its inputs."""


def tries(batches: bool, pixels: bool, lengths: bool) -> Iterator[Defaults]:
    """Defaults to try, one after the other; at last a batch of one, which is what exporters run a model with.

    Args:
        batches: whether a batch is open.
        pixels: whether a height or width is open.
        lengths: whether any other size is that has a default of its own.
    """
    pairs = product(enumerate(PIXELS if pixels else PIXELS[:1]), enumerate(LENGTHS if lengths else LENGTHS[:1]))
    ordered = sorted(pairs, key=lambda pair: pair[0][0] + pair[1][0])
    sizes = [(height, length) for (_, height), (_, length) in ordered[:_TRIES]]
    yield from (Defaults(pixels=height, length=length) for height, length in sizes)
    if batches:
        yield Defaults(1, *sizes[0])


def check_sizes(graph: ir.Graph) -> None:
    """Look for what shape inference lets pass, in branches and loops, too.

    Windows that are larger than what they move over, and states of a recurrence for another batch than its input has.

    Raises:
        SizesError: a node cannot run with the shapes of its inputs.
    """
    for node in all_nodes(graph):
        if not _fits(node):
            read = [static_shape(value) for value in node.inputs if value is not None]
            listed = ", ".join(str(list(shape)) for shape in read if shape is not None)
            place, hint = "", "give input shapes that the model accepts with --shape"
            if node.graph is not graph and (decides := deciding_input(graph, node)):
                place, hint = " in a branch", branch_hint(decides)
            raise SizesError(f"{node.op_type} '{node.name}'{place} does not fit its inputs of shapes {listed}", hint)


def branch_hint(decides: str) -> str:
    """What to do about a branch that cannot run, where the input `decides` alone chooses it."""
    return f"if that branch is not for this input, fix what decides: --set {decides}=VALUE"


def _fits(node: ir.Node) -> bool:
    """Whether a node can run with the shapes of its inputs, as far as they are known."""
    if any(size < 0 for value in node.outputs for size in static_shape(value) or ()):
        return False
    if node.domain:
        return True
    if node.op_type in _BY_ELEMENT:
        read = [static_shape(value) for value in node.inputs if value is not None]
        ranks = {len(shape) for shape in read if shape is not None}
        return len(ranks) <= 1 and 0 not in ranks
    return _has_room(node) if node.op_type == "Conv" else node.op_type not in _RECURRENT or _of_one_batch(node)


def _of_one_batch(node: ir.Node) -> bool:
    """Whether the states that an LSTM, a GRU or an RNN begins with are for as many samples as its input."""
    batch_first = node.attributes.get_int("layout", 0) == 1
    read = [input_of(node, place) for place in (0, 5, 6)]
    shapes = [None if value is None else static_shape(value) for value in read]
    return len({shape[0 if batch_first else 1] for shape in shapes if shape is not None and len(shape) == 3}) <= 1


def _has_room(node: ir.Node) -> bool:
    """Whether the kernel of a convolution is no larger than the padded input, which rounding can hide."""
    image, kernel = (None if value is None else static_shape(value) for value in node.inputs[:2])
    if image is None or kernel is None or 0 in image or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return True
    axes = len(image) - 2
    pads = node.attributes.get_ints("pads") or [0] * 2 * axes
    dilations = node.attributes.get_ints("dilations") or [1] * axes
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel[2:], dilations, strict=True)]
    return all(
        span <= size + before + after
        for span, size, before, after in zip(spans, image[2:], pads[:axes], pads[axes:], strict=True)
    )
