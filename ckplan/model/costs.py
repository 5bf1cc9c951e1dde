"""What a node costs: arithmetic and memory traffic, from its shapes alone.

The planner weighs recomputing one node against another, so it is the ratios that matter: convolutions and matrix
products against elementwise work. The two rates are those of two cores of a current server CPU in onnxruntime
1.31 (measured: dense convolutions and products of float32 ran at 150 to 215 Gflop/s, elementwise operators on tensors
beyond the caches at 26 to 35 GB/s).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.model.bodies import trips_of

FLOPS_PER_SECOND = 150e9
BYTES_PER_SECOND = 30e9


@dataclass(frozen=True)
class Cost:
    """Cost of running a node once.

    Attributes:
        flops: floating-point operations; a multiply-add is two, a transcendental function what it takes in
            multiply-adds on vector units.
        bytes: bytes read and written.
    """

    flops: int
    bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


FREE = Cost(0, 0)


def seconds(cost: Cost) -> float:
    """Time by the roofline: as long as the arithmetic or the memory traffic takes, whichever is more."""
    return max(cost.flops / FLOPS_PER_SECOND, cost.bytes / BYTES_PER_SECOND)


def node_cost(node: ir.Node) -> Cost:
    """Price a node whose inputs and outputs have static shapes (an unknown dimension counts as 1).

    A node with nested graphs costs its dearest branch, or its body times the trip count, the largest one if that
    depends on data.
    An operator that is not in the tables counts as elementwise: one operation an output element, all operands read
    and all outputs written.
    """
    rule = _RULES.get(node.op_type) if node.domain in ("", "com.microsoft") else None
    if rule is not None:
        return rule(node)
    bodies = [sum((node_cost(inner) for inner in body), FREE) for body in _bodies(node)]
    if bodies:
        trips = trips_of(node) if node.op_type in ("Loop", "Scan") else 1
        dearest = max(bodies, key=seconds)
        return Cost(dearest.flops * trips, dearest.bytes * trips)
    return _elementwise(node)


# --- sizes ------------------------------------------------------------------------------------------------------------


def _shape(value: ir.Value | None) -> tuple[int, ...]:
    if value is None or value.shape is None:
        return ()
    return tuple(dim if isinstance(dim, int) else 1 for dim in value.shape)


def _elements(value: ir.Value | None) -> int:
    return math.prod(_shape(value)) if value is not None else 0


def _bytes(value: ir.Value | None) -> int:
    if value is None:
        return 0
    itemsize = value.dtype.itemsize if value.dtype is not None and value.dtype != ir.DataType.STRING else 4
    return math.ceil(_elements(value) * itemsize)


def _read(node: ir.Node) -> int:
    return sum(_bytes(value) for value in node.inputs)


def _written(node: ir.Node) -> int:
    return sum(_bytes(value) for value in node.outputs)


def _traffic(node: ir.Node) -> int:
    return _read(node) + _written(node)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [attribute.as_graph() for attribute in node.attributes.values() if attribute.type == ir.AttributeType.GRAPH]


# --- rules ------------------------------------------------------------------------------------------------------------

Rule = Callable[[ir.Node], Cost]


def _free(node: ir.Node) -> Cost:
    return FREE


def _elementwise(node: ir.Node, each: int = 1) -> Cost:
    return Cost(each * max((_elements(value) for value in node.outputs), default=0), _traffic(node))


def _per_output(each: int) -> Rule:
    return lambda node: _elementwise(node, each)


def _per_input(each: int) -> Rule:
    """Reductions and normalisations: work per element of the data operand."""
    return lambda node: Cost(each * _elements(_input(node, 0)), _traffic(node))


def _moved(node: ir.Node) -> Cost:
    """Data movement that touches no more of its operand than it writes."""
    return Cost(0, 2 * _written(node))


def _strided(node: ir.Node) -> Cost:
    """A transposition reads across cache lines: about twice the traffic of a copy."""
    return Cost(0, 4 * _written(node))


def _gather(node: ir.Node) -> Cost:
    return Cost(0, 2 * _written(node) + _bytes(_input(node, 1)))


def _scatter(node: ir.Node) -> Cost:
    """Copies its data operand, then writes the updates into the copy."""
    updates = _input(node, 2)
    return Cost(_elements(updates), 2 * _written(node) + 2 * _bytes(updates) + _bytes(_input(node, 1)))


def _written_only(node: ir.Node) -> Cost:
    return Cost(0, _written(node))


def _conv(node: ir.Node) -> Cost:
    weight = _shape(_input(node, 1))
    taps = math.prod(weight[2:])
    flops = 2 * _elements(node.outputs[0]) * math.prod(weight[1:])
    traffic = _traffic(node)
    if node.attributes.get_int("group", 1) > 1 and math.prod(weight[1:2]) < 8:
        # Depthwise and thin groups have nothing to multiply by blocks: every tap is read for itself.
        traffic += taps * _bytes(node.outputs[0])
    return Cost(flops + _bias(node, 2), traffic)


def _conv_transpose(node: ir.Node) -> Cost:
    weight = _shape(_input(node, 1))
    return Cost(2 * _elements(node.inputs[0]) * math.prod(weight[1:]) + _bias(node, 2), _traffic(node))


def _bias(node: ir.Node, index: int) -> int:
    return _elements(node.outputs[0]) if _input(node, index) is not None else 0


def _matmul(node: ir.Node) -> Cost:
    left = _shape(node.inputs[0])
    inner = left[-2] if node.attributes.get_int("transA", 0) and len(left) > 1 else (left[-1] if left else 1)
    return Cost(2 * _elements(node.outputs[0]) * inner + _bias(node, 2), _traffic(node))


def _einsum(node: ir.Node) -> Cost:
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    terms = equation.split("->")[0].split(",")
    sizes: dict[str, int] = {}
    broadcast = 1
    for term, value in zip(terms, node.inputs, strict=False):
        shape = list(_shape(value))
        if "..." in term:
            before, after = term.split("...")
            ellipsis = len(shape) - len(before) - len(after)
            broadcast = max(broadcast, math.prod(shape[len(before) : len(before) + ellipsis]))
            shape = shape[: len(before)] + shape[len(before) + ellipsis :]
        for letter, size in zip(term.replace("...", ""), shape, strict=False):
            sizes[letter] = max(sizes.get(letter, 1), size)
    # The operands are permuted and copied before they are multiplied.
    return Cost(2 * broadcast * math.prod(sizes.values()) * max(1, len(terms) - 1), 2 * _traffic(node))


def _attention(node: ir.Node) -> Cost:
    """Scores, softmax, and the weighted sum, with the scores written and read in between."""
    query, key, value = (_shape(_input(node, index)) for index in range(3))
    if len(query) == 4:
        scores = math.prod(query[:-1]) * (key[-2] if len(key) == 4 else query[-2])
        width, value_width = query[-1], value[-1] if value else query[-1]
    elif len(query) == 3:
        heads = max(1, node.attributes.get_int("q_num_heads", node.attributes.get_int("num_heads", 1)))
        length = key[1] if len(key) == 3 else query[1]
        scores = query[0] * heads * query[1] * length
        width = query[-1] // heads
        value_width = value[-1] // max(1, node.attributes.get_int("kv_num_heads", heads)) if len(value) == 3 else width
    else:
        return _elementwise(node)
    flops = 2 * scores * (width + value_width) + 20 * scores
    projection = _shape(_input(node, 1))
    if node.domain == "com.microsoft" and len(projection) == 2:  # its second input is the weight of Q, K and V together
        flops = 2 * math.prod(query) * projection[1] + 2 * query[0] * query[1] ** 2 * projection[1]
    return Cost(flops, _traffic(node) + 4 * scores * 4)


def _pool(node: ir.Node) -> Cost:
    attribute = node.attributes.get("kernel_shape")
    window = math.prod(attribute.as_ints()) if attribute is not None else 1
    return Cost(window * _elements(node.outputs[0]), _traffic(node))


def _lrn(node: ir.Node) -> Cost:
    """Squares, a sum over the window, and a power with a real exponent."""
    return Cost((2 * node.attributes.get_int("size", 5) + 100) * _elements(node.outputs[0]), 3 * _traffic(node))


def _reduce(node: ir.Node) -> Cost:
    return Cost(_elements(_input(node, 0)), _bytes(_input(node, 0)) + _written(node))


def _sum(node: ir.Node) -> Cost:
    return Cost(max(0, len(node.inputs) - 1) * _elements(node.outputs[0]), _traffic(node))


def _resize(node: ir.Node) -> Cost:
    mode = node.attributes.get_string("mode", "nearest")
    each = {"nearest": 1, "linear": 8, "cubic": 40}.get(mode, 8)
    return Cost(each * _elements(node.outputs[0]), _traffic(node))


def _sampled(node: ir.Node) -> Cost:
    """GridSample: corners of each sample, and the cubic weights."""
    axes = len(_shape(node.outputs[0])) - 2
    taps = {"nearest": 1, "cubic": 4, "bicubic": 4}.get(node.attributes.get_string("mode", "linear"), 2)
    return Cost(2 * taps**axes * _elements(node.outputs[0]) + 20 * _elements(_input(node, 1)), _traffic(node))


def _regions(node: ir.Node) -> Cost:
    """RoiAlign: four corners of each sample; two samples along each axis if their number depends on the region."""
    samples = node.attributes.get_int("sampling_ratio", 0) or 2
    return Cost(8 * samples**2 * _elements(node.outputs[0]), _traffic(node))


def _deformed(node: ir.Node) -> Cost:
    """DeformConv: columns made of four corners each, and a convolution of them."""
    columns = _elements(_input(node, 2)) // 2 * _shape(_input(node, 0))[1]
    columns //= max(1, node.attributes.get_int("offset_group", 1))
    product = 2 * _elements(node.outputs[0]) * math.prod(_shape(_input(node, 1))[1:])
    return Cost(product + 10 * columns + _bias(node, 3), _traffic(node) + 8 * columns)


def _fourier(node: ir.Node) -> Cost:
    """DFT and STFT: 5 n log n for each transform."""
    length = max((dim for dim in _shape(node.outputs[0])[1:-1]), default=1)
    return Cost(5 * math.ceil(math.log2(length + 1)) * _elements(node.outputs[0]), 2 * _traffic(node))


def _determinant(node: ir.Node) -> Cost:
    """An LU decomposition of each matrix."""
    shape = _shape(_input(node, 0))
    return Cost(_elements(_input(node, 0)) * (shape[-1] if shape else 1), _traffic(node))


def _top_k(node: ir.Node) -> Cost:
    elements = _elements(_input(node, 0))
    return Cost(elements * max(1, elements.bit_length()), 2 * _traffic(node))


def _recurrent(gates: int) -> Rule:
    def cost(node: ir.Node) -> Cost:
        length, batch, features = (*_shape(_input(node, 0)), 1, 1, 1)[:3]
        directions, _, hidden = (*_shape(_input(node, 2)), 1, 1, 1)[:3]
        steps = length * batch * directions
        flops = 2 * steps * gates * hidden * (features + hidden) + 20 * steps * gates * hidden
        # The recurrent weights are read again in every step.
        return Cost(flops, _traffic(node) + length * _bytes(_input(node, 2)))

    return cost


# Zero-copy in onnxruntime (a view of the input), or a handful of integers on the CPU.
_ALIASES = ("Flatten", "Identity", "OptionalHasElement", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze", "Constant")
_MOVES = ("Concat", "DepthToSpace", "Gather", "Pad", "Slice", "SpaceToDepth", "Split", "Tile", "Trilu", "Compress")
_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare")
_UNARY = {
    "Acos": 20, "Acosh": 30, "Asin": 20, "Asinh": 30, "Atan": 20, "Atanh": 30, "Celu": 30, "Cos": 40, "Cosh": 30,
    "Div": 4, "Elu": 20, "Erf": 25, "Exp": 10, "Gelu": 30, "HardSigmoid": 3, "HardSwish": 4, "LeakyRelu": 2, "Log": 20,
    "Mish": 100, "Mod": 10, "Pow": 40, "QuickGelu": 16, "Reciprocal": 4, "Selu": 20, "Sigmoid": 15, "Sin": 40,
    "Sinh": 30, "Softplus": 100, "Softsign": 5, "Sqrt": 6, "Swish": 16, "Tan": 40, "Tanh": 15, "ThresholdedRelu": 2,
    "Dropout": 10, "RandomNormal": 40, "RandomNormalLike": 40, "RandomUniform": 10, "RandomUniformLike": 10,
    "Bernoulli": 10, "FastGelu": 20, "BiasGelu": 31,
}  # fmt: skip
_NORMALISATIONS = {
    "BatchNormalization": 4, "GroupNormalization": 8, "InstanceNormalization": 8, "LayerNormalization": 8,
    "LpNormalization": 6, "MeanVarianceNormalization": 8, "RMSNormalization": 6, "SimplifiedLayerNormalization": 6,
    "SkipLayerNormalization": 9, "SkipSimplifiedLayerNormalization": 7, "Softmax": 15, "LogSoftmax": 25, "Hardmax": 3,
    "SoftmaxCrossEntropyLoss": 25, "ReduceLogSum": 2, "ReduceLogSumExp": 15, "ReduceL2": 2, "ArgMax": 2, "ArgMin": 2,
    "CumSum": 1, "CumProd": 1, "Col2Im": 2, "MaxRoiPool": 2, "NegativeLogLikelihoodLoss": 1,
}  # fmt: skip

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ALIASES, _free),
    **dict.fromkeys(_MOVES, _moved),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **{name: _per_output(each) for name, each in _UNARY.items()},
    **{name: _per_input(each) for name, each in _NORMALISATIONS.items()},
    **dict.fromkeys(("Conv", "FusedConv"), _conv),
    **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulInteger"), _matmul),
    **dict.fromkeys(("Attention", "MultiHeadAttention"), _attention),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _reduce),
    **dict.fromkeys(("Sum", "Max", "Min", "Mean"), _sum),
    **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter", "TensorScatter"), _scatter),
    **dict.fromkeys(("GatherElements", "GatherND"), _gather),
    **dict.fromkeys(("Expand", "ConstantOfShape", "OneHot", "EyeLike", "Range"), _written_only),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("DFT", "STFT"), _fourier),
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deformed,
    "Det": _determinant,
    "GridSample": _sampled,
    "RoiAlign": _regions,
    "Einsum": _einsum,
    "LRN": _lrn,
    "TopK": _top_k,
    "Transpose": _strided,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
}
