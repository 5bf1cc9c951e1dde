"""What is done to the scores of an attention before it weighs the values: masks, and a sink in the softmax.

The masks are added, as onnxruntime does: where all keys are masked, all count again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ckplan.model.contrib.emitter import Emitter, NotExpandableError


def key_mask(e: Emitter, mask: ir.Value, shape: Sequence[int], like: ir.Value, filtered: float) -> ir.Value:
    """Emit what a mask adds to the scores, broadcast to (B, N, S, T).

    Args:
        e: the emitter.
        mask: (B, T) or (B, S, T) with 0 where keys are hidden; (B) number of keys that are seen; (2 B) the same and
            behind it the first key that is seen.
        shape: (B, N, S, T).
        like: a value of the scores' element type.
        filtered: what is added where keys are hidden.

    Raises:
        NotExpandableError: the mask has another form.
    """
    batch, _, length, keys = shape
    have = e.shape(mask)
    zero = np.zeros((), _dtype(like))
    hidden = np.asarray(max(filtered, float(_lowest(like))), _dtype(like))
    if have in ((batch, keys), (batch, length, keys)):
        seen = e.reshape(mask, [batch, 1, have[1] if len(have) == 3 else 1, keys])
        return e.Where(e.Greater(seen, 0), zero, hidden)  # type: ignore[no-any-return]
    if len(have) == 1 and have[0] in (batch, 2 * batch):
        assert mask.dtype is not None
        places = np.arange(keys, dtype=mask.dtype.numpy()).reshape(1, 1, 1, keys)
        ends = e.reshape(e.slice(mask, 0, batch, 0), [batch, 1, 1, 1])
        seen = e.Less(e.literal(places), ends)
        if have[0] == 2 * batch:
            starts = e.reshape(e.slice(mask, batch, 2 * batch, 0), [batch, 1, 1, 1])
            seen = e.And(seen, e.GreaterOrEqual(e.literal(places), starts))
        return e.Where(seen, zero, hidden)  # type: ignore[no-any-return]
    raise NotExpandableError(f"its mask of shape {list(have)} has no form in standard operators here")


def causal(e: Emitter, shape: Sequence[int], like: ir.Value, known: int, window: int) -> ir.Value:
    """Return what hides from each query the keys behind its own, and those ``window`` or more before it.

    Args:
        e: the emitter.
        shape: (B, N, S, T).
        like: a value of the scores' element type.
        known: how many keys stand before that of the first query.
        window: how many keys a query sees, its own included; all for 0 and less.
    """
    length, keys = shape[2:]
    behind = np.arange(keys)[None, :] - (np.arange(length)[:, None] + known)
    hidden = behind > 0
    if window > 0:
        hidden |= behind <= -window
    return e.literal(np.where(hidden, _lowest(like), 0).astype(_dtype(like)))


def softmax_with_sink(e: Emitter, scores: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Emit the softmax over keys; a sink (one number a head, or 0) takes its share of the sum and gives nothing."""
    sink = e.input(11) if e.node.op_type == "GroupQueryAttention" else None
    smooth = e.int_attribute("smooth_softmax") > 0
    if sink is None and not smooth:
        return e.Softmax(scores, axis=-1)  # type: ignore[no-any-return]
    batch, heads, length, keys = shape
    drain = e.literal(np.zeros((1, 1, 1, 1), _dtype(scores))) if sink is None else e.reshape(sink, [1, heads, 1, 1])
    column = e.Expand(drain, np.asarray([batch, heads, length, 1], dtype=np.int64))
    return e.slice(e.Softmax(e.Concat(scores, column, axis=-1), axis=-1), 0, keys, 3)


def _dtype(like: ir.Value) -> np.dtype[Any]:
    assert like.dtype is not None
    return np.dtype(like.dtype.numpy())


def _lowest(like: ir.Value) -> Any:
    """Return the lowest finite number of an element type, those that numpy does not know by itself included."""
    return ml_dtypes.finfo(_dtype(like)).min  # type: ignore[no-untyped-call]
