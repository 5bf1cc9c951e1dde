"""Attributes that are true or false become 0 or 1, as onnxruntime takes other numbers.

ONNX types them as integers and does not say what other numbers mean. onnxruntime takes any but 0 for true in some
kernels, and 1 alone in others (1.31.1, CPU; each was tried). A gradient rule that turned such a number around would
compute something else. Likewise a bound of attention scores that is below zero is none to it.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.model.nested_graphs import written_nodes
from ckplan.operators.table import REDUCTIONS

_TRUE_IF_NOT_0 = {
    **dict.fromkeys(("FusedGemm", "Gemm"), ("transA", "transB")),
    **dict.fromkeys(("ArgMax", "ArgMin"), ("select_last_index",)),
    "AveragePool": ("count_include_pad",),
    **dict.fromkeys(("AffineGrid", "GridSample"), ("align_corners",)),
    "DFT": ("inverse", "onesided"),
    "GRU": ("linear_before_reset",),
    "LSTM": ("input_forget",),
    "STFT": ("onesided",),
    "Trilu": ("upper",),
}
_TRUE_IF_1 = {
    **dict.fromkeys(("ArgMax", "ArgMin"), ("keepdims",)),
    **dict.fromkeys(REDUCTIONS, ("keepdims", "noop_with_empty_axes")),
    "Attention": ("is_causal",),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), ("ceil_mode",)),
    "Reshape": ("allowzero",),
    "RotaryEmbedding": ("interleaved",),
    "TopK": ("largest", "sorted"),
}
_DOMAINS = ("", "com.microsoft")


def write_flags(model: ir.Model) -> None:
    """Write 0 or 1 for what onnxruntime takes for false or true, in place, in functions as well."""
    for node in written_nodes(model):
        if node.domain not in _DOMAINS:
            continue
        for name in _TRUE_IF_NOT_0.get(node.op_type, ()):
            _write(node, name, true_if_1=False)
        for name in _TRUE_IF_1.get(node.op_type, ()):
            _write(node, name, true_if_1=True)
        bound = node.attributes.get("softcap")
        if bound is not None and not bound.is_ref() and bound.as_float() < 0:
            del node.attributes["softcap"]


def _write(node: ir.Node, name: str, *, true_if_1: bool) -> None:
    """Write an attribute as 0 or 1; what a function's caller fills in is no number yet."""
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.INT:
        return
    number = attribute.as_int()
    if number not in (0, 1):
        node.attributes[name] = ir.AttrInt64(name, int(not true_if_1))
