"""What shows whether a floating-point initializer is a parameter or a constant of the program.

Files do not say it: exporters write weights, masks and tables alike as initializers. In this order it is decided by

1. what torch's exporter noted: parameter, buffer, constant (see :mod:`ckplan.model.torch_files.exporter_metadata`);
2. a name that weights have (``layers.0.attn.weight``, ``gamma``, ``w1``), unless the values are a table of sines; one
   that running statistics have;
3. the values: those of a mask, of a table of sines or of an identity follow a formula, and weights do not;
4. the use: what a Where chooses, what a OneHot writes, what a Scatter writes into, what a Max compares with and the
   few numbers that an image is normalised by are seldom trained; operands of products, tables of embeddings, biases,
   the slopes of a PRelu, and scale and shift of a normalisation are, even where all are zero or one. What is
   subtracted before a scale and a shift is a running mean, what divides by its root once a small number is added a
   running variance. What scales an input of the model is as often the one as the other.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Set
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.selection.uses import AFFINE_AFTER, PRODUCTS, VIEWS, Use, follows, is_bias
from ckplan.keys import CONSTANT, FROZEN, STANDS_FOR
from ckplan.model import is_literal
from ckplan.model.constants import FOLDED, IN_NODE
from ckplan.model.inference.infer import is_vector
from ckplan.model.literals import is_numbered
from ckplan.model.structure import (
    Formula,
    Kind,
    has_one_value,
    is_one_number,
    is_rounded,
    is_unstructured,
    structure_of,
)
from ckplan.model.torch_files.exporter_metadata import (
    BUFFER,
    KIND,
    PARAMETER,
    folded_from,
    is_comparison_name,
    parameters_of,
)
from ckplan.model.torch_files.old_exporter import COMPUTED, LAYERS
from ckplan.operators.matching import input_of, is_op

_WEIGHT = re.compile(
    r"(.*[._/])?((?P<matrix>weights?|kernel|filters?|embeddings?)|bias(es)?|gamma|beta|lora_[ab])"
    r"(_[ih]h|_hr|_[gv])?(_l\d+)?(_reverse)?(_?\d+)?"
    r"|[WwBbVvUuRr](_?[qkvoghizrx]{1,2})?_?\d*"
    r"|.*/(ReadVariableOp|read)(_\d+)?(:\d+)?",
    re.IGNORECASE,
)
_STATISTIC = re.compile(r"(.*[._/])?(running|moving)_(mean|var|variance)([/:].*)?")
"""What frameworks call what a batch normalisation keeps of the batches before."""
_SPECTRAL = re.compile(r"(?P<weight>.*)_[uv]")
"""What torch calls the two vectors by which it tells the spectral norm of a weight, beside ``weight_orig``."""
_MASK = re.compile(r"(.*[._/])?(\w+_)?masks?_?\d*")
"""What a mask is called."""
_BUFFER = re.compile(r"(.*[._/])?final_logits_bias")
"""What is called like a weight and is none: transformers' zeros behind the head of BART and its kin."""
_OF_NODE = re.compile(r"(.*/)?Constant(_\d+)?_output_0")
"""How torch's old exporter calls what a Constant node holds, of which tools make initializers."""
_TENSORFLOW_CONSTANT = re.compile(r"(.*/)?Const(_\d+)?(:\d+)?|(.*/)?(zeros|ones)(_like)?(_\d+)?:\d+")
"""What TensorFlow calls a constant that nobody named; a frozen variable bears its own name."""
_TENSORFLOW_FOLDED = re.compile(
    r"ConstantFolding/.*|.*_(?:weights|bias)_fused_bn|(?:.*/)?(?:[Aa]dd|AddV2|[Mm]ul|[Ss]ub|truediv|RealDiv)(?:_\d+)?:0"
)
"""What an operator of arithmetic made, or tf2onnx of a convolution and the normalisation behind it."""

