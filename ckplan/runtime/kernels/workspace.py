"""Bytes that onnxruntime's CPU kernels take while they run, beyond their outputs.

Only kernels whose workspace can matter beside activations are listed. The multiples of the output were read off the
arena's high-water, each kernel alone (onnxruntime 1.31, CPU); ``tests/runtime/test_workspace.py`` does so again. Where
sizes are not known, there is none.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ckplan.operators.matching import input_of, is_op
from ckplan.operators.outside import index_input, place_bytes, places_outside
from ckplan.operators.table import operator_of
from ckplan.planner.arena.regions import chunk_size
from ckplan.planner.problem import Mark, Piece
from ckplan.runtime.kernels.columns import columns_of
from ckplan.runtime.kernels.einsum import einsum_pieces, einsum_workspace
from ckplan.runtime.kernels.fourier import fourier_tensors
from ckplan.runtime.sizes import bytes_of, dimensions_of

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Recurrent operators with their numbers of gates."""

OUTPUTS_FIRST = frozenset(
    (
        *("Abs", "Add", "And", "ArgMax", "ArgMin", "Atan", "AveragePool", "BatchNormalization", "BiasGelu", "Cast"),
        *("Ceil", "Celu", "Clip", "Concat", "Conv", "ConvTranspose", "Cos", "CumSum", "DepthToSpace", "Div"),
        *("Dropout", "Elu", "Equal", "Erf", "Exp", "Expand", "FastGelu", "Floor", "FusedConv", "FusedGemm"),
        *("FusedMatMul", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool"),
        *("GlobalMaxPool", "Greater", "GreaterOrEqual", "HardSigmoid", "Identity", "InstanceNormalization"),
        *("IsNaN", "LRN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax"),
        *("LpNormalization", "MatMul", "MaxPool", "Mul", "Neg", "Not", "Or", "PRelu", "Pad", "Pow", "QuickGelu"),
        *("RMSNormalization", "Reciprocal", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceSum"),
        *("ReduceSumSquare", "Relu", "Reshape", "Resize", "RotaryEmbedding", "Round", "ScatterElements", "ScatterND"),
        *("Selu", "Shape", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Softmax", "Softplus", "Softsign"),
        *("SpaceToDepth", "Split", "Sqrt", "Sub", "Tanh", "ThresholdedRelu", "Tile", "Transpose", "Trilu"),
    )
)
"""Operators whose kernels ask for their outputs first of all; ``tests/runtime/test_asking_order.py`` shows it."""

_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose", "DeformConv", "FusedConv"})
_VARIADIC = frozenset({"Max", "Mean", "Min", "Sum"})
"""Operators whose kernel joins its operands two by two, all but the last results in tensors of their own."""


def workspace_of(node: ir.Node, threads: int) -> int:
    """Workspace of a node in bytes, as the arena hands it out; 0 where the kernel needs none worth counting.

    Args:
        node: the node.
        threads: on which kernels with a buffer for each run.
    """
    operands = _contracted(node)
    if operands is not None:
        return einsum_workspace(*operands)
    return sum(map(chunk_size, _tensors(node, threads)))


def pieces_of(node: ir.Node) -> tuple[Piece, ...]:
    """The workspace of a node tensor by tensor, in bytes; see `ckplan.planner.problem.Op`. Empty if it is a single one.

    Where an arena cuts its regions into chunks, several tensors are not one of the same size. Only where `Mark.OUTPUTS`
    is among them is it known when the kernel asks for its outputs.
    """
    operands = _contracted(node)
    if operands is not None:
        return einsum_pieces(*operands)
    tensors = [chunk_size(size) for size in _tensors(node, 1) if size]
    if node.op_type == "Where":  # the branches come first (``core/providers/cpu/tensor/where_op.cc``)
        return (*tensors, Mark.OUTPUTS)
    if node.op_type in _VARIADIC and len(node.inputs) < 4:
        return (*tensors, Mark.OUTPUTS)
    first = (Mark.OUTPUTS,) if node.op_type in OUTPUTS_FIRST else ()
    return (*first, *tensors) if len(tensors) > 1 else first


def outside_of(node: ir.Node) -> int:
    """What a node's kernel takes outside the allocator, in bytes; 0 where sizes are not known."""
    place = index_input(node.op_type)
    value = input_of(node, place) if place is not None else None
    shape = None if value is None else dimensions_of(value)
    return 0 if shape is None else place_bytes(node) * places_outside(node.op_type, shape)


def _tensors(node: ir.Node, threads: int) -> list[int]:
    """Bytes of each tensor that a node's kernel works in."""
    told = operator_of(node).workspace
    if told is not None:
        return [told(node)]
    if node.op_type == "Where":
        return _chosen(node)
    if node.op_type == "LRN":
        return _squares(node)
    if node.op_type in _VARIADIC:
        return _joined(node)
    if node.op_type in _CONVOLUTIONS:
        return columns_of(node, threads)
    if node.op_type in _GATES:
        return [_recurrent(node)]
    if is_op(node, "Attention"):
        return _attention(node)
    if is_op(node, ("DFT", "STFT")):
        return fourier_tensors(node)
    if is_op(node, "Resize"):
        return _smoothed(node)
    if is_op(node, "QLinearMatMul"):  # sums, before they are rounded (``quantization/quantize_linear_matmul.cc``)
        return [4 * math.prod(dimensions_of(node.outputs[0]) or (0,))]
    copies = _copies(node)
    return [bytes_of(node.outputs[0])] * copies if copies else []


def _copies(node: ir.Node) -> int:
    """How many tensors of the size of its output a kernel works in."""
    dims = dimensions_of(node.outputs[0]) or ()
    if node.op_type in ("Hardmax", "Softmax", "LogSoftmax"):
        return 0 if node.attributes.get_int("axis", -1) in (-1, len(dims) - 1) else 2  # transposed, in and out
    if is_op(node, "MeanVarianceNormalization"):
        axes = {axis % max(1, len(dims)) for axis in node.attributes.get_ints("axes", (0, 2, 3)) or ()}
        return 0 if axes == set(range(len(dims) - len(axes), len(dims))) else 2  # as above
    if node.op_type in ("BiasGelu", "FastGelu"):
        return 1 if len(node.inputs) > 1 else 0
    # An Einsum whose operands are of unknown size copies its output at least.
    return 1 if node.op_type == "Einsum" else 0


def _contracted(node: ir.Node) -> tuple[str, list[tuple[int, ...]], float] | None:
    """Equation, shapes and bytes of an element of an Einsum whose operands are of known size; None for other nodes."""
    if node.op_type != "Einsum" or operator_of(node).workspace is not None:
        return None
    shapes = [None if value is None else dimensions_of(value) for value in node.inputs]
    dtype = node.outputs[0].dtype
    known = [shape for shape in shapes if shape is not None]
    if dtype is None or len(known) < len(shapes):
        return None
    return node.attributes["equation"].as_string(), known, dtype.itemsize


def _chosen(node: ir.Node) -> list[int]:
    """Bytes of each branch of a Where, as large as it is with the condition, zero where the other one is chosen."""
    whole = bytes_of(node.outputs[0])
    made = dimensions_of(node.outputs[0])
    shapes = [None if value is None else dimensions_of(value) for value in node.inputs]
    if not whole or not made or len(shapes) != 3 or any(shape is None for shape in shapes):
        return [whole, whole]
    condition, *branches = (shape for shape in shapes if shape is not None)
    return [_broadcast(whole, made, condition, branch) for branch in branches]


def _joined(node: ir.Node) -> list[int]:
    """Bytes of the first two operands joined, where there is a third: of more, two are there at once or the output."""
    whole, made = bytes_of(node.outputs[0]), dimensions_of(node.outputs[0])
    if len(node.inputs) < 3:
        return []
    shapes = [None if value is None else dimensions_of(value) for value in node.inputs[:2]]
    first, second = shapes
    if len(node.inputs) > 3 or not whole or not made or first is None or second is None:
        return [whole]
    return [_broadcast(whole, made, first, second)]


def _broadcast(whole: int, made: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Bytes of two operands of these shapes broadcast, of a result that takes ``whole`` bytes in shape ``made``."""
    return math.prod(np.broadcast_shapes(first, second)) * whole // math.prod(made)


def _attention(node: ir.Node) -> list[int]:
    """Bytes of the scores of all heads, and of a mask that is made or converted (``core/providers/cpu/llm``)."""
    given = [*node.inputs, None, None]
    shapes = [None if value is None else dimensions_of(value) for value in given]
    query, key, mask, past = shapes[0], shapes[1], shapes[3], shapes[4]
    dtype = node.outputs[0].dtype
    if query is None or key is None or dtype is None or min(len(query), len(key)) < 3:
        return []
    heads = query[1] if len(query) == 4 else node.attributes.get_int("q_num_heads", 1)
    queries, keys = query[-2], key[-2] + (0 if past is None else past[-2])
    # With one query behind a past, everything is visible.
    causal = node.attributes.get_int("is_causal", 0) == 1 and not (queries == 1 and past is not None and past[-2] > 0)
    scores = math.ceil(query[0] * heads * queries * keys * dtype.itemsize)
    if given[3] is None:
        return [scores, math.ceil(queries * keys * dtype.itemsize)] if causal else [scores]
    if mask is None or not (causal or given[3].dtype == ir.DataType.BOOL):
        return [scores]
    return [scores, math.ceil(math.prod(mask) * dtype.itemsize)]


def _smoothed(node: ir.Node) -> list[int]:
    """Bytes of a sample that is as wide as its output already and as high as before (``upsample_antialias.h``)."""
    value, made = node.inputs[0], node.outputs[0]
    if value is None or made.dtype is None or not node.attributes.get_int("antialias", 0):
        return []
    before, after = dimensions_of(value), dimensions_of(made)
    if before is None or after is None or len(before) not in (2, 4):
        return []
    if len(before) == 4 and before[1] != after[1]:  # channels last
        return [math.ceil(before[1] * math.prod(after[2:]) * made.dtype.itemsize)]
    return [math.ceil(math.prod(before[-3:-1]) * after[-1] * made.dtype.itemsize)]


def _squares(node: ir.Node) -> list[int]:
    """Bytes of the scales of an LRN, and of the squares of one sample with channels added on both sides."""
    whole = bytes_of(node.outputs[0])
    dims = dimensions_of(node.outputs[0])
    if not whole or dims is None or len(dims) < 2:
        return [whole]
    channels, added = dims[1], node.attributes["size"].as_int() - 1
    return [whole, whole // (dims[0] * channels) * (channels + added)]


def _recurrent(node: ir.Node) -> int:
    """What the input gives to the gates of all steps, and a copy of the sequences for the direction back in time.

    An RNN does one direction after the other and turns nothing round (``core/providers/cpu/rnn``).
    """
    x, w, r = (None if value is None else dimensions_of(value) for value in node.inputs[:3])
    dtype = node.outputs[0].dtype or (node.inputs[0].dtype if node.inputs[0] is not None else None)
    if x is None or w is None or r is None or dtype is None:
        return 0
    rows, hidden, directions = x[0] * x[1], r[2], w[0]
    gates = rows * _GATES[node.op_type] * hidden
    if node.op_type == "RNN":
        made = bool(node.outputs[0].name)
        return math.ceil((gates + (0 if made else directions * rows * hidden)) * dtype.itemsize)
    direction = node.attributes.get_string("direction", "forward")
    turned = rows * (x[2] + hidden) if direction != "forward" else 0
    return math.ceil((directions * (gates + 3 * x[1] * hidden) + turned) * dtype.itemsize)
