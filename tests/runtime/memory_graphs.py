"""Random models whose tensors take up to a MiB: what the memory model is tested against.

They are drawn like those of the gradient checks, larger, and hold what has its own ways with memory beside: Einsum,
Where over branches that are stretched, states of Scan and Loop, recurrent operators, Split, casts.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.autodiff.control_flow.models import single
from tests.autodiff.growing import OPSET, Growing, Seeded, Shape
from tests.autodiff.random_graphs import STEPS, ranked

SHAPES: list[Shape] = [
    (256, 96), (96,), (128, 1), (1, 96), (), (24, 32, 96), (1, 128, 96), (8, 16, 32, 32), (2, 32, 40, 40), (96, 96),
    (14, 100, 66), (24, 40, 32),
]  # fmt: skip
MOST = 2**18
"""Elements of the largest tensor."""


def contraction(g: Growing) -> None:
    """An Einsum over letters at random: products, sums, transpositions, diagonals."""
    name, shape = g.any(ranked(1, 4))
    letters = "abcdefgh"[: len(shape)]
    sizes = dict(zip(letters, shape, strict=True))
    new = g.source.pick([1, 8, 16])
    sizes["z"] = new
    shared = [letter for letter in letters if g.source.integer(0, 1)] or [letters[-1]]
    other = [*shared, "z"] if g.source.integer(0, 1) else shared
    if g.source.integer(0, 1):
        other = other[::-1]
    weight = g.weight(tuple(sizes[letter] for letter in other))
    result = [letter for letter in (*letters, "z") if letter in {*letters, *other} and g.source.integer(0, 2)]
    if math.prod(sizes[letter] for letter in result) > g.most:
        result = result[:1]
    if g.source.integer(0, 1):
        result = result[::-1]
    terms, inputs = [letters, "".join(other)], [name, weight]
    if g.source.integer(0, 1):
        terms, inputs = terms[::-1], inputs[::-1]
    made = g.emit("Einsum", inputs, None, equation=f"{','.join(terms)}->{''.join(result)}")
    g.calm(made, tuple(sizes[letter] for letter in result))


def attended(g: Growing) -> None:
    """Products of attention, written as Einsum over axes that stand apart."""
    name, shape = g.any(lambda shape: len(shape) == 3 and shape[1] ** 2 * shape[0] <= g.most)
    batch, steps, wide = shape
    heads = next(n for n in (4, 2, 1) if wide % n == 0)
    split = g.emit("Reshape", [name, g.constant([batch, steps, heads, wide // heads])], None)
    if batch * heads * steps * steps > g.most:
        return
    scores = g.emit("Einsum", [split, split], None, equation="bqhd,bkhd->bhqk")
    share = g.emit("Softmax", [scores], (batch, heads, steps, steps))
    made = g.emit("Einsum", [share, split], None, equation="bhqk,bkhd->bqhd")
    g.emit("Reshape", [made, g.constant([batch, steps, wide])], shape)


def chosen(g: Growing) -> None:
    """A Where of which the condition or a branch is stretched."""
    name, shape = g.any(ranked(1))
    narrow = tuple(1 if g.source.integer(0, 1) else size for size in shape)
    slim = tuple(1 if g.source.integer(0, 1) else size for size in shape)
    condition = g.constant(np.asarray(np.arange(math.prod(narrow)).reshape(narrow) % 3 == 0))
    branches = [name, g.weight(slim)] if g.source.integer(0, 1) else [g.weight(slim), name]
    g.emit("Where", [condition, *branches], shape)


def halved(g: Growing) -> None:
    """There and back through a narrower type."""
    name, shape = g.any()
    narrow = g.emit("Cast", [name], None, to=g.source.pick([TensorProto.FLOAT16, TensorProto.FLOAT16]))
    if g.source.integer(0, 1) and shape:
        narrow = g.emit("Reshape", [narrow, g.constant([-1])], None)
        wide = g.emit("Cast", [narrow], None, to=TensorProto.DOUBLE)
        g.emit("Reshape", [wide, g.constant(list(shape))], shape)
    else:
        g.emit("Cast", [narrow], shape, to=TensorProto.DOUBLE)


def parts(g: Growing) -> None:
    """A Split all of whose outputs are read, together or apart."""
    name, shape = g.any(lambda shape: any(d > 1 for d in shape))
    axis = g.source.pick([i for i, d in enumerate(shape) if d > 1])
    count = g.source.pick([n for n in (2, 3, 4) if shape[axis] % n == 0] or [1])
    sizes = [shape[axis] // count] * count
    names = [f"part{len(g.nodes)}_{index}" for index in range(count)]
    g.nodes.append(helper.make_node("Split", [name, g.constant(sizes)], names, name=f"Split_{names[0]}", axis=axis))
    part = (*shape[:axis], sizes[0], *shape[axis + 1 :])
    g.known.extend((made, part) for made in names)
    if g.source.integer(0, 1):
        g.emit("Concat", [g.emit("Tanh", [names[0]], None), *names[1:]], shape, axis=axis)


def _body(g: Growing, inputs: list[tuple[str, Shape, int]], outputs: list[tuple[str, Shape, int]]) -> onnx.GraphProto:
    def infos(values: list[tuple[str, Shape, int]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, dtype, shape) for name, shape, dtype in values]

    return helper.make_graph([], f"body{len(g.nodes)}", infos(inputs), infos(outputs))


def states(g: Growing) -> None:
    """A Scan that carries a state or two along a sequence, whichever axis it runs along."""
    name, shape = g.any(lambda shape: len(shape) in (2, 3) and min(shape) > 1)
    axis = g.source.integer(0, len(shape) - 1)
    if shape[axis] > 64:
        return
    row = tuple(size for place, size in enumerate(shape) if place != axis)
    wide = (g.source.pick([1, 8, 24]), *row) if math.prod(row) * 24 <= g.most else row
    count = g.source.integer(1, 2)
    double = TensorProto.DOUBLE
    tag = f"s{len(g.nodes)}"
    names = [f"{tag}h{k}" for k in range(count)]
    stacked = g.source.integer(0, 1)
    outs = [(f"{tag}n{k}", wide, double) for k in range(count)]
    rows = [(f"{tag}y", row, double)] if stacked else []
    body = _body(g, [*((h, wide, double) for h in names), (f"{tag}x", row, double)], [*outs, *rows])
    weight = g.weight(row)
    body.node.append(helper.make_node("Mul", [f"{tag}x", weight], [f"{tag}m"], name=f"{tag}m"))
    body.node.append(helper.make_node("Add", [names[0], f"{tag}m"], [f"{tag}a"], name=f"{tag}a"))
    body.node.append(helper.make_node("Tanh", [f"{tag}a"], [f"{tag}n0"], name=f"{tag}n0"))
    if count == 2:
        body.node.append(helper.make_node("Mul", [names[1], f"{tag}n0"], [f"{tag}c"], name=f"{tag}c"))
        body.node.append(helper.make_node("Sin", [f"{tag}c"], [f"{tag}n1"], name=f"{tag}n1"))
    if stacked:
        body.node.append(helper.make_node("Sigmoid", [f"{tag}m"], [f"{tag}y"], name=f"{tag}y"))
    initial = [g.weight(wide) for _ in range(count)]
    outputs = [f"{tag}f{k}" for k in range(count)] + ([f"{tag}ys"] if stacked else [])
    to = g.source.integer(0, len(row)) if stacked else 0
    node = helper.make_node(
        "Scan", [*initial, name], outputs, name=tag, body=body, num_scan_inputs=1, scan_input_axes=[axis],
        scan_input_directions=[g.source.integer(0, 1)], **({"scan_output_axes": [to]} if stacked else {}),
    )  # fmt: skip
    g.nodes.append(node)
    g.known.extend((f"{tag}f{k}", wide) for k in range(count))
    if stacked:
        g.known.append((f"{tag}ys", (*row[:to], shape[axis], *row[to:])))


def looped(g: Growing) -> None:
    """A Loop of a fixed number of steps, with a state and perhaps rows."""
    name, shape = g.any(lambda shape: 1 <= len(shape) <= 3 and math.prod(shape) * 6 <= g.most)
    trips, double, tag = g.source.integer(1, 6), TensorProto.DOUBLE, f"l{len(g.nodes)}"
    stacked = g.source.integer(0, 1)
    inputs = [(f"{tag}i", (), TensorProto.INT64), (f"{tag}c", (), TensorProto.BOOL), (f"{tag}h", shape, double)]
    outputs = [(f"{tag}g", (), TensorProto.BOOL), (f"{tag}n", shape, double)]
    body = _body(g, inputs, [*outputs, *([(f"{tag}y", shape, double)] if stacked else [])])
    weight = g.weight(shape)
    body.node.append(helper.make_node("Identity", [f"{tag}c"], [f"{tag}g"], name=f"{tag}g"))
    body.node.append(helper.make_node("Mul", [f"{tag}h", weight], [f"{tag}m"], name=f"{tag}m"))
    body.node.append(helper.make_node("Tanh", [f"{tag}m"], [f"{tag}n"], name=f"{tag}n"))
    if stacked:
        body.node.append(helper.make_node("Sin", [f"{tag}m"], [f"{tag}y"], name=f"{tag}y"))
    made = [f"{tag}f", *([f"{tag}ys"] if stacked else [])]
    g.nodes.append(helper.make_node("Loop", [g.constant(np.asarray(trips)), "", name], made, name=tag, body=body))
    g.known.append((f"{tag}f", shape))
    if stacked:
        g.known.append((f"{tag}ys", (trips, *shape)))


def recurrent(g: Growing) -> None:
    """An LSTM, GRU or RNN over a sequence."""
    name, shape = g.any(lambda shape: len(shape) == 3 and min(shape) > 1 and math.prod(shape[:2]) * 32 <= g.most)
    op_type = g.source.pick(["LSTM", "LSTM", "GRU", "RNN"])
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    direction = g.source.pick(["forward", "reverse", "bidirectional"])
    count, hidden = (2 if direction == "bidirectional" else 1), g.source.pick([8, 16])
    weights = [g.weight((count, gates * hidden, shape[-1])), g.weight((count, gates * hidden, hidden))]
    bias = [g.weight((count, 2 * gates * hidden))] if g.source.integer(0, 1) else []
    made = f"r{len(g.nodes)}"
    g.nodes.append(
        helper.make_node(
            op_type, [name, *weights, *bias], [made, f"{made}h"], name=f"{op_type}_{made}", hidden_size=hidden,
            direction=direction,
        )
    )  # fmt: skip
    g.known.append((made, (shape[0], count, shape[1], hidden)))


SPECIAL = [contraction, contraction, attended, chosen, halved, parts, states, looped, recurrent]


def grow(seed: int) -> onnx.ModelProto:
    """The model of a seed, in float32: 8 to 40 nodes, three in ten drawn from what has its own ways with memory."""
    source = Seeded(seed)
    g = Growing(source, SHAPES, MOST)
    for _ in range(source.integer(2, 5)):
        g.parameter(source.pick(SHAPES))
    wanted = source.integer(8, 34)
    while len(g.nodes) < wanted:
        (source.pick(SPECIAL) if source.integer(0, 9) < 3 else source.pick(STEPS))(g)
    # The loss weighs the largest values that nodes made: what leads to them is most of the model.
    made = [known for known in g.known if known[0] not in {tensor.name for tensor in g.initializers}]
    results = dict(sorted(made, key=lambda known: -math.prod(known[1]))[: source.integer(2, 4)])
    terms = [g.emit("ReduceSum", [g.emit("Mul", [name, name], None)], None, keepdims=0) for name in results]
    g.nodes.append(helper.make_node("Sum", terms, ["loss"], name="loss"))
    output = helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])
    graph = helper.make_graph(g.nodes, "random", [], [output], g.initializers)
    return single(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10))