_FOLDED_BY_TOOLS = re.compile(
    r"(.*/)?(?!Cast|Constant|Flatten|Identity|Reshape|Squeeze|Transpose|Unsqueeze)[A-Z][A-Za-z]*(_\d+)?_output_\d+"
    r"|(add|addmm|bmm|cat|clamp|div|embedding|exp|expand|index|index_select|layer_norm|linear|matmul|mm|mul|neg)(_\d+)?"
    r"|(pow|repeat|rsqrt|select|sigmoid|slice|softmax|softplus|sqrt|stack|sub|sum|tanh|where)(_\d+)?"
)
"""How torch's exporters call what a node makes: an initializer is called so where a tool computed it beforehand."""
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
_OF_LAYER = re.compile(rf"onnx::({'|'.join(sorted(LAYERS))})_\d+")
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
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


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
        uses: how the model as it was read uses it; see :func:`ckplan.autodiff.selection.uses.uses_of`.
    """
    found = _marked(value)
    if found is None and is_literal(value):
        found = _judge_literal(value, uses)
    return found or _named(value, uses) or _by_values(value, uses)


def _marked(value: ir.Value) -> Verdict | None:
    """What marks say that loading has left; None where there are none."""
    kind = value.metadata_props.get(KIND)
    if (frozen := value.metadata_props.get(FROZEN)) is not None:
        return Verdict(False, why=frozen)
    stands_for = value.metadata_props.get(STANDS_FOR)
    if kind == PARAMETER or (kind is None and stands_for):
        formula = _formula(value)  # a parameter that requires no gradient is noted like any other
        odd = formula is not None and formula.kind is not Kind.EQUAL
        return Verdict(True, not odd, str(formula or ""))
    if kind is not None:
        return Verdict(False, why="a buffer of the module" if kind == BUFFER else "")
    if stands_for is None:
        return Verdict(True) if _is_of_parameters(value) else None
    return Verdict(False, why="no parameter of the module")


def _is_of_parameters(value: ir.Value) -> bool:
    """Whether torch's default exporter computed numbers of no formula of parameters, be they few."""
    computed_of = folded_from(value)
    if not computed_of or value.graph is None or any(map(is_comparison_name, computed_of)):
        return False
    of_numbers = is_unstructured(value) or is_one_number(value)
    return of_numbers and not parameters_of(value.graph).isdisjoint(computed_of)


def _named(value: ir.Value, uses: Set[Use]) -> Verdict | None:
    """What the name tells, beside how the value is used; None where it tells nothing."""
    name = str(value.name)
    if _OF_NODE.fullmatch(name):
        found = _judge_literal(value, uses)
        return found if found.trained else Verdict(False, why="once in a Constant node")
    if _STATISTIC.fullmatch(name) or uses in ({Use.MEAN}, {Use.VARIANCE}):
        return Verdict(False, why="a running statistic")
    if uses == {Use.ENCODING}:
        return Verdict(False, why="what a OneHot writes")
    if _BUFFER.fullmatch(name):
        return Verdict(False, why="a buffer of the module")
    spectral = _SPECTRAL.fullmatch(name)
    if spectral and value.graph is not None and f"{spectral['weight']}_orig" in value.graph.initializers:
        return Verdict(False, why="of a spectral norm")
    of_one = value.const_value is not None and value.const_value.size == 1
    if _PADDLE_CONSTANT.fullmatch(name) or (of_one and _PADDLE_CAST.fullmatch(name)):
        return Verdict(False, why="a constant of Paddle's")
    if value.shape is not None and len(value.shape) == 0:
        return Verdict(True, certain=False, why="a scalar")
    if (weight := _WEIGHT.fullmatch(name)) is not None and not _is_numbered(value):
        formula = _formula(value) if weight["matrix"] and len(value.shape or ()) > 1 else None
        is_table = formula is not None and formula.kind is Kind.TABLE
        return Verdict(not is_table, why=str(formula) if is_table else "")
    if _TENSORFLOW_CONSTANT.fullmatch(name) and (uses.isdisjoint({Use.PRODUCT, Use.TABLE}) or _has_variables(value)):
        return Verdict(False, why="a constant of TensorFlow's")
    captured = _TENSORFLOW_CAPTURED.fullmatch(name) and not _is_bias_of_tensorflow(value)
    if captured and uses <= {Use.ELEMENTWISE, Use.INPUT, Use.PLACED}:
        return Verdict(False, why="a constant of TensorFlow's")
    return None


