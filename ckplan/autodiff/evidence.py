"""What shows whether a floating-point initializer is a parameter or a constant of the program.

Files do not say it: exporters write weights, masks and tables alike as initializers. In this order it is decided by

1. what torch's exporter noted: parameter, buffer, constant (see :mod:`ckplan.model.torch_files.default_exporter`);
2. a name that weights have (``layers.0.attn.weight``, ``gamma``, ``w1``), unless the values are a table of sines; one
   that running statistics have;
3. the values: those of a mask, of a table of sines or of an identity follow a formula, and weights do not;
4. the use: what a Where chooses, what a Scatter writes into, what a Max compares with and the few numbers that an
   image is normalised by are seldom trained; operands of products, tables of embeddings, biases, the slopes of a
   PRelu, and scale and shift of a normalisation are, even where all are zero or one. What is subtracted before a scale
   and a shift is a running mean, what divides by its root once a small number is added a running variance.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Set
from dataclasses import dataclass
from enum import Enum

import onnx_ir as ir

from ckplan.keys import CONSTANT, FROZEN, STANDS_FOR
from ckplan.model import is_literal
from ckplan.model.bodies import state_count
from ckplan.model.constants import FOLDED, IN_NODE
from ckplan.model.infer import static_shape
from ckplan.model.literals import is_numbered
from ckplan.model.structure import TABLE, is_rounded, structure_of
from ckplan.model.torch_files.default_exporter import KIND
from ckplan.model.torch_files.old_exporter import COMPUTED

_WEIGHT = re.compile(
    r"(.*[._/])?((?P<matrix>weights?|kernel|filters?|embeddings?)|bias(es)?|gamma|beta|lora_[ab])"
    r"(_[ih]h|_hr|_[gv])?(_l\d+)?(_reverse)?(_?\d+)?"
    r"|[WwBbVvUuRr](_?[qkvoghizrx]{1,2})?_?\d*"
    r"|.*/(ReadVariableOp|read)(_\d+)?(:\d+)?",
    re.IGNORECASE,
)
_STATISTIC = re.compile(r"(.*[._/])?(running|moving)_(mean|var|variance)([/:].*)?")
"""What frameworks call what a batch normalisation keeps of the batches before."""
_BUFFER = re.compile(r"(.*[._/])?final_logits_bias")
"""What is called like a weight and is none: transformers' zeros behind the head of BART and its kin."""
_TENSORFLOW_CONSTANT = re.compile(r"(.*/)?Const(_\d+)?(:\d+)?|(.*/)?(zeros|ones)(_like)?(_\d+)?:\d+")
"""What TensorFlow calls a constant that nobody named; a frozen variable bears its own name."""
_TENSORFLOW_CAPTURED = re.compile(r"Func/.*/input/_\d+(:\d+)?")
"""What it calls a tensor that a function reads from outside: a number of a lambda, or what a layer reads."""
_TENSORFLOW_BIAS = re.compile(r"(.*/)?BiasAdd(_\d+)?(:\d+)?")
"""How TensorFlow calls what adds a bias to a product, or to the sum of two."""
_TENSORFLOW_VARIABLE = re.compile(r".*/(ReadVariableOp|read)\b.*")
"""What it calls a variable; what JAX hands to it has none, and its weights are constants."""
_PADDLE_CONSTANT = re.compile(r"(p2o\.)?helper\.constant\.\d+(\.\d+)?")
"""What Paddle's exporter calls numbers of its formulas: an exponent, an epsilon, the three of a hard swish."""
_PADDLE_CAST = re.compile(r"(p2o\.)?auto\.cast\.\d+(\.\d+)?")
"""What it calls what it casts: a weight of half precision, or the one number that scores of attention are scaled by."""
_LETTER_AND_NUMBER = re.compile(r"([A-Za-z]_?)\d+")
_OF_LAYER = re.compile(r"onnx::(Conv|ConvTranspose|Gemm|GRU|LSTM|MatMul|RNN)_\d+")
"""How torch's old exporter calls the weights and biases of a layer that it turned, joined or multiplied."""
_FIRST = 32
"""So many nodes are looked at for how an exporter names what they make."""
_FEW = 8
"""So many numbers are too few for a formula to be seen in them."""
_MANY = 64
"""So many numbers in a product are weights, if they follow no formula, even where an exporter calls them constants."""
_LEVELS = 32
"""So many different values, in equal steps, are weights that were rounded; a program has fewer, or in a row."""
_IMAGE_CHANNELS = 3
"""Rank of the least that holds a number for each channel of an image, as (3, 1, 1)."""
_VIEWS = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
_NORMALISATIONS = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"}
)
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "GRU", "LSTM", "MatMul", "RNN"})
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
# Not of InstanceNormalization: exporters write a group normalisation as one by ones and zeros.
_AFFINE = frozenset(
    {(kind, index) for kind in _NORMALISATIONS - {"InstanceNormalization"} for index in (1, 2)}
    | {("Conv", 2), ("ConvTranspose", 2), ("Gemm", 2), ("GRU", 3), ("LSTM", 3), ("RNN", 3)}
    | {("PRelu", 1)}  # one slope for all channels is learnt, too; what is not learnt is a LeakyRelu
)
_AFFINE_AFTER = {"Add": _NORMALISATIONS | _PRODUCTS, "Mul": _NORMALISATIONS}
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
    PLACED = "values that are put in the place of others"
    ELEMENTWISE = "element by element"
    INPUT = "an input of the model, element by element"
    MEAN = "a running mean: subtracted before a scale and a shift"
    VARIANCE = "a running variance: a small number is added, and its root divides"
    STATE = "the state that a recurrence of several samples begins with"


