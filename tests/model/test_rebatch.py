"""Sizes of the old batch in Reshape, Expand, Concat and recurrent states follow the new one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ckplan.errors import ModelError
from ckplan.model import load
from ckplan.model.sizes.rebatch import rebind_target
from tests.model.models import Arrays, assert_normal, normal, parse, run, write


@pytest.mark.parametrize(
    ("target", "before", "now", "expected"),
    [
        ([1, 2048], [1, 2048, 1, 1], [16, 2048, 1, 1], [16, 2048]),
        ([1, -1], [1, 8, 4], [16, 8, 4], [16, -1]),
        ([1, -1, 8], [1, 64], [16, 64], [16, -1, 8]),
        ([-1, 32], [1, 8, 4], [16, 8, 4], [-1, 32]),
        ([0, -1], [1, 8, 4], [16, 8, 4], [0, -1]),
        ([1, 1, 8], [1, 8], [16, 8], [16, 1, 8]),
        # sequence-first attention: (length, batch, width) to (length, batch x heads, width / heads)
        ([17, 4, 8], [17, 1, 32], [17, 16, 32], [17, 64, 8]),
        ([17, 32], [17, 1, 32], [17, 16, 32], [272, 32]),
        ([17, 1, 32], [17, 32], [272, 32], [17, 16, 32]),
        ([1, 4, 17, 8], [4, 17, 8], [64, 17, 8], [16, 4, 17, 8]),
        # the input does not depend on the batch
        ([1, 6], [2, 3], [2, 3], [1, 6]),
    ],
)
def test_targets(target: list[int], before: list[int], now: list[int], expected: list[int]) -> None:
    rebound = rebind_target(target, before, now, 1, 16)
    assert rebound is not None
    assert rebound[0] == expected


def test_a_target_that_cannot_hold_the_input() -> None:
    assert rebind_target([1, 25088], [1, 512, 7, 7], [1, 512, 8, 8], 1, 1) is None
    assert rebind_target([3, 5], None, [7, 2], 1, 1) is None


@given(
    rest=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    old=st.integers(1, 4),
    new=st.integers(1, 9),
    flat=st.booleans(),
)
def test_a_leading_batch_stays_leading(rest: list[int], old: int, new: int, flat: bool) -> None:
    assume(old != new)
    tail = [math.prod(rest)] if flat else [*reversed(rest)]
    rebound = rebind_target([old, *tail], [old, *rest], [new, *rest], old, new)
    assert rebound is not None
    target, _ = rebound
    data = np.arange(new * math.prod(rest)).reshape([new, *rest])
    np.testing.assert_array_equal(data.reshape(target), data.reshape([new, *tail]))


def rebatched(folder: Path, text: str, weights: Arrays, batch: int = 3) -> tuple[list[str], float]:
    """Load at a larger batch; the notes, and how far the result is from that of the file run once per sample."""
    proto = parse(text, weights)
    shape = tuple(dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim)
    data = normal(1, batch, *shape[1:])
    forward = load(write(proto, folder), shapes={"x": data.shape})
    assert_normal(forward.model)
    expected = np.concatenate([run(proto, {"x": sample[None]})[0] for sample in data])
    return list(forward.notes), float(np.abs(run(forward.model, {"x": data})[0] - expected).max())


ATTENTION = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 5, 8] x) => (float[1, 5, 8] y) {
    t = Transpose <perm = [1, 0, 2]> (x)
    q = MatMul(t, w)
    heads = Reshape(q, split)
    h = Transpose <perm = [1, 0, 2]> (heads)
    k = Transpose <perm = [0, 2, 1]> (h)
    s = MatMul(h, k)
    p = Softmax <axis = -1> (s)
    o = MatMul(p, h)
    u = Transpose <perm = [1, 0, 2]> (o)
    f = Reshape(u, join)
    v = MatMul(f, w)
    r = Reshape(v, back)
    y = Transpose <perm = [1, 0, 2]> (r)
}"""


def test_sequence_first_attention_is_checked_by_a_run(tmp_path: Path) -> None:
    weights = {
        "w": normal(0, 8, 8),
        "split": np.array([5, 2, 4]),
        "join": np.array([5, 8]),
        "back": np.array([5, 1, 8]),
    }
    notes, error = rebatched(tmp_path, ATTENTION, weights)
    assert error < 1e-6
    assert any("checked by a run" in note for note in notes)


def test_a_model_that_mixes_its_batch_is_refused(tmp_path: Path) -> None:
    # The sum over the merged axis mixes samples as soon as there are several.
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 4, 6] x) => (float[] y) {
        t = Transpose <perm = [1, 0, 2]> (x)
        r = Reshape(t, target)
        s = Softmax <axis = 0> (r)
        b = Reshape(s, back)
        y = Transpose <perm = [1, 0, 2]> (b)
    }"""
    weights = {"target": np.array([4, 6]), "back": np.array([4, 1, 6])}
    with pytest.raises(ModelError, match="dynamic axes"):
        load(write(parse(text, weights), tmp_path), shapes={"x": (3, 4, 6)})


def test_class_token_is_broadcast(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 5, 4] x) => (float[1, 6, 4] y) { c = Concat <axis = 1> (token, x)  y = Relu(c) }"""
    notes, error = rebatched(tmp_path, text, {"token": normal(0, 1, 1, 4)})
    assert error == 0
    assert any("broadcast to [3, 1, 4]" in note for note in notes)


def test_initial_states_are_broadcast(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 5, 4] x) => (float[] y) {
        t = Transpose <perm = [1, 0, 2]> (x)
        h, last = GRU <hidden_size = 3> (t, w, r, "", "", h0)
        s = Squeeze(h, axis)
        y = Transpose <perm = [1, 0, 2]> (s)
    }"""
    weights = {
        "w": normal(0, 1, 9, 4), "r": normal(1, 1, 9, 3), "h0": normal(2, 1, 1, 3), "axis": np.array([1]),
    }  # fmt: skip
    _, error = rebatched(tmp_path, text, weights)
    assert error < 1e-6


def test_resize_to_fixed_sizes(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 2, 4, 4] x) => (float[] y) { y = Resize <mode = "linear"> (x, "", "", sizes) }"""
    _, error = rebatched(tmp_path, text, {"sizes": np.array([1, 2, 8, 8])})
    assert error < 1e-6


def test_larger_image_than_the_classifier_takes(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 2, 4, 4] x) => (float[] y) { r = Reshape(x, target)  y = MatMul(r, w) }"""
    weights = {"target": np.array([1, 32]), "w": normal(0, 32, 3)}
    with pytest.raises(ModelError, match=r"Reshape.*baked in"):
        load(write(parse(text, weights), tmp_path), shapes={"x": (1, 2, 8, 8)})