def _by_values(value: ir.Value, uses: Set[Use]) -> Verdict:
    """What the numbers tell, beside how they are used, of a value whose name tells nothing."""
    numbered = _is_numbered(value)
    few = value.const_value is not None and value.const_value.size < _FEW
    if few and value.shape is not None and len(value.shape) >= _IMAGE_CHANNELS and uses == {Use.INPUT}:
        return Verdict(False, why="what an image is normalised by")
    formula = _formula(value)
    if few and _is_of_zeros_and_ones(value):
        return Verdict(_MASK.fullmatch(str(value.name)) is None, certain=False, why="of zeros and ones")
    if formula is None:
        odd = numbered and uses.isdisjoint({Use.PRODUCT, Use.TABLE, Use.AFFINE, Use.SCORES})
        if odd and few:
            return Verdict(False, why="a few numbers without a name")
        if uses == {Use.INPUT}:  # as an estimator of scikit-learn is scaled before it is fitted
            return Verdict(True, certain=False, why="read beside an input of the model")
        return Verdict(True, not odd, f"read {Use.ELEMENTWISE.value}" if odd else "")
    if formula.kind is Kind.EQUAL and uses == {Use.STATE}:
        return Verdict(False, why="a state to begin with")
    if formula.kind is Kind.EQUAL:
        is_layer = formula.value == 0 and _weighs(value)  # where a module begins with one that adds nothing
        return Verdict(is_layer or Use.AFFINE in uses or (not numbered and uses != {Use.PLACED}), why=str(formula))
    if Use.PRODUCT in uses and value.const_value is not None and is_rounded(value.const_value, _LEVELS):
        return Verdict(True, certain=False, why=f"{formula} in equal steps")
    if formula.kind in (Kind.FEW_VALUES, Kind.MOSTLY) and is_bias(value):  # as an LSTM's: ones for what it forgets
        return Verdict(True, why=str(formula))
    return Verdict(False, why=str(formula))


def _is_numbered(value: ir.Value) -> bool:
    """Whether the name is a number or a member of a series, as exporters give them to what has no name of its own."""
    return is_numbered(str(value.name)) or _is_one_of_a_series(value)


def may_be_merged(value: ir.Value, uses: Set[Use]) -> bool:
    """Whether several layers read a scale or shift that nothing has trained yet, of which no exporter says it is one.

    Tools that simplify a file hold equal tensors once. That of an InstanceNormalization is read element by element.
    """
    told = {KIND, STANDS_FOR} & value.metadata_props.keys()
    is_read_so = not uses.isdisjoint({Use.AFFINE, Use.ELEMENTWISE})
    if told or not is_read_so or not is_vector(value) or len(set(value.consumers())) == 1:
        return False
    return value.const_value is not None and has_one_value(value.const_value)


def is_number_computed(value: ir.Value) -> bool:
    """Whether torch's old exporter computed a few numbers, which follow no formula that could be seen in them.

    It computes of parameters and buffers alone: numbers of the program stay Constant nodes.
    """
    few = value.const_value is not None and value.const_value.size < _FEW
    return few and COMPUTED.fullmatch(str(value.name)) is not None and (is_unstructured(value) or is_one_number(value))


def is_computed(value: ir.Value, uses: Set[Use]) -> bool:
    """Whether torch's old exporter computed a tensor of others, of which its file says nothing, and did not turn it.

    What has a number for a name it computed; weights of layers are hardly ever anything but turned.
    """
    told, name = {KIND, STANDS_FOR} & value.metadata_props.keys(), str(value.name)
    of_layer = Use.PRODUCT in uses or _OF_LAYER.fullmatch(name) is not None
    return not told and COMPUTED.fullmatch(name) is not None and not of_layer


def is_folded_by_tensorflow(value: ir.Value) -> bool:
    """Whether TensorFlow or tf2onnx computed an initializer of variables or constants before they wrote the file.

    Variables have the name of what reads them (``ReadVariableOp``), and keep it where their axes are moved.
    """
    return _TENSORFLOW_FOLDED.fullmatch(str(value.name)) is not None


