"""Rotary embeddings that are written out in arithmetic are one node again, and rotated back by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import (
    Array,
    check_finite_differences,
    infer,
    node_model,
    onnxruntime_run,
    reference,
    to_overridable,
    values,
)
from tests.autodiff.written_formulas import between_products, forward_operators

BATCH, HEADS, LENGTH, SIZE = 2, 3, 5, 4
FED = (BATCH, HEADS, LENGTH, 6)
EACH = np.array([1.0, 0.3])
PLACES = np.arange(LENGTH)[:, None] * EACH
"""Angles, for each position and pair."""
CONSTANTS: dict[str, Array] = {
    name: np.array(numbers)
    for name, numbers in (
        *(("none", [0]), ("one", [1]), ("half", [2]), ("end", [4]), ("six", [6]), ("last", [-1])),
        *(("heads", [1]), ("over_heads", [0, 1]), ("halves", [2, 2]), ("two", [1, 1, 2]), ("twice", [1, 2])),
        *(("table", [LENGTH, SIZE]), ("first", [1, HEADS, 1, SIZE]), ("for_heads", [1, HEADS, LENGTH, SIZE])),
        *(("whole", [BATCH, HEADS, LENGTH, SIZE]), ("in_pairs", [BATCH, HEADS, LENGTH, 2, 2])),
        *(("parts", [BATCH, HEADS, LENGTH, 2]), ("numbers", range(LENGTH)), ("fewer", range(HEADS))),
        ("of_samples", [[4, 3, 2, 1, 0], [0, 1, 2, 3, 4]]),
    )
}
FROZEN = {"c": np.cos(PLACES), "s": np.sin(PLACES)}
"""Tables of the file's, which are not trained, and may be others."""

SLICED = "a = Slice(h, none, half, last) b = Slice(h, half, end, last) "
SPLIT = "a, b = Split<axis = 3>(h, halves) "
WHOLE = "n = Neg(b) r = Concat<axis = -1>(n, a) p = Mul(h, cos) q = Mul(r, sin) y = Add(p, q)"
HALVES = "ac = Mul(a, c) bs = Mul(b, s) bc = Mul(b, c) as = Mul(a, s) re = Sub(ac, bs) im = Add(bc, as) "
HALVES += "y = Concat<axis = 3>(re, im)"
ODD = "a = Slice(h, none, end, last, half) b = Slice(h, one, end, last, half) "
STACKED = "n = Neg(b) bn = Unsqueeze(n, last) an = Unsqueeze(a, last) t = Concat<axis = -1>(bn, an) "
STACKED += "r = Reshape(t, whole) p = Mul(h, cos) q = Mul(r, sin) y = Add(p, q)"
PAIRS = "hp = Reshape(h, in_pairs) ap, bp = Split<axis = -1, num_outputs = 2>(hp) "
PAIRS += "a = Reshape(ap, parts) b = Squeeze(bp, last) "
PAIRS += HALVES.replace("y = Concat<axis = 3>(re, im)", "u = Unsqueeze(re, last) v = Unsqueeze(im, last) ")
PAIRS += "t = Concat<axis = 4>(u, v) y = Reshape(t, whole)"


def literal(array: Array) -> str:
    """The name of a tensor of the program in the file, no parameter."""
    name = f"val_{len(CONSTANTS)}"
    CONSTANTS[name] = array
    return name


def tables(*shape: int, neighbours: bool = False) -> str:
    """Cosines and sines that the file fixes, once for each element of a pair."""
    angles = (np.repeat(PLACES, 2, axis=1) if neighbours else np.tile(PLACES, 2)).reshape(shape)
    return f"cos = Identity({literal(np.cos(angles))}) sin = Identity({literal(np.sin(angles))}) "


def computed(numbers: str, axes: str) -> str:
    """Cosines and sines that are computed of numbers of positions."""
    return (
        f"number = Cast<to = TYPE>({numbers}) row = Unsqueeze(number, last) pairs = Mul(row, {literal(EACH)}) "
        "angles = Concat<axis = -1>(pairs, pairs) cosines = Cos(angles) sines = Sin(angles) "
        f"cos = Unsqueeze(cosines, {axes}) sin = Unsqueeze(sines, {axes}) "
    )


def repeated(angles: Array, shape: str) -> str:
    """Cosines and sines of angles of which each is repeated for its neighbour."""
    return (
        f"angles = Identity({literal(angles)}) each = Unsqueeze(angles, last) both = Expand(each, two) "
        f"all = Reshape(both, {shape}) cos = Cos(all) sin = Sin(all) "
    )


