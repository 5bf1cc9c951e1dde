"""Which operators outside of ai.onnx are written as standard ones, and which cannot be."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence

import onnx_ir as ir

from ckplan.model.contrib.emitter import Emitter
from ckplan.operators.record import MICROSOFT as MICROSOFT

#: Returns one value per output of the node; None for outputs that nobody reads.
Expansion = Callable[[Emitter], Sequence[ir.Value | None]]

_EXPANSIONS: dict[str, Expansion] = {}

#: Operators of com.microsoft that onnxruntime registers in the domain of ai.onnx although ONNX has them not, or not
#: from that version on: the first version in which they are ONNX's own.
ADOPTED: dict[str, int | None] = {"SimplifiedLayerNormalization": None, "LayerNormalization": 17}

_QUANTISED = "its weights or activations are quantised; train the model as it was before quantisation"
_DECODING = "it decodes step by step; export the model for prompts, without a cache of keys and values"
_PACKED = "it removes padding at run time; optimise the model without that"
_SEARCH = "it searches for tokens; train the model that it calls"
_CHOICE = "a choice has no derivative"
_OWN = "it has no form in standard operators"

#: Operators of com.microsoft that quantise, or calculate with quantised numbers.
QUANTISED = frozenset(
    {
        "DequantizeBFP",
        "DequantizeWithOrder",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "GatherBlockQuantized",
        "GemmFloat8",
        "MatMulBlockQuantizedFp4Weight",
        "MatMulBlockQuantizedFp8Weight",
        "MatMulBnb4",
        "MatMulFpQ4",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "MatMulNBitsMlp",
        "MatMulNBitsQkv",
        "MulInteger",
        "NhwcMaxPool",
        "QAttention",
        "QEmbedLayerNormalization",
        "QGemm",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearConv",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearReduceMean",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QLinearWhere",
        "QMoE",
        "QOrderedAttention",
        "QOrderedGelu",
        "QOrderedLayerNormalization",
        "QOrderedLongformerAttention",
        "QOrderedMatMul",
        "QuantizeBFP",
        "QuantizeWithOrder",
        "ReduceSumInteger",
    }
)

#: Those of them that have a rule: weights beside which a model is trained, by its norms or by adapters.
_PASSING = {"GatherBlockQuantized", "MatMulNBits"}

#: Operators of com.microsoft that are not differentiated, and why.
REFUSED: dict[str, str] = {
    **dict.fromkeys(sorted(QUANTISED - _PASSING), _QUANTISED),
    **dict.fromkeys(("DecoderAttention", "DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention"), _DECODING),
    **dict.fromkeys(
        ("PackedAttention", "PackedMultiHeadAttention", "PagedAttention", "RemovePadding", "RestorePadding"), _PACKED
    ),
    **dict.fromkeys(("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"), _SEARCH),
    **dict.fromkeys(("DynamicTimeWarping", "Unique"), _CHOICE),
    **dict.fromkeys(
        (
            "AttnLSTM",
            "EPContext",
            "Irfft",
            "LongformerAttention",
            "MaxpoolWithMask",
            "MoE",
            "RelativePositionBias",
            "Rfft",
            "SampleOp",
            "Snpe",
            "SparseAttention",
            "SparseToDenseMatMul",
            "WordConvEmbedding",
        ),
        _OWN,
    ),
}


def expansion(*op_types: str) -> Callable[[Expansion], Expansion]:
    """Register the decorated function as what these operators of com.microsoft are in standard operators.

    Raises:
        ValueError: an operator was registered before.
    """

    def register(function: Expansion) -> Expansion:
        for op_type in op_types:
            if op_type in _EXPANSIONS:
                raise ValueError(f"two expansions of {op_type}")
            _EXPANSIONS[op_type] = function
        return function

    return register


def expansion_rules() -> dict[str, Expansion]:
    """Return all expansions, by operator of com.microsoft."""
    _collect()
    return dict(sorted(_EXPANSIONS.items()))


@functools.cache
def _collect() -> None:
    package = importlib.import_module("ckplan.model.contrib.expansions")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
