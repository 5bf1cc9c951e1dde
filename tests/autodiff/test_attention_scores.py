"""What the gradient of a softmax subtracts from each row is a column of the product before it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.reading import shape_of
from ckplan.keys import PHASE
from tests.autodiff.gradcheck import check_gradient, infer, values

BATCH, TOKENS, HEADS, DEPTH = 2, 7, 3, 2
SCORES = (BATCH, HEADS, TOKENS, TOKENS)
SPLIT = "{0}4 = Reshape({0}, split) {0}h = Transpose<perm = {1}>({0}4)"
LAYERS = f"""
    q = MatMul(x, p0) k = MatMul(x, p1) v = MatMul(x, p2)
    {SPLIT.format("q", [0, 2, 1, 3])} {SPLIT.format("k", [0, 2, 3, 1])} {SPLIT.format("v", [0, 2, 1, 3])}
    scores = MatMul(qh, kh) chances = Softmax<axis = -1>(scores)
"""
LOSS = "weighed = Mul(y, weights) loss = ReduceSum<keepdims = 0>(weighed)"
APART = "z = MatMul(chances, vh) t = Transpose<perm = [0, 2, 1, 3]>(z) o = Reshape(t, joined) y = MatMul(o, p3)"
SHARED = APART.replace("vh", "first").replace("z =", "first = Slice(vh, start, end, start) z =")
IN_PLACE = "z = MatMul(chances, vh) y = MatMul(z, p4)"


def attention(read: str = APART, depth: int = DEPTH) -> onnx.ModelProto:
    """A layer of attention; `read` is what is made of `chances` and the values `vh`."""
    width = HEADS * depth
    arrays = {f"p{number}": values(width, width, seed=number) for number in range(4)}
    arrays |= {"p4": values(depth, depth, seed=4), "x": values(BATCH, TOKENS, width, seed=5)}
    output = (BATCH, TOKENS, width) if "p3" in read else (BATCH, HEADS, TOKENS, depth)
    arrays |= {"weights": values(*output, seed=6), "joined": np.array([BATCH, TOKENS, width])}
    arrays |= {"split": np.array([BATCH, TOKENS, HEADS, depth]), "start": np.array([1]), "end": np.array([2])}
    text = f'<ir_version: 10, opset_import: ["": 21]> g () => (double loss) {{ {LAYERS} {read} {LOSS} }}'
    model = onnx.parser.parse_model(text)
    given = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in given)
    return model


def passes(model: onnx.ModelProto, wrt: list[str]) -> list[str]:
    """Operators of the backward pass that make a tensor of as many elements as there are scores."""
    graph = build_training_graph(infer(model), loss="loss", wrt=wrt).model.graph
    backward = [node for node in graph if node.metadata_props.get(PHASE) == "backward"]
    return [node.op_type for node in backward if shape_of(node.outputs[0]) == SCORES]


@pytest.mark.parametrize("read", [APART, IN_PLACE], ids=["heads apart", "in place"])
def test_one_pass_over_the_scores(read):
    model = attention(read)
    check_gradient(model)
    assert passes(model, ["p*"]) == ["MatMul", "Mul"]


def test_one_pass_over_the_scores_of_heads_that_share_values():
    model = attention(SHARED)
    check_gradient(model)
    assert passes(model, ["p*"]) == ["Reshape", "Mul"]


SUMMED = "z = MatMul(chances, vh) s = Add(chances, chances) r = MatMul(s, vh) o = Add(z, r) y = MatMul(o, p4)"
OTHERS = {
    "rows that are short beside values": (attention(depth=3), ["p*"], []),
    "a product that is not kept": (attention(), ["p0", "p1", "p2"], ["p3"]),
    "chances that more is made of": (attention(SUMMED), ["p*"], []),
}


@pytest.mark.parametrize(("model", "wrt", "idle"), OTHERS.values(), ids=OTHERS)
def test_others_are_summed_over_the_scores(model, wrt, idle):
    check_gradient(model, wrt=wrt, idle=idle)
    assert passes(model, wrt)[-3:] == ["Mul", "Sub", "Mul"]
