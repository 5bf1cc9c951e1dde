"""How the nodes of a model use a tensor: as a weight, a table, a scale or a shift, a statistic, a state."""

from __future__ import annotations

from collections.abc import Set
from enum import Enum

import onnx_ir as ir

from ckplan.model.bodies import state_count
from ckplan.model.inference.infer import static_shape
from ckplan.operators.matching import is_op

VIEWS = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators behind which a tensor is the same numbers, or some of them, in another form."""
_NORMALISATIONS = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"}
)
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "GRU", "LSTM", "MatMul", "RNN"})
"""Operators that multiply by weights."""
_BIASES = frozenset({("Conv", 2), ("ConvTranspose", 2), ("Gemm", 2), ("GRU", 3), ("LSTM", 3), ("RNN", 3)})
# Not of InstanceNormalization: exporters write a group normalisation as one by ones and zeros.
_AFFINE = frozenset(
    {(kind, index) for kind in _NORMALISATIONS - {"InstanceNormalization"} for index in (1, 2)}
    | _BIASES
    | {("PRelu", 1)}  # one slope for all channels is learnt, too; what is not learnt is a LeakyRelu
)
AFFINE_AFTER = {"Add": _NORMALISATIONS | PRODUCTS, "Mul": _NORMALISATIONS}
"""What has to stand before an Add or a Mul by a vector for the vector to be a shift or a scale."""
_INITIAL_STATES = frozenset({("GRU", 5), ("LSTM", 5), ("LSTM", 6), ("RNN", 5)})
_MOST_STEPS = 3
"""From what a running mean is subtracted from to a shift: a quotient by the deviation, a scale, the shift."""
_SMALL = 1e-2
"""The largest number that is added to a variance for its root to divide."""
_RECURRENT_RANK = 3
"""Rank of the state of a recurrent layer: directions, batch, units."""
_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub"})
_PLACED = frozenset(
    {("Clip", 1), ("Clip", 2), ("Pow", 1), ("ScatterElements", 0), ("ScatterND", 0), ("Where", 1), ("Where", 2)}
    | {(kind, index) for kind in ("Max", "Min") for index in (0, 1)}
)


class Use(Enum):
    """How a node reads an initializer, or a view of it."""

    PRODUCT = "an operand of a product"
    TABLE = "a table that is looked up"
    AFFINE = "scale or shift behind a normalisation or product, or a slope"
    SCORES = "added in front of a softmax, by several axes, as a mask is"
    PLACED = "values that are put in the place of others"
    ENCODING = "what a OneHot writes where an index points, and elsewhere"
    ELEMENTWISE = "element by element"
    INPUT = "an input of the model, element by element"
    MEAN = "a running mean: subtracted before a scale and a shift"
    VARIANCE = "a running variance: a small number is added, and its root divides"
    STATE = "the state that a recurrence of several samples begins with"


def uses_of(value: ir.Value) -> set[Use]:
    """Return the ways in which nodes read a value and what only shows it in another form."""
    found = set()
    for use in value.uses():
        node, place = use.node, (use.node.op_type, use.idx)
        if node.op_type in VIEWS and use.idx == 0:
            found |= {way for output in node.outputs for way in uses_of(output)}
        elif place in _AFFINE:
            found.add(Use.AFFINE)
        elif _is_state(value, node, use.idx):
            found.add(Use.STATE)
        elif node.op_type in PRODUCTS:
            found.add(Use.PRODUCT)
        elif place == ("Gather", 0):
            found.add(Use.TABLE)
        elif place in _PLACED:
            found.add(Use.PLACED)
        elif place == ("OneHot", 2):
            found.add(Use.ENCODING)
        elif node.op_type == "Add" and _is_added_to_scores(value, node):
            found.add(Use.SCORES)
        elif node.op_type in AFFINE_AFTER and _is_affine(value, node.inputs[1 - use.idx], node.op_type):
            found.add(Use.AFFINE)
        elif place == ("Sub", 1) and _is_mean(node):
            found.add(Use.MEAN)
        elif node.op_type == "Add" and _is_variance(node, use.idx):
            found.add(Use.VARIANCE)
        elif node.op_type in _ARITHMETIC and _is_input(node.inputs[1 - use.idx]):
            found.add(Use.INPUT)
        else:
            found.add(Use.ELEMENTWISE)
    return found


def is_bias(value: ir.Value) -> bool:
    """Whether operators read a value, a number for each channel or gate, in the place of their bias, and only so."""
    uses = [(use.node.op_type, use.idx) for use in value.uses()]
    rows = (static_shape(value) or ())[:-1]
    return bool(uses) and set(uses) <= _BIASES and (("Gemm", 2) not in uses or all(size == 1 for size in rows))


def _is_state(value: ir.Value, node: ir.Node, slot: int) -> bool:
    """Whether a recurrence begins with a value that has a row for each of several samples, as no parameter has."""
    shape = static_shape(value) or ()
    if node.op_type in ("Loop", "Scan"):
        first = 2 if node.op_type == "Loop" else 0
        return first <= slot < first + state_count(node) and len(shape) > 1 and shape[0] > 1
    return (node.op_type, slot) in _INITIAL_STATES and len(shape) == _RECURRENT_RANK and shape[1] > 1


def _is_affine(value: ir.Value, other: ir.Value | None, op_type: str) -> bool:
    """Whether a value scales or shifts what a normalisation or product gives, by a number for each channel."""
    channels = () if other is None else (static_shape(other) or ())[1:]
    alone = value.const_value is not None and value.const_value.size == 1 and any(size > 1 for size in channels)
    return not alone and follows(other, AFFINE_AFTER[op_type])


def _is_added_to_scores(value: ir.Value, node: ir.Node) -> bool:
    """Whether a sum with a value of several axes is only read by softmaxes; the bias of a layer before one has one."""
    readers = node.outputs[0].consumers()
    return len(value.shape or ()) > 1 and bool(readers) and all(is_op(reader, "Softmax") for reader in readers)


def _is_mean(node: ir.Node) -> bool:
    """Whether a difference is multiplied by what the file holds, and something that it holds added, by nobody else."""
    scaled = False
    for _ in range(_MOST_STEPS):
        uses = list(node.outputs[0].uses())
        if len(uses) != 1 or node.outputs[0].is_graph_output():
            return False
        node, index = uses[0].node, uses[0].idx
        if (
            node.op_type not in ("Add", "Div", "Mul")
            or (node.op_type == "Div" and index)
            or not _is_stored(node.inputs[1 - index])
        ):
            return False
        if node.op_type == "Add":
            return scaled
        scaled = True
    return False


def _is_variance(node: ir.Node, index: int) -> bool:
    """Whether a sum adds a small number to a vector, and all that is made of it is what divides by its root."""
    number = node.inputs[1 - index]
    while number is not None and (made_by := number.producer()) is not None and made_by.op_type in VIEWS:
        number = made_by.inputs[0]
    if number is None or number.const_value is None or number.const_value.size != 1:
        return False
    roots = [use.node for use in node.outputs[0].uses()]
    uses = [use for root in roots for use in root.outputs[0].uses()]
    return (
        0 < number.const_value.numpy().item() <= _SMALL
        and len(static_shape(node.outputs[0]) or ()) > 0
        and bool(uses)
        and all(root.op_type == "Sqrt" for root in roots)
        and all(use.node.op_type == "Reciprocal" or (use.node.op_type, use.idx) == ("Div", 1) for use in uses)
    )


def _is_stored(value: ir.Value | None, steps: int = 4) -> bool:
    """Whether a value is an initializer, of several numbers, or is computed of such ones alone, in a few steps."""
    if value is None or value.is_initializer():
        return value is not None
    node = value.producer()
    return node is not None and steps > 0 and all(_is_stored(read, steps - 1) for read in node.inputs if read)


def _is_input(value: ir.Value | None) -> bool:
    """Whether a value is an input of the model, or an input that was normalised by initializers."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in _ARITHMETIC:
            data = [operand for operand in node.inputs if operand is not None and not operand.is_initializer()]
            value = data[0] if len(data) == 1 else None
        else:
            value = node.inputs[0] if node.op_type in VIEWS else None
    return value is not None and value.is_graph_input() and not value.is_initializer()


def follows(
    value: ir.Value | None, kinds: Set[str], hops: int = 4, through: Set[str] = VIEWS | frozenset({"Mul"})
) -> bool:
    """Whether a value comes out of an operator of these kinds, perhaps reshaped or scaled since.

    Args:
        value: None for an input that is left out.
        kinds: names of operators.
        hops: how many nodes may lie between.
        through: the operators that may.
    """
    node = value.producer() if value is not None else None
    if node is None or not hops:
        return False
    if node.op_type in kinds:
        return True
    sources = node.inputs[:1] if node.op_type in VIEWS else node.inputs
    return node.op_type in through and any(follows(operand, kinds, hops - 1, through) for operand in sources)
