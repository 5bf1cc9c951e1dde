"""What the head of a model tells about its loss: whether its output holds scores of classes, and along which axis.

A file does not say what a model was trained for. Where the scores of classes come from is told by how the output is
made: behind a softmax, by the vocabulary of the tokens that go in, or straight from the weights of a last layer. An
output that looks like an input (of an autoencoder, of a network that removes noise) holds no classes, nor does one of
several maps of different sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.breaks import sources_of
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import attr_int, attr_ints, is_floating, shape_of
from ckplan.operators.matching import is_op

SOFTMAX = ("Softmax", "LogSoftmax")
SHAPE_ONLY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")

_CHANNELS = {"MatMul": -1, "Gemm": -1, "Conv": 1, "ConvTranspose": 1}
"""Layers, and the axis of their output along which each weight makes a number of its own."""

_MET = "variable"
"""How converters of scikit-learn's models call the output of a regression; classes have other names there."""

_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Cast", "Identity")
_POOLING = ("GlobalAveragePool", "AveragePool", "Resize", "Upsample")


@dataclass(frozen=True)
class Head:
    """What an output was taken for.

    Attributes:
        scores: the scores of classes: the output, or what its last softmax is applied to.
        axis: the axis of the classes in ``scores``; None if there are none: numbers to be met.
        reason: why, behind "since".
    """

    scores: ir.Value
    axis: int | None
    reason: str


def main_output(op: Builder, outputs: Sequence[ir.Value]) -> ir.Value:
    """The output that a default loss is put behind: the one that is called logits, else the first that trains most.

    An output in the middle of a network (of the first of several stages, of a layer on the way) trains what stands
    before it alone: the first counts that half of all parameters reach.

    Args:
        op: builder of the forward graph.
        outputs: the floating-point outputs of a model, in order; one at least.
    """
    called = next((value for value in outputs if str(value.name).lower() == "logits"), None)
    if called is not None or len(outputs) == 1:
        return called or outputs[0]
    every = sources_of(op.graph, op.opset_imports, outputs)
    halves = (value for value in outputs if 2 * len(sources_of(op.graph, op.opset_imports, [value])) >= len(every))
    return next(halves, outputs[0])


def head_of(graph: ir.Graph, output: ir.Value) -> Head:
    """Say whether an output holds scores of classes.

    Args:
        graph: the forward graph, of static shapes.
        output: a floating-point output of it.
    """
    logits, axis = behind_softmax(output)
    if axis is not None:
        return Head(logits, axis, "it ends in a softmax")
    shape = shape_of(output)
    given = [value for value in graph.inputs if not value.is_initializer() and is_floating(value)]
    like = next((value for value in given if shape_of(value) == shape), None)
    axis = classes_axis(shape)
    if axis is None:
        return Head(output, None, "it is one number")
    if shape[axis] == 1:
        return Head(output, None, "there is one number a sample" if len(shape) < 3 else "there is one number a place")
    if "logits" in str(output.name).lower():
        return Head(output, scored_axis(output), f"it is called '{output.name}'")
    if like is not None:
        return Head(output, None, f"it has the shape of input '{like.name}'")
    if output.name == _MET:
        return Head(output, None, f"converters call a regression's output '{_MET}'")
    table = _vocabulary(graph, shape[-1]) if len(shape) > 1 else None
    if table is not None:
        return Head(output, len(shape) - 1, f"there is a score for each of the {shape[-1]} rows of '{table.name}'")
    found = _layer_of(output)
    if found is None:
        return Head(output, None, "nothing tells of classes")
    layer, axis = found
    place = 1 if layer.op_type.startswith("Conv") else -1
    same = (value for value in given if len(shape_of(value)) == len(shape) > 2)
    like = next((value for value in same if shape_of(value)[place] == shape[axis]), None)
    if like is not None:
        return Head(output, None, f"it has as many channels as input '{like.name}'")
    if shape[axis] == 1:
        return Head(output, None, "there is one number a place")
    if layer.op_type.startswith("Conv") and _is_of_a_pyramid(graph, output, axis):
        return Head(output, None, "there are maps of several sizes")
    unit = "sample" if math.prod(shape) == shape[0] * shape[axis] else "place"
    return Head(output, axis, f"{layer.op_type} '{layer.name}' makes {shape[axis]} scores a {unit}")


def chosen_from(outputs: Sequence[ir.Value]) -> Head | None:
    """The scores that an ArgMax chooses from, where outputs of the model are made of its choice.

    Args:
        outputs: the outputs of a model, none of which is floating.
    """
    pending = list(outputs)
    for value in pending:  # grows meanwhile
        node = value.producer()
        if node is None:
            continue
        if is_op(node, "ArgMax") and (scores := node.inputs[0]) and is_floating(scores):
            logits, axis = behind_softmax(scores)
            if axis is None:
                axis = attr_int(node, "axis", 0) % len(shape_of(scores))
            return Head(logits, axis, f"ArgMax '{node.name}' chooses one of {shape_of(logits)[axis]}")
        pending += [read for read in node.inputs if read and not is_floating(read) and read not in pending]
    return None