@dataclass(frozen=True)
class Verdict:
    """What an initializer is taken for.

    Attributes:
        trained: whether it is a parameter.
        certain: whether the evidence leaves no doubt.
        why: what shows it, in a few words; empty if there is nothing to say.
    """

    trained: bool
    certain: bool = True
    why: str = ""


def judge(value: ir.Value, uses: Set[Use]) -> Verdict:
    """Say whether a floating-point initializer is a parameter or a constant of the program.

    Args:
        value: an initializer of the main graph, of known shape.
        uses: how the model as it was read uses it; see :func:`uses_of`.
    """
    name, kind = str(value.name), value.metadata_props.get(KIND)
    if (frozen := value.metadata_props.get(FROZEN)) is not None:
        return Verdict(False, why=frozen)
    if kind == "PARAMETER":
        formula = _formula(value)  # a parameter that requires no gradient is noted like any other
        odd = formula is not None and not formula.startswith("all ")
        return Verdict(True, not odd, formula or "")
    if kind is not None:
        return Verdict(False, why="a buffer of the module" if kind == "BUFFER" else "")
    if (stands_for := value.metadata_props.get(STANDS_FOR)) is not None:
        return Verdict(bool(stands_for), why="" if stands_for else "no parameter of the module")
    if is_literal(value):
        return _judge_literal(value, uses)
    if _STATISTIC.fullmatch(name) or uses in ({Use.MEAN}, {Use.VARIANCE}):
        return Verdict(False, why="a running statistic")
    if _BUFFER.fullmatch(name):
        return Verdict(False, why="a buffer of the module")
    of_one = value.const_value is not None and value.const_value.size == 1
    if _PADDLE_CONSTANT.fullmatch(name) or (of_one and _PADDLE_CAST.fullmatch(name)):
        return Verdict(False, why="a constant of Paddle's")
    if value.shape is not None and len(value.shape) == 0:
        return Verdict(True, certain=False, why="a scalar")
    numbered = is_numbered(name) or _is_one_of_a_series(value)
    if (weight := _WEIGHT.fullmatch(name)) is not None and not numbered:
        of_formula = bool(weight["matrix"]) and len(value.shape or ()) > 1 and _formula(value) == TABLE
        return Verdict(not of_formula, why=TABLE if of_formula else "")
    if _TENSORFLOW_CONSTANT.fullmatch(name) and (uses.isdisjoint({Use.PRODUCT, Use.TABLE}) or _has_variables(value)):
        return Verdict(False, why="a constant of TensorFlow's")
    captured = _TENSORFLOW_CAPTURED.fullmatch(name) and not _is_bias_of_tensorflow(value)
    if captured and uses <= {Use.ELEMENTWISE, Use.INPUT, Use.PLACED}:
        return Verdict(False, why="a constant of TensorFlow's")
    few = value.const_value is not None and value.const_value.size < _FEW
    if few and value.shape is not None and len(value.shape) >= _IMAGE_CHANNELS and uses == {Use.INPUT}:
        return Verdict(False, why="what an image is normalised by")
    formula = _formula(value)
    if formula is None:
        odd = numbered and uses.isdisjoint({Use.PRODUCT, Use.TABLE, Use.AFFINE})
        if odd and few:
            return Verdict(False, why="a few numbers without a name")
        return Verdict(True, not odd, f"read {Use.ELEMENTWISE.value}" if odd else "")
    if formula.startswith("all ") and uses == {Use.STATE}:
        return Verdict(False, why="a state to begin with")
    if formula.startswith("all "):
        is_layer = formula == "all 0" and _weighs(value)  # where a module begins with one that adds nothing
        return Verdict(is_layer or Use.AFFINE in uses or (not numbered and uses != {Use.PLACED}), why=formula)
    if Use.PRODUCT in uses and value.const_value is not None and is_rounded(value.const_value, _LEVELS):
        return Verdict(True, certain=False, why=f"{formula} in equal steps")
    return Verdict(False, why=formula)


