"""Attention operators, as products and a softmax.

Shapes: B batch, N heads, G heads of keys and values, S length of queries, T of keys and values, H size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.model.contrib.emitter import Emitter, NotExpandableError, Results
from ckplan.model.contrib.expansions.normalisation import root_mean_square
from ckplan.model.contrib.expansions.rotary import rotate, rows_of
from ckplan.model.contrib.expansions.scores import causal, key_mask, softmax_with_sink
from ckplan.model.contrib.registry import expansion


@expansion("Attention")
def attention(e: Emitter) -> Results:
    """Projection of one input to queries, keys and values, then attention.

    Inputs: input, weights, bias, mask_index, past, attention_bias, past_sequence_length.
    """
    e.refuse(6, because="its cache of keys and values is a shared buffer")
    if e.int_attribute("do_rotary"):
        raise NotExpandableError("it rotates queries and keys itself; export with RotaryEmbedding nodes")
    x, past, heads = e.required(0), e.input(4), e.int_attribute("num_heads")
    projected = e.plus(e.MatMul(x, e.required(1)), e.input(2))
    width = e.shape(projected)[-1]
    sizes = e.ints_attribute("qkv_hidden_sizes") or (width // 3,) * 3
    parts = e.Split(projected, np.asarray(sizes, dtype=np.int64), axis=-1, _outputs=3)
    q, k, v = (_heads_first(e, part, heads) for part in parts)
    present = None
    if past is not None:
        before = [e.reshape(e.slice(past, i, i + 1, 0), e.shape(past)[1:]) for i in range(2)]
        k, v = (e.Concat(old, new, axis=2) for old, new in zip(before, (k, v), strict=True))
    if e.reads_output(1):
        present = e.Concat(*(e.Unsqueeze(t, np.asarray([0])) for t in (k, v)), axis=0)
    known = 0 if past is None else e.shape(past)[3]
    y = attend(e, q, k, v, mask=e.input(3), bias=e.input(5), known=known)
    return [_heads_last(e, y), present]


@expansion("MultiHeadAttention")
def multi_head_attention(e: Emitter) -> Results:
    """Attention of queries, keys and values that were projected before.

    Inputs: query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value, past_sequence_length,
    cache_indirection.
    """
    e.refuse(8, 9, because="its cache of keys and values is a shared buffer")
    heads = e.int_attribute("num_heads")
    query, key, value, bias = e.required(0), e.input(1), e.input(2), e.input(3)
    if len(e.shape(query)) == 5:
        packed = [_unpacked(e, query, i) for i in range(3)]
    elif key is not None and len(e.shape(key)) == 5:
        packed = [_heads_first(e, query, heads), _unpacked(e, key, 0), _unpacked(e, key, 1)]
    elif key is not None and value is not None:
        packed = [t if len(e.shape(t)) == 4 else _heads_first(e, t, heads) for t in (query, key, value)]
    else:
        raise NotExpandableError("lacks its key or value")
    if bias is not None:
        packed = _with_bias(e, packed, bias, key)
    q, k, v = packed
    past, known = e.input(6), 0
    if past is not None and e.input(7) is not None:
        k, v, known = e.Concat(past, k, axis=2), e.Concat(e.input(7), v, axis=2), e.shape(past)[2]
    y = attend(e, q, k, v, mask=e.input(4), bias=e.input(5), known=known)
    return [_heads_last(e, y), k, v]


@expansion("GroupQueryAttention")
def group_query_attention(e: Emitter) -> Results:
    """Attention where several heads of queries share one of keys and values, for prompts without a cache.

    Inputs: query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache,
    position_ids, attention_bias, head_sink, k_scale, v_scale, q_norm_weight, k_norm_weight. Padding stands on the
    right, where no valid query of a causal one sees it; other queries see valid keys only, as in onnxruntime, which of
    a prompt's positions reads the first alone.
    """
    e.refuse(12, 13, because="its cache of keys and values is quantised")
    for past in (e.input(3), e.input(4)):
        if past is not None and 0 not in e.shape(past):
            raise NotExpandableError("it has a cache; give past keys and values the length 0 (--dim, --shape)")
    heads, groups = e.int_attribute("num_heads"), e.int_attribute("kv_num_heads")
    query, key, value = e.required(0), e.input(1), e.input(2)
    if key is None or value is None:
        size = e.shape(query)[-1] // (heads + 2 * groups)
        sizes = np.asarray([heads * size, groups * size, groups * size], dtype=np.int64)
        query, key, value = e.Split(query, sizes, axis=-1, _outputs=3)
    q, k, v = _heads_first(e, query, heads), _heads_first(e, key, groups), _heads_first(e, value, groups)
    if e.input(14) is not None:
        epsilon = e.float_attribute("qk_norm_epsilon", 1e-6)
        q, k = (root_mean_square(e, t, e.required(index), [-1], epsilon)[0] for t, index in ((q, 14), (k, 15)))
    if e.int_attribute("do_rotary"):
        interleaved = bool(e.int_attribute("rotary_interleaved"))
        length, positions = e.shape(q)[2], e.input(9)
        first = None if positions is None else e.slice(e.reshape(positions, [-1]), 0, 1, 0)
        cos, sin = (rows_of(e, e.required(index), first, length) for index in (7, 8))
        q, k = (rotate(e, t, cos, sin, interleaved) for t in (q, k))
    lengths = e.input(5)  # less one
    seen = None if lengths is None else e.reshape(e.Add(lengths, 1), [-1])
    window = e.int_attribute("local_window_size", -1)
    is_causal = bool(e.int_attribute("causal", 1))
    y = attend(e, q, k, v, bias=e.input(10), is_causal=is_causal, window=window, lengths=seen)
    return [_heads_last(e, y), k, v]


def attend(
    e: Emitter,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    mask: ir.Value | None = None,
    bias: ir.Value | None = None,
    is_causal: bool | None = None,
    window: int = -1,
    known: int = 0,
    lengths: ir.Value | None = None,
) -> ir.Value:
    """Emit softmax(scale q k^T + bias + masks) v.

    Args:
        e: the emitter; scale, softcap and the like are attributes of its node.
        q: (B, N, S, H).
        k: (B, G, T, H); N is a multiple of G.
        v: (B, G, T, any).
        mask: integers in one of the forms of onnxruntime, see :func:`key_mask`.
        bias: broadcast to (B, N, S, T), added to the scores.
        is_causal: whether a query sees only keys up to its own place; the default says the node.
        window: how many keys a query sees, its own included; all for -1.
        known: how many keys stand before that of the first query.
        lengths: (B), how many keys there are; others hide nothing more from a query that sees none.

    Returns:
        (B, N, S, any).

    Raises:
        NotExpandableError: a mask has a form that is not known, or it is causal with more keys than queries.
    """
    batch, heads, length, size = e.shape(q)
    groups, keys = e.shape(k)[1:3]
    shape = [batch, heads, length, keys]
    factor = e.float_attribute("scale", 0.0) or 1.0 / math.sqrt(size)
    # Queries of one group stand below each other: one product, without copies of the keys.
    rows = e.reshape(e.scale(q, factor), [batch, groups, heads // groups * length, size])
    scores = e.reshape(e.MatMul(rows, e.transpose(k, [0, 1, 3, 2])), shape)
    softcap = e.float_attribute("softcap", 0.0)
    if softcap:
        scores = e.Mul(e.Tanh(e.Mul(scores, 1 / softcap)), softcap)
    scores = e.plus(scores, bias)
    filtered = e.float_attribute("mask_filter_value", -10000.0)
    if mask is not None:
        scores = e.Add(scores, key_mask(e, mask, shape, scores, filtered))
    if is_causal if is_causal is not None else e.int_attribute("unidirectional"):
        if length + known != keys:
            raise NotExpandableError("it is causal with more keys than queries, where kernels differ")
        hidden = causal(e, shape, scores, known, window)
        if lengths is not None:
            hidden = e.Min(hidden, key_mask(e, lengths, shape, scores, -math.inf))
        scores = e.Add(scores, hidden)
    elif lengths is not None:
        scores = e.Add(scores, key_mask(e, lengths, shape, scores, -math.inf))
    probabilities = softmax_with_sink(e, scores, shape)
    y = e.MatMul(e.reshape(probabilities, [batch, groups, heads // groups * length, keys]), v)
    y = e.reshape(y, [batch, heads, length, e.shape(v)[-1]])
    return y if lengths is None or not 0 < window < length else _of_shown(e, y, lengths, window)


def _of_shown(e: Emitter, y: ir.Value, lengths: ir.Value, window: int) -> ir.Value:
    """Put zeros where a query's window lies in the padding: a softmax of nothing has every key.

    So does onnxruntime, but for those of a softcap, a bias or a sink, where such a query sees keys before its window.
    """
    batch, _, length, _ = e.shape(y)
    assert lengths.dtype is not None
    assert y.dtype is not None
    first = np.arange(1 - window, length + 1 - window, dtype=lengths.dtype.numpy()).reshape(1, 1, length, 1)
    is_shown = e.Less(e.literal(first), e.reshape(lengths, [batch, 1, 1, 1]))
    return e.Where(is_shown, y, np.zeros((), y.dtype.numpy()))  # type: ignore[no-any-return]


def _heads_first(e: Emitter, value: ir.Value, heads: int) -> ir.Value:
    """(B, S, N H) to (B, N, S, H)."""
    batch, length, width = e.shape(value)
    return e.transpose(e.reshape(value, [batch, length, heads, width // heads]), [0, 2, 1, 3])


def _heads_last(e: Emitter, value: ir.Value) -> ir.Value:
    """(B, N, S, H) to (B, S, N H)."""
    batch, heads, length, size = e.shape(value)
    return e.reshape(e.transpose(value, [0, 2, 1, 3]), [batch, length, heads * size])


def _unpacked(e: Emitter, packed: ir.Value, index: int) -> ir.Value:
    """Take queries, keys or values out of (B, S, N, 2 or 3, H), as (B, N, S, H)."""
    batch, length, heads, _, size = e.shape(packed)
    part = e.reshape(e.slice(packed, index, index + 1, 3), [batch, length, heads, size])
    return e.transpose(part, [0, 2, 1, 3])


def _with_bias(e: Emitter, packed: Sequence[ir.Value], bias: ir.Value, key: ir.Value | None) -> list[ir.Value]:
    """Add the biases of the three projections, which stand behind each other in one vector."""
    sizes = [e.shape(t)[1] * e.shape(t)[3] for t in packed]
    if key is not None and len(e.shape(key)) != 3:
        raise NotExpandableError("it has a bias although keys and values are packed or cached")
    parts = e.Split(bias, np.asarray(sizes, dtype=np.int64), axis=0, _outputs=3)
    shapes = [[e.shape(t)[1], 1, e.shape(t)[3]] for t in packed]
    return [e.Add(t, e.reshape(part, shape)) for t, part, shape in zip(packed, parts, shapes, strict=True)]


@expansion("GatedRelativePositionBias")
def gated_relative_position_bias(e: Emitter) -> Results:
    """The bias of WavLM: a relative position bias times a gate that the queries compute.

    Inputs: query_layer (B, S, N H), query_bias, rel_pos (1, N, S, S), weight (H, D), bias (D), eco_a (1, N, 1, 1).
    """
    e.refuse(6, because="it removes padding at run time; optimise the model without that")
    queries = e.Add(e.required(0), e.required(1))
    split = _heads_first(e, queries, e.int_attribute("num_heads"))
    gates = e.Add(e.MatMul(split, e.required(3)), e.required(4))
    batch, heads, length, width = e.shape(gates)
    halves = e.reshape(gates, [batch, heads, length, 2, width // 2])
    opened = e.Sigmoid(e.ReduceSum(halves, np.asarray([4]), keepdims=0))
    update, reset = e.Split(opened, axis=-1, num_outputs=2, _outputs=2)
    gate = e.Add(e.Mul(update, e.Sub(e.Mul(reset, e.required(5)), 1.0)), 2.0)
    return [e.Mul(gate, e.required(2))]