def before_reshapes(value: ir.Value) -> ir.Value:
    """What a value is, before it was given another shape."""
    while is_op(node := value.producer(), SHAPE_ONLY):
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def behind_softmax(output: ir.Value) -> tuple[ir.Value, int | None]:
    """Return what a trailing softmax is applied to, and the axis of the classes; (output, None) without one.

    Behind it there may be other shapes, channels that move to the end, and a Cast of probabilities in half precision.
    """
    value = before_reshapes(output)
    while is_op(node := value.producer(), ("Cast", "Transpose")):
        source = node.inputs[0]
        if source is None or not is_floating(source):
            break
        value = before_reshapes(source)
    node = value.producer()
    if not is_op(node, SOFTMAX) or node.inputs[0] is None:
        return output, None
    logits = node.inputs[0]
    return logits, attr_int(node, "axis", -1) % len(shape_of(logits))


def classes_axis(shape: Sequence[int]) -> int | None:
    """The axis of the classes in scores of a shape, as it is by convention; None for a single number."""
    if not shape:
        return None
    return len(shape) - 1 if len(shape) in (1, 3) else 1


def scored_axis(output: ir.Value) -> int | None:
    """The axis of an output that the weights of its last layer count, if they are several; else that of convention."""
    found = _layer_of(output)
    if found is not None and shape_of(output)[found[1]] > 1:
        return found[1]
    return classes_axis(shape_of(output))


def _vocabulary(graph: ir.Graph, size: int) -> ir.Value | None:
    """A table that tokens are looked up in, an integer input of the graph, and that has as many rows."""
    for node in graph:
        if not is_op(node, "Gather") or attr_int(node, "axis", 0) != 0:
            continue
        table, indices = node.inputs[:2]
        if table is None or indices is None or not table.is_initializer() or not is_floating(table):
            continue
        if indices.is_graph_input() and shape_of(table)[0] == size:
            return table
    return None


def _layer_of(output: ir.Value) -> tuple[ir.Node, int] | None:
    """The layer with weights that makes an output, and the axis of the output that its weights count.

    Behind it there may be what leaves each of its numbers a number of its own: a bias, a constant factor, pooling,
    resizing, other shapes.
    """
    behind: list[tuple[ir.Node, ir.Value]] = []
    value = output
    while (node := value.producer()) is not None and not node.domain:
        if node.op_type in _CHANNELS:
            axis = _CHANNELS[node.op_type] % len(shape_of(value))
            weights = [v for v in node.inputs[:2] if v is not None and _is_weight(v)]
            return (node, found) if weights and (found := _followed(axis, behind)) is not None else None
        inputs = [v for v in node.inputs if v is not None]
        if node.op_type in _ELEMENTWISE:
            inputs = [v for v in inputs if not _is_weight(v)]
            if len(inputs) != 1 or shape_of(inputs[0]) != shape_of(value):
                return None
        elif node.op_type not in (*_POOLING, *SHAPE_ONLY, "Transpose"):
            return None
        behind.append((node, inputs[0]))
        value = inputs[0]
    return None


def _is_of_a_pyramid(graph: ir.Graph, output: ir.Value, axis: int) -> bool:
    """Whether a map is one of several of different sizes, as features for another network and heads of detectors are.

    Maps of classes that are supervised at several sizes have as many channels each, and are of the size of the image.
    """
    rank, sizes = len(shape_of(output)), _without(shape_of(output), axis)
    maps = [shape_of(value) for value in graph.outputs if is_floating(value) and len(shape_of(value)) == rank > 2]
    if all(_without(shape, axis) == sizes for shape in maps):
        return False
    images = [value for value in graph.inputs if not value.is_initializer() and len(shape_of(value)) == rank]
    is_whole = any(_without(shape_of(image), place) == sizes for image in images for place in (1, rank - 1))
    return not is_whole or len({shape[axis] for shape in maps}) > 1


def _without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _is_weight(value: ir.Value) -> bool:
    """Say whether a value is in the file, or a view of one that is."""
    node = value.producer()
    if node is not None and node.op_type in ("Transpose", "Reshape", "Cast", "Identity") and node.inputs[0] is not None:
        return _is_weight(node.inputs[0])
    return value.is_initializer()


def _followed(axis: int, behind: Sequence[tuple[ir.Node, ir.Value]]) -> int | None:
    """Where an axis ends up behind nodes, listed from the last one to the first; None if it is taken apart."""
    for node, source in reversed(behind):
        before, after = shape_of(source), shape_of(node.outputs[0])
        if node.op_type == "Transpose":
            axis = (attr_ints(node, "perm") or tuple(reversed(range(len(before))))).index(axis)
        elif node.op_type in SHAPE_ONLY:
            moved = next(_same_places(before, axis, after), None)
            if moved is None:
                return None
            axis = moved
        elif axis != 1:
            return None
    return axis


def _same_places(before: Sequence[int], axis: int, after: Sequence[int]) -> Iterator[int]:
    """The axes of a new shape whose elements lie as those of an axis of the old shape did."""
    for place, size in enumerate(after):
        if size == before[axis] and math.prod(after[:place]) == math.prod(before[:axis]):
            yield place