def may_be_merged(value: ir.Value, uses: Set[Use]) -> bool:
    """Whether several layers read a scale or shift that nothing has trained yet, of which no exporter says it is one.

    Tools that simplify a file hold equal tensors once.
    """
    told = {KIND, STANDS_FOR} & value.metadata_props.keys()
    if told or Use.AFFINE not in uses or len(value.shape or ()) != 1 or len(set(value.consumers())) == 1:
        return False
    return str(_formula(value)).startswith("all ")


def is_computed(value: ir.Value, uses: Set[Use]) -> bool:
    """Whether torch's old exporter computed a tensor of others, of which its file says nothing, and did not turn it.

    What has a number for a name it computed; weights of layers are hardly ever anything but turned.
    """
    told, name = {KIND, STANDS_FOR} & value.metadata_props.keys(), str(value.name)
    of_layer = Use.PRODUCT in uses or _OF_LAYER.fullmatch(name) is not None
    return not told and COMPUTED.fullmatch(name) is not None and not of_layer


def _judge_literal(value: ir.Value, uses: Set[Use]) -> Verdict:
    """Judge what the loader marked as a constant: weights of a frozen module of torch's are Constant nodes as well."""
    tensor, origin = value.const_value, value.metadata_props.get(CONSTANT)
    if tensor is None or origin not in (IN_NODE, FOLDED) or not tensor.shape.numpy():
        return Verdict(False)
    in_product = tensor.size >= _MANY and uses == {Use.PRODUCT}
    for_channels = origin == IN_NODE and tensor.size >= _FEW and max(tensor.shape.numpy()) == tensor.size
    if (in_product or (for_channels and _is_of_layers(value))) and _formula(value) is None:
        return Verdict(True, certain=False, why="in a Constant node")
    return Verdict(False)


def _is_of_layers(value: ir.Value) -> bool:
    """Whether a value is the bias of layers, or a scale or shift between two: not of what the model gives out."""
    uses = [(use.node, use.node.inputs[1 - use.idx]) for use in value.uses() if use.node.op_type in _AFFINE_AFTER]
    return 0 < len(uses) == len(value.uses()) and all(
        (node.op_type == "Add" and _follows(other, _PRODUCTS, through=_VIEWS))
        or (_follows(other, _PRODUCTS, through=_VIEWS | _AFFINE_AFTER.keys()) and not _is_given_out(node))
        for node, other in uses
    )


