"""Rotary position embeddings."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.model.contrib.emitter import Emitter, NotExpandableError, Results
from ckplan.model.contrib.registry import expansion


@expansion("RotaryEmbedding")
def rotary_embedding(e: Emitter) -> Results:
    """Rotate pairs of elements of each head by angles that depend on the position.

    Inputs: input (B, S, N H) or (B, N, S, H), position_ids (1) or (B, S), cos_cache and sin_cache (M, half a head).
    """
    if e.int_attribute("is_packed_batching"):
        raise NotExpandableError("its batch is packed")
    if e.float_attribute("scale", 1.0) != 1.0:
        raise NotExpandableError("its 'scale' is not 1, which onnxruntime's CPU kernel does not support")
    x, positions, cache = e.required(0), e.required(1), e.required(2)
    shape = e.shape(x)
    heads_first = len(shape) == 4
    if not heads_first:
        part = e.int_attribute("rotary_embedding_dim")
        size = shape[2] // e.int_attribute("num_heads") if part else 2 * e.shape(cache)[1]
        x = e.transpose(e.reshape(x, [*shape[:2], shape[2] // size, size]), [0, 2, 1, 3])
    length = e.shape(x)[2]
    cos, sin = (rows_of(e, e.required(index), positions, length) for index in (2, 3))
    y = rotate(e, x, cos, sin, bool(e.int_attribute("interleaved")))
    return [y if heads_first else e.reshape(e.transpose(y, [0, 2, 1, 3]), shape)]


@expansion("GemmaRotaryEmbedding")
def gemma_rotary_embedding(e: Emitter) -> Results:
    """Queries and keys times the cosine of the angles, plus their rotated halves times the sine."""
    angles, q = e.required(0), e.required(1)
    over_heads = np.asarray([1], dtype=np.int64)
    cos, sin = (e.Unsqueeze(e.cast(e.emit(f, angles), q.dtype), over_heads) for f in ("Cos", "Sin"))
    pairs = ((q, e.required(2)), (e.required(3), e.required(4)))
    return [e.Add(e.Mul(value, cos), e.Mul(rotated, sin)) for value, rotated in pairs]


def rows_of(e: Emitter, cache: ir.Value, positions: ir.Value | None, length: int) -> ir.Value:
    """Return the cache's rows for each position, as (1 or B, 1, S, half of what is rotated).

    Args:
        e: the emitter.
        cache: (M, half).
        positions: (B, S); one number, the first position; None for 0.
        length: S.
    """
    half = e.shape(cache)[1]
    if positions is None:
        return e.reshape(e.slice(cache, 0, length, 0), [1, 1, length, half])
    if int(np.prod(e.shape(positions))) == 1 and len(e.shape(positions)) == 1:
        assert positions.dtype is not None
        positions = e.Add(positions, e.literal(np.arange(length, dtype=positions.dtype.numpy())))
        return e.reshape(e.Gather(cache, positions, axis=0), [1, 1, length, half])
    batch = e.shape(positions)[0]
    return e.reshape(e.Gather(cache, positions, axis=0), [batch, 1, length, half])


def rotate(e: Emitter, x: ir.Value, cos: ir.Value, sin: ir.Value, interleaved: bool) -> ir.Value:
    """Emit (a cos - b sin, b cos + a sin) for the pairs (a, b) of each head; what is behind them stays.

    Args:
        e: the emitter.
        x: (B, N, S, H).
        cos: (1 or B, 1, S, half), half at most H / 2.
        sin: the same.
        interleaved: whether the elements of a pair are neighbours, or ``half`` apart.
    """
    *outer, size = e.shape(x)
    half = e.shape(cos)[-1]
    turned, rest = x, None
    if 2 * half != size:
        turned, rest = e.slice(x, 0, 2 * half, 3), e.slice(x, 2 * half, size, 3)
    if interleaved:
        pairs = e.Split(e.reshape(turned, [*outer, half, 2]), axis=-1, num_outputs=2, _outputs=2)
        a, b = (e.reshape(part, [*outer, half]) for part in pairs)
    else:
        a, b = e.Split(turned, axis=-1, num_outputs=2, _outputs=2)
    real, imaginary = e.Sub(e.Mul(a, cos), e.Mul(b, sin)), e.Add(e.Mul(b, cos), e.Mul(a, sin))
    if interleaved:
        columns = [e.reshape(part, [*outer, half, 1]) for part in (real, imaginary)]
        y = e.reshape(e.Concat(*columns, axis=-1), [*outer, 2 * half])
    else:
        y = e.Concat(real, imaginary, axis=-1)
    return y if rest is None else e.Concat(y, rest, axis=-1)