WRITTEN = {
    "whole heads": tables(1, 1, LENGTH, SIZE) + SLICED + WHOLE,
    "other orders": tables(LENGTH, SIZE) + SPLIT + WHOLE.replace("h, cos", "cos, h").replace("(p, q)", "(q, p)"),
    "halves": SPLIT + HALVES,
    "halves in other orders": SLICED + HALVES.replace("bc, as", "as, bc").replace("a, c)", "c, a)"),
    "angles of all samples": computed("numbers", "over_heads") + SLICED + WHOLE,
    "angles of each sample": computed("of_samples", "heads") + SLICED + WHOLE,
    "positions before heads": computed("fewer", "heads") + SLICED + WHOLE,
    "neighbours": tables(LENGTH, SIZE, neighbours=True) + ODD + STACKED,
    "neighbours, angles repeated": repeated(PLACES, "table") + ODD + STACKED,
    "neighbours, positions before heads": repeated(PLACES[:HEADS], "first") + ODD + STACKED,
    "pairs": PAIRS,
}
LEFT_ALONE = {
    "the other way round": tables(LENGTH, SIZE)
    + SLICED
    + WHOLE.replace("Neg(b)", "Neg(a)").replace("(n, a)", "(b, n)"),
    "unlike halves": tables(LENGTH, SIZE)
    + "cos2 = Sin(cos) k = Concat<axis = 1>(cos2, cos) m = Slice(k, half, six, last) "
    + SLICED
    + WHOLE.replace("h, cos", "h, m"),
    "tables that may be others": SLICED
    + "cos2 = Concat<axis = 1>(c, c) sin2 = Tile(s, twice) "
    + WHOLE.replace("h, cos", "h, cos2").replace("r, sin", "r, sin2"),
    "neighbours by angles of halves": tables(LENGTH, SIZE) + ODD + STACKED,
    "halves by angles of neighbours": tables(LENGTH, SIZE, neighbours=True) + SLICED + WHOLE,
    "pairs that are not neighbours": tables(LENGTH, SIZE, neighbours=True) + SLICED + STACKED,
    "the second half first": tables(LENGTH, SIZE) + SPLIT.replace("a, b", "b, a") + WHOLE,
    # From operator set 22 on onnxruntime has no kernels of what draws.
    "a graph that draws": SPLIT + HALVES.replace("y =", "z =") + " o = RandomNormalLike<seed = 3.0>(z) y = Add(z, o)",
    "what is inside is read elsewhere": tables(LENGTH, SIZE) + SLICED + WHOLE.replace("y =", "z =") + " y = Add(z, r)",
    "angles of heads": tables(1, 1, LENGTH, SIZE)
    + "of_heads = Expand(cos, for_heads) "
    + SLICED
    + WHOLE.replace("h, cos", "h, of_heads"),
}


def graph(nodes: str, dtype: str = "float", **options: Any) -> TrainingGraph:
    typed = nodes.replace("TYPE", "1" if dtype == "float" else "11")
    return between_products(typed, FED, SIZE, CONSTANTS | FROZEN, dtype, **{"wrt": ["w", "right"], **options})


def operators(training: TrainingGraph) -> Counter[str]:
    return Counter(node.op_type for node in training.model.graph)


@pytest.mark.parametrize("nodes", WRITTEN.values(), ids=WRITTEN)
def test_it_is_one_node_in_both_passes_and_gradients_are_those_of_what_was_written(nodes: str) -> None:
    joined, written = graph(nodes), graph(nodes, "double")
    assert forward_operators(joined)["RotaryEmbedding"] == 1
    assert operators(joined)["RotaryEmbedding"] == 2
    assert forward_operators(joined).keys().isdisjoint({"Neg", "Split", "Add", "Sub"})
    assert not operators(written)["RotaryEmbedding"]  # there is no kernel in double precision
    feeds = values(*FED, seed=8)
    found = onnxruntime_run(joined.model, {"x": feeds.astype(np.float32)})
    for name, expected in reference(written.model, {"x": feeds}).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("nodes", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_another_function_and_what_is_read_inside_are_left_alone(nodes: str) -> None:
    assert not operators(graph(nodes))["RotaryEmbedding"]


@pytest.mark.parametrize(
    ("shape", "at", "attributes"),
    [
        ((2, 3, 5, 4), "of_samples", {}),
        ((2, 3, 5, 4), "of_samples", {"interleaved": 1}),
        ((2, 3, 5, 4), None, {}),
        ((2, 3, 5, 6), "of_samples", {"rotary_embedding_dim": 4}),
        ((2, 5, 12), None, {"num_heads": 3}),
        ((2, 5, 18), "of_samples", {"num_heads": 3, "rotary_embedding_dim": 4}),
    ],
)
@pytest.mark.parametrize("trained", ["x", "cos"])
def test_the_operator_is_differentiated_by_itself_unless_tables_are_trained(
    shape: tuple[int, ...], at: str | None, attributes: dict[str, int], trained: str
) -> None:
    table = PLACES if at else np.stack([PLACES, PLACES[::-1]])
    arrays = {"x": values(*shape), "cos": np.cos(table), "sin": np.sin(table)}
    operands = [array.astype(np.float32) for array in arrays.values()]
    model = node_model("RotaryEmbedding", *operands, *([CONSTANTS[at]] if at else []), opset=23, **attributes)
    training = build_training_graph(infer(model), wrt=[f"p{list(arrays).index(trained)}"])
    assert operators(training)["RotaryEmbedding"] == (2 if trained == "x" else 0)
    # ONNX defines it for float32 and less, but it is linear in each input: long steps are exact.
    check_finite_differences(to_overridable(model), training, step=1.0, rtol=1e-5)
