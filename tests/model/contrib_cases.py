"""One call of every operator of com.microsoft that is written in standard operators, and of its forms.

Where onnxruntime has no kernel for the CPU, a case brings the formula of the operator's documentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tests.model.contrib_formulas import (
    attention_of,
    conv2d,
    gated_bias,
    gelu,
    group_norm,
    group_query_attention,
    root_mean_square,
    sigmoid,
    softmax,
)

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """A node: its inputs, and either None or what it computes, where onnxruntime has no CPU kernel."""

    op_type: str
    inputs: Sequence[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: Sequence[int] = (0,)
    domain: str = "com.microsoft"
    opset: int = 21
    formula: Callable[..., Array | tuple[Array, ...]] | None = None
    label: str = ""

    def __str__(self) -> str:
        return f"{self.op_type}{'-' if self.label else ''}{self.label}"


def case(op_type: str, *inputs: Any, label: str = "", outputs: Sequence[int] = (0,), **rest: Any) -> Case:
    known = {key: rest.pop(key) for key in ("domain", "opset", "formula") if key in rest}
    return Case(op_type, inputs, rest, outputs, label=label, **known)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def integers(*shape: int, below: int) -> Array:
    return np.random.default_rng(shape).integers(0, below, shape).astype(np.int32)


def model_of(given: Case, dtype: type[np.floating[Any]]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The case as a model, floating inputs as inputs of the graph and the others as initializers; and its feeds."""
    names: list[str] = []
    feeds: dict[str, Array] = {}
    initializers = []
    for index, array in enumerate(given.inputs):
        if array is None:
            names.append("")
            continue
        names.append(f"x{index}")
        if array.dtype.kind == "f":
            feeds[names[-1]] = array.astype(dtype)
        else:
            initializers.append(onnx.numpy_helper.from_array(array, names[-1]))
    results = [f"y{i}" if i in given.outputs else "" for i in range(max(given.outputs) + 1)]
    node = onnx.helper.make_node(given.op_type, names, results, name="node", domain=given.domain, **given.attributes)
    graph = onnx.helper.make_graph(
        [node],
        "case",
        [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ],
        [onnx.helper.make_empty_tensor_value_info(name) for name in results if name],
        initializers,
    )
    imports = [onnx.helper.make_opsetid("", given.opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


_X = numbers(2, 4, 8)
_B8 = numbers(8)
_IDS = integers(2, 4, below=5)
_TABLES = (numbers(5, 8), numbers(6, 8), numbers(2, 8), numbers(8, seed=1), numbers(8, seed=2))
_MASK = np.asarray([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
_MASK3 = np.maximum(integers(2, 4, 4, below=2), np.eye(4, dtype=np.int32))
_ENDS, _STARTS = np.asarray([3, 2], np.int32), np.asarray([3, 2, 1, 0], np.int32)
_W = (numbers(8, 24), numbers(24))
_Q, _K, _V = numbers(2, 4, 8, seed=1), numbers(2, 5, 8, seed=2), numbers(2, 5, 12, seed=3)
_PAST = numbers(2, 2, 3, 4, seed=4), numbers(2, 2, 3, 4, seed=5)
_BOXES = np.asarray([[0.13, 0.21, 0.79, 0.88], [-0.2, 0.06, 0.47, 1.3]])
_IMAGE, _KERNEL = numbers(1, 3, 6, 6), numbers(4, 3, 3, 3)


def _epsilon(epsilon: float = 1e-3) -> dict[str, Any]:
    return {"epsilon": epsilon}


def _drop(x: Array, bias: Array, residual: Array) -> Array:
    return x + bias + residual


ACTIVATIONS = [
    case("Gelu", _X),
    case("BiasGelu", _X, _B8),
    case("FastGelu", _X, label="plain"),
    case("FastGelu", _X, _B8, label="bias"),
    case("QuickGelu", _X, label="default"),
    case("QuickGelu", _X, alpha=1.3),
    case("GatedAdd", _X, _X[::-1], numbers(2, 4, 1)),
    case("ScaledSiLU", _X, alpha=0.7),
    case("ScaledSiLU", _X, numbers(), label="input", formula=lambda x, s: s * x * sigmoid(s * x)),
    case("BiasSplitGelu", _X, _B8, formula=lambda x, b: (x + b)[..., :4] * gelu((x + b)[..., 4:])),
    case("BiasAdd", _X, _B8, _X[::-1], formula=lambda x, b, skip: x + b + skip),
    case("BiasSoftmax", _X, _X[:1], axis=2, is_inner_broadcast=0, formula=lambda x, b: softmax(x + b)),
    case(
        "BiasSoftmax", _X, _X[:1], axis=1, is_inner_broadcast=0, label="two axes",
        formula=lambda x, b: softmax((x + b).reshape(2, 32)).reshape(2, 4, 8),
    ),
    case("BiasDropout", _X, _B8, _X[::-1], formula=_drop),
    case("GemmFastGelu", _X, numbers(8, 6), numbers(6), formula=lambda x, w, b: gelu(x @ w + b, tanh=True)),
    case("LinearAttentionGate", _X, _B8, numbers(8, seed=1), _X[::-1], outputs=(0, 1)),
]  # fmt: skip

NORMALISATIONS = [
    case("SimplifiedLayerNormalization", _X, _B8, domain="", axis=-1, **_epsilon()),
    case("SimplifiedLayerNormalization", _X, numbers(4, 8), domain="", axis=1, label="two axes"),
    case("SimplifiedLayerNormalization", _X, _B8, domain="", opset=14, label="old opset"),
    case("LayerNormalization", _X, _B8, numbers(8, seed=1), domain="", opset=14),
    case("SkipLayerNormalization", _X, 2 * _X[::-1], _B8, numbers(8, seed=1), _B8, outputs=(0, 3), **_epsilon()),
    case("SkipLayerNormalization", _X, numbers(4, 8), _B8, label="small skip"),
    case("SkipSimplifiedLayerNormalization", _X, 2 * _X[::-1], _B8, numbers(8, seed=1), outputs=(0, 3), **_epsilon()),
    case("EmbedLayerNormalization", _IDS, _IDS % 2, *_TABLES, _MASK, outputs=(0, 1, 2)),
    case("EmbedLayerNormalization", _IDS, None, *_TABLES[:2], None, *_TABLES[3:], outputs=(0, 1), label="no mask"),
    case("EmbedLayerNormalization", _IDS, None, *_TABLES[:2], None, *_TABLES[3:], None, _IDS, outputs=(0, 1),
         label="positions"),
    case("GatedRMSNorm", _X, numbers(4), _X[::-1]),
    case("GatedRMSNorm", _X, _B8, _X[::-1], activation="sigmoid", label="sigmoid"),
    case("BranchwiseRMSNorm", _X, _B8),
    case(
        "BranchwiseRMSNorm", _X, _B8, num_branches=2, label="flat",
        formula=lambda x, s: root_mean_square(x.reshape(2, 4, 2, 4), s.reshape(2, 4), 1e-5).reshape(x.shape),
    ),
    case(
        "GroupNorm", numbers(1, 3, 3, 8), _B8, numbers(8, seed=1), groups=2, activation=1,
        formula=lambda x, s, b: group_norm(x, s, b, 2, True),
    ),
    case(
        "SkipGroupNorm", numbers(1, 3, 3, 8), _B8, numbers(8, seed=1), numbers(1, 8), _B8, groups=2, activation=0,
        outputs=(0, 1),
        formula=lambda x, s, b, skip, more: (group_norm(x + skip + more, s, b, 2, False), x + skip + more),
    ),
]  # fmt: skip

PRODUCTS = [
    *[
        case(
            "FusedMatMul",
            numbers(2, 3, 4).swapaxes(1, 2) if a else numbers(2, 3, 4),
            numbers(2, 4, 5).swapaxes(1, 2) if b else numbers(2, 4, 5),
            transA=a, transB=b, alpha=0.5, label=f"{a}{b}",
        )
        for a in (0, 1)
        for b in (0, 1)
    ],
    case("FusedMatMul", numbers(4, 2, 3, 5), numbers(2, 3, 5, 6), transBatchA=1, label="batch A"),
    case("FusedMatMul", numbers(5, 2, 3, 4), numbers(2, 3, 5, 6), transBatchA=1, transA=1, label="batch A rows"),
    case("FusedMatMul", numbers(2, 3, 4, 5), numbers(5, 2, 3, 6), transBatchB=1, label="batch B"),
    case("TransposeMatMul", numbers(4, 3), numbers(4, 5), transA=1),
    case("FusedMatMulActivation", numbers(3, 4), numbers(4, 5), activation="Tanh",
         formula=lambda a, b: np.tanh(a @ b)),
    case("FusedGemm", numbers(4, 3), numbers(3, 5), numbers(5), activation="Relu"),
    case("FusedGemm", numbers(4, 3), numbers(3, 5), numbers(5), activation="LeakyRelu", activation_alpha=0.3,
         alpha=0.5, beta=2.0, label="leaky"),
    case("FusedConv", _IMAGE, _KERNEL, numbers(4), activation="Relu", pads=[1, 1, 1, 1]),
    case("FusedConv", _IMAGE, _KERNEL, numbers(4), numbers(1, 4, 4, 4), activation="Sigmoid", label="added"),
    case("FusedConv", _IMAGE, _KERNEL, activation="Clip", activation_params=[-1.0, 1.0], label="clip"),
    case("FusedConv", _IMAGE, _KERNEL, activation="HardSigmoid", activation_params=[0.3, 0.4], label="hard"),
    case("FusedConv", _IMAGE, _KERNEL, activation="LeakyRelu", activation_params=[0.3], label="leaky"),
    case("NhwcConv", _IMAGE.transpose(0, 2, 3, 1), _KERNEL.transpose(0, 2, 3, 1), numbers(4),
         formula=lambda x, w, b: conv2d(x, w.transpose(0, 3, 1, 2), b)),
    case("NhwcFusedConv", _IMAGE.transpose(0, 2, 3, 1), _KERNEL, numbers(4), activation="Tanh",
         formula=lambda x, w, b: np.tanh(conv2d(x, w, b))),
    case("ConvTransposeWithDynamicPads", _IMAGE, numbers(3, 4, 3, 3), np.asarray([1, 1, 1, 1]), numbers(4),
         strides=[2, 2]),
    case("CDist", numbers(4, 3), numbers(5, 3), metric="euclidean"),
    case("CDist", numbers(4, 3), numbers(5, 3), metric="sqeuclidean", label="squared"),
    case("ComplexMul", numbers(4, 2), numbers(4, 2, seed=1), formula=lambda a, b: np.stack(
        [a[:, 0] * b[:, 0] - a[:, 1] * b[:, 1], a[:, 0] * b[:, 1] + a[:, 1] * b[:, 0]], -1)),
    case("ComplexMulConj", numbers(4, 2), numbers(4, 2, seed=1), formula=lambda a, b: np.stack(
        [a[:, 0] * b[:, 0] + a[:, 1] * b[:, 1], a[:, 1] * b[:, 0] - a[:, 0] * b[:, 1]], -1)),
]  # fmt: skip

MOVING = [
    case("Trilu", numbers(4, 4), upper=0),
    case("GatherND", numbers(4, 3), np.asarray([[0], [1]], np.int32)),
    case("Pad", numbers(2, 3), np.asarray([0, 1, 0, 2]), mode="reflect"),
    case("ExpandDims", numbers(2, 3), np.asarray(-1, np.int32)),
    case("UnfoldTensor", numbers(2, 7, 3), dim=1, size=3, step=2),
    case("GridSample", numbers(1, 2, 5, 5), numbers(1, 3, 3, 2) * 0.4, mode="bilinear"),
    case("TorchEmbedding", numbers(5, 3), np.asarray([1, 2]), formula=lambda w, i: w[i]),
    case("CropAndResize", numbers(2, 3, 7, 6), _BOXES, np.asarray([1, 0], np.int32), np.asarray([4, 3], np.int32),
         extrapolation_value=2.0),
    case("CropAndResize", numbers(2, 3, 7, 6), _BOXES, np.asarray([1, 0], np.int32), np.asarray([1, 3], np.int32),
         label="one row"),
    case("QuantizeLinear", numbers(3, 4), np.asarray(0.02), np.asarray(3, np.int8)),
    case("DequantizeLinear", integers(3, 4, below=9).astype(np.uint16), np.asarray([0.1, 0.2, 0.3]),
         np.asarray([1, 2, 3], np.uint16), axis=0),
]  # fmt: skip

ATTENTION = [
    *[
        case("Attention", _X, *_W, num_heads=2, label=str(label), **more)
        for label, more in enumerate(({}, {"unidirectional": 1}, {"scale": 0.3}))
    ],
    case("Attention", _X, numbers(8, 28), numbers(28), num_heads=2, qkv_hidden_sizes=[8, 8, 12], label="sizes"),
    *[
        case("Attention", _X, *_W, mask, num_heads=2, unidirectional=causal, label=f"mask {causal} {mask.shape}")
        for mask in (_MASK, _MASK3, _ENDS, _STARTS)
        for causal in (0, 1)
    ],
    case("Attention", _X, *_W, _MASK, num_heads=2, mask_filter_value=-3.0, label="filter"),
    case("Attention", _X, *_W, None, None, numbers(1, 2, 4, 4), num_heads=2, label="bias"),
    case("Attention", _X, *_W, None, numbers(2, 2, 2, 3, 4), num_heads=2, unidirectional=1, outputs=(0, 1),
         label="past"),
    case("MultiHeadAttention", _Q, _K, _V, num_heads=2),
    case("MultiHeadAttention", _Q, _K[:, :4], _V[:, :4], num_heads=2, unidirectional=1, scale=0.3, label="causal"),
    case("MultiHeadAttention", _Q, _K, _V, numbers(28), integers(2, 5, below=2), num_heads=2, label="bias, mask"),
    case("MultiHeadAttention", _Q, _K, _V, None, _ENDS, num_heads=2, label="lengths"),
    case("MultiHeadAttention", _Q, _K, _V, None, integers(2, 4, 5, below=2), num_heads=2, label="square mask"),
    case("MultiHeadAttention", _Q, _K, _V, None, None, numbers(1, 1, 4, 5), num_heads=2, outputs=(0, 1, 2),
         label="added"),
    case("MultiHeadAttention", _Q, _K[:, :4], _K[:, 1:], None, None, None, *_PAST, num_heads=2, unidirectional=1,
         outputs=(0, 1, 2), label="past"),
    case("MultiHeadAttention", _Q, numbers(2, 2, 5, 4), numbers(2, 2, 5, 4, seed=1), num_heads=2, label="heads first"),
    case("MultiHeadAttention", numbers(2, 4, 2, 3, 4), num_heads=2, label="packed",
         formula=lambda x: attention_of(*x.transpose(3, 0, 2, 1, 4))),
    case("MultiHeadAttention", _Q, numbers(2, 5, 2, 2, 4), num_heads=2, label="packed keys",
         formula=lambda q, kv: attention_of(q.reshape(2, 4, 2, 4).transpose(0, 2, 1, 3), *kv.transpose(3, 0, 2, 1, 4))),
]  # fmt: skip


def _grouped(
    label: str,
    *,
    packed: bool = False,
    past: bool = True,
    more: Sequence[Array | None] = (),
    lengths: Sequence[int] = (4, 4),
    **attributes: Any,
) -> Case:
    q, k, v = numbers(2, 4, 64, seed=1), numbers(2, 4, 32, seed=2), numbers(2, 4, 32, seed=3)
    operands: list[Array | None] = [np.concatenate([q, k, v], -1), None, None] if packed else [q, k, v]
    operands += [np.zeros((2, 2, 0, 16))] * 2 if past else [None, None]
    operands += [np.asarray(lengths, np.int32) - np.int32(1), np.asarray(4, np.int32), *more]
    return case(
        "GroupQueryAttention", *operands, num_heads=4, kv_num_heads=2, outputs=(0, 1, 2), label=label, **attributes
    )


_ANGLES = numbers(10, 8)
GROUPED = [
    _grouped("plain"),
    _grouped("no past", past=False),
    _grouped("packed", packed=True, scale=0.2),
    _grouped("padded", lengths=(2, 4)),
    _grouped("padded, packed", lengths=(3, 1), packed=True, past=False),
    _grouped("padded, rotary", lengths=(2, 3), more=[np.cos(_ANGLES), np.sin(_ANGLES)], do_rotary=1),
    _grouped("padded, window", lengths=(4, 3), local_window_size=2),
    _grouped("padded, a window in the padding", lengths=(1, 2), local_window_size=2),
    _grouped("padded, smooth", lengths=(2, 4), smooth_softmax=1),
    _grouped("softcap", softcap=2.0),
    _grouped("window", local_window_size=2),
    _grouped("smooth", smooth_softmax=1),
    _grouped("sink", more=[None, None, None, None, numbers(4)]),
    _grouped("bias", more=[None, None, None, numbers(2, 4, 4, 4)]),
    _grouped("rotary", more=[np.cos(_ANGLES), np.sin(_ANGLES)], do_rotary=1),
    _grouped(
        "positions", more=[np.cos(_ANGLES), np.sin(_ANGLES), np.asarray([[3, 4, 5, 6], [5, 6, 7, 8]])], do_rotary=1
    ),
    _grouped("both ways", causal=0),
    _grouped("both ways, padded", causal=0, lengths=(4, 2)),
    _grouped("normal heads", more=[None] * 7 + [numbers(16), numbers(16, seed=1)], formula=group_query_attention),
    _grouped("rotary pairs", more=[np.cos(_ANGLES), np.sin(_ANGLES)], do_rotary=1, rotary_interleaved=1),
]


def _turns(size: int) -> tuple[Array, Array]:
    return np.cos(numbers(10, size)), np.sin(numbers(10, size))


_PLACES = np.asarray([[0, 1, 2, 3], [2, 3, 4, 5]])
ROTARY = [
    *[
        found
        for pairs in (0, 1)
        for found in (
            case("RotaryEmbedding", numbers(2, 4, 16), _PLACES, *_turns(4), interleaved=pairs, label=f"{pairs}"),
            case("RotaryEmbedding", numbers(2, 4, 16), np.asarray([3]), *_turns(4), interleaved=pairs,
                 label=f"offset {pairs}"),
            case("RotaryEmbedding", numbers(2, 2, 4, 8), _PLACES, *_turns(4), interleaved=pairs, label=f"4d {pairs}"),
            case("RotaryEmbedding", numbers(2, 4, 16), _PLACES, *_turns(2), interleaved=pairs, num_heads=2,
                 rotary_embedding_dim=4, label=f"part {pairs}"),
        )
    ],
    case(
        "GemmaRotaryEmbedding", numbers(2, 4, 8), *(numbers(2, 3, 4, 8, seed=s) for s in range(4)), outputs=(0, 1),
        formula=lambda a, q, qr, k, kr: tuple(
            x * np.cos(a)[:, None] + y * np.sin(a)[:, None] for x, y in ((q, qr), (k, kr))
        ),
    ),
    case(
        "GatedRelativePositionBias", numbers(2, 4, 6), numbers(6), numbers(1, 3, 4, 4), numbers(2, 8), numbers(8),
        numbers(1, 3, 1, 1), num_heads=3, formula=gated_bias,
    ),
]  # fmt: skip

CASES = [*ACTIVATIONS, *NORMALISATIONS, *PRODUCTS, *MOVING, *ATTENTION, *GROUPED, *ROTARY]
assert math.isfinite(sum(float(np.sum(a)) for c in CASES for a in c.inputs if a is not None))