def _is_given_out(node: ir.Node, hops: int = 4) -> bool:
    """Whether what a node makes is an output of the model, perhaps reshaped, scaled or shifted."""
    value = node.outputs[0]
    return value.is_graph_output() or any(
        use.node.op_type in _VIEWS | _AFFINE_AFTER.keys() and hops and _is_given_out(use.node, hops - 1)
        for use in value.uses()
    )


def _weighs(value: ir.Value) -> bool:
    """Whether layers read a value as their weight, or a view of it."""
    uses = [(use.node, use.idx) for use in value.uses()]
    return bool(uses) and all(
        (index == 1 and node.op_type in _LAYERS) or (node.op_type in _VIEWS and _weighs(node.outputs[0]))
        for node, index in uses
    )


def _is_one_of_a_series(value: ir.Value) -> bool:
    """Whether an exporter calls everything by one letter and a number, so that ``v12`` or ``w_3`` tells nothing."""
    numbered = _LETTER_AND_NUMBER.fullmatch(str(value.name))
    if numbered is None or value.graph is None:
        return False
    made = [str(output.name) for node in itertools.islice(value.graph, _FIRST) for output in node.outputs]
    alike = [found for name in made if (found := _LETTER_AND_NUMBER.fullmatch(name)) is not None]
    return 2 * len([found for found in alike if found[1] == numbered[1]]) > max(len(made), 2)


def _is_bias_of_tensorflow(value: ir.Value) -> bool:
    """Whether a vector is added by an operation that TensorFlow names a BiasAdd, as in a layer that runs in a loop."""
    adds = [node for node in value.consumers() if node.op_type == "Add"]
    return len(value.shape or ()) == 1 and any(
        _TENSORFLOW_BIAS.fullmatch(str(node.outputs[0].name)) is not None for node in adds
    )


def _has_variables(value: ir.Value) -> bool:
    """Whether an initializer lies in a file with variables of TensorFlow."""
    beside = () if value.graph is None else value.graph.initializers
    return any(_TENSORFLOW_VARIABLE.fullmatch(name) for name in beside)


def _formula(value: ir.Value) -> str | None:
    return None if value.const_value is None else structure_of(value.const_value)


def uses_of(value: ir.Value) -> set[Use]:
    """Return the ways in which nodes read a value and what only shows it in another form."""
    found = set()
    for use in value.uses():
        node, place = use.node, (use.node.op_type, use.idx)
        if node.op_type in _VIEWS and use.idx == 0:
            found |= {way for output in node.outputs for way in uses_of(output)}
        elif place in _AFFINE:
            found.add(Use.AFFINE)
        elif _is_state(value, node, use.idx):
            found.add(Use.STATE)
        elif node.op_type in _PRODUCTS:
            found.add(Use.PRODUCT)
        elif place == ("Gather", 0):
            found.add(Use.TABLE)
        elif place in _PLACED:
            found.add(Use.PLACED)
        elif node.op_type in _AFFINE_AFTER and _is_affine(value, node.inputs[1 - use.idx], node.op_type):
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
    return not alone and _follows(other, _AFFINE_AFTER[op_type])


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
    while number is not None and (made_by := number.producer()) is not None and made_by.op_type in _VIEWS:
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
            value = node.inputs[0] if node.op_type in _VIEWS else None
    return value is not None and value.is_graph_input() and not value.is_initializer()


def _follows(
    value: ir.Value | None, kinds: Set[str], hops: int = 4, through: Set[str] = _VIEWS | frozenset({"Mul"})
) -> bool:
    """Whether a value comes out of an operator of these kinds, perhaps reshaped or scaled since."""
    node = value.producer() if value is not None else None
    if node is None or not hops:
        return False
    if node.op_type in kinds:
        return True
    sources = node.inputs[:1] if node.op_type in _VIEWS else node.inputs
    return node.op_type in through and any(_follows(operand, kinds, hops - 1, through) for operand in sources)