def is_folded_by_a_tool(value: ir.Value) -> bool:
    """Whether a tool computed an initializer of parameters or constants, as the name of a node's output tells.

    Simplifiers and onnxruntime's optimiser do; of what torch's exporters computed themselves they tell more. A table
    that rows are looked up in may be called ``embedding`` by those who wrote the model.
    """
    told = {KIND, STANDS_FOR} & value.metadata_props.keys() or folded_from(value)
    if told or any(use.node.op_type == "Gather" and use.idx == 0 for use in value.uses()):
        return False
    return _FOLDED_BY_TOOLS.fullmatch(str(value.name)) is not None


def _judge_literal(value: ir.Value, uses: Set[Use]) -> Verdict:
    """Judge what nodes held or made: weights of a frozen module of torch's are Constant nodes as well.

    Its default exporter lists the parameters, and they are none.
    """
    tensor, origin = value.const_value, value.metadata_props.get(CONSTANT, IN_NODE)
    if tensor is None or origin not in (IN_NODE, FOLDED) or not tensor.shape.numpy():
        return Verdict(False)
    in_product = tensor.size >= _MANY and uses == {Use.PRODUCT} and not _is_data(value)
    for_channels = origin == IN_NODE and tensor.size >= _FEW and max(tensor.shape.numpy()) == tensor.size
    if (in_product or (for_channels and _is_of_layers(value))) and _formula(value) is None:
        if value.graph is not None and parameters_of(value.graph):
            return Verdict(False, why="no parameter of the module")
        return Verdict(True, certain=False, why="in a Constant node")
    return Verdict(False)


def _is_of_zeros_and_ones(value: ir.Value) -> bool:
    """Whether an initializer holds both and nothing else, as a mask does."""
    return value.const_value is not None and set(value.const_value.numpy().reshape(-1).tolist()) == {0.0, 1.0}


def _is_of_layers(value: ir.Value) -> bool:
    """Whether a value is the bias of layers, or a scale or shift between two: not of what the model gives out."""
    uses = [(use.node, use.node.inputs[1 - use.idx]) for use in value.uses() if use.node.op_type in AFFINE_AFTER]
    return 0 < len(uses) == len(value.uses()) and all(
        (node.op_type == "Add" and follows(other, PRODUCTS, through=VIEWS))
        or (follows(other, PRODUCTS, through=VIEWS | AFFINE_AFTER.keys()) and not _is_given_out(node))
        for node, other in uses
    )


def _is_given_out(node: ir.Node, hops: int = 4) -> bool:
    """Whether what a node makes is an output of the model, perhaps reshaped, scaled or shifted."""
    value = node.outputs[0]
    return value.is_graph_output() or any(
        use.node.op_type in VIEWS | AFFINE_AFTER.keys() and hops and _is_given_out(use.node, hops - 1)
        for use in value.uses()
    )


def _weighs(value: ir.Value) -> bool:
    """Whether layers read a value as their weight, or a view of it."""
    uses = [(use.node, use.idx) for use in value.uses()]
    return bool(uses) and all(
        (index == 1 and node.op_type in _LAYERS) or (node.op_type in VIEWS and _weighs(node.outputs[0]))
        for node, index in uses
    )


def _is_data(value: ir.Value) -> bool:
    """Whether layers multiply a value, or a view of it, by weights, as a table of coordinates."""
    uses = [(use.node, use.idx) for use in value.uses()]
    return bool(uses) and all(
        index == 0
        and (
            (node.op_type in _LAYERS and _is_held(node.inputs[1]))
            or (node.op_type in VIEWS and _is_data(node.outputs[0]))
        )
        for node, index in uses
    )


def _is_held(value: ir.Value | None) -> bool:
    """Whether the file holds a value, or what it is a view of: exporters turn a layer's weight in nodes, too."""
    while value is not None and is_op(node := value.producer(), VIEWS):
        value = input_of(node, 0)
    return value is not None and value.is_initializer()


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


def _formula(value: ir.Value) -> Formula | None:
    return None if value.const_value is None else structure_of(value.const_value)
