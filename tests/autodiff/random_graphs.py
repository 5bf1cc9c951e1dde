"""Random models for gradient checks: any value may be read any number of times, by one node or by several.

A model is drawn number by number from a source, so that hypothesis can shrink one that fails and a seed can repeat it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.autodiff.growing import OPSET, Growing, Shape, Source

SMOOTH = ["Tanh", "Sigmoid", "Sin", "Cos", "Softplus", "Identity", "Neg", "Erf", "Atan", "Gelu", "Elu", "Mish"]
KINKED = ["Softsign", "Relu", "LeakyRelu", "Abs", "HardSwish", "HardSigmoid", "Selu", "ThresholdedRelu", "Shrink"]
BINARY = ["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean", "PRelu"]
REDUCTIONS = ["Sum", "Mean", "Max", "Min", "L1", "L2", "LogSumExp", "SumSquare", "Prod"]


def ranked(low: int, high: int = 9) -> Callable[[Shape], bool]:
    return lambda shape: low <= len(shape) <= high and math.prod(shape) > 0


def unary(g: Growing) -> None:
    name, shape = g.any()
    g.emit(g.source.pick(SMOOTH), [name], shape)


def kinked(g: Growing) -> None:
    name, shape = g.any()
    g.emit(g.source.pick(KINKED), [name], shape)


def positive(g: Growing) -> None:
    """Functions of positive numbers."""
    name, shape = g.any()
    safe = g.emit("Add", [g.emit("Softplus", [name], None), g.constant(np.asarray(0.5))], None)
    g.emit(g.source.pick(["Log", "Sqrt", "Reciprocal"]), [safe], shape)


def binary(g: Growing) -> None:
    (one, first), (other, second) = g.any(), g.any()
    try:
        shape = np.broadcast_shapes(first, second)
    except ValueError:
        other, second, shape = one, first, first  # read twice by one node
    op_type = g.source.pick(BINARY)
    if math.prod(shape) > g.most or (op_type == "PRelu" and shape != first):
        op_type, other, shape = "Mul", one, first
    inputs = [one, other]
    if op_type in ("Sum", "Mean", "Max", "Min") and g.source.integer(0, 1):
        inputs.append(one)
    result = g.emit(op_type, inputs, None if op_type in ("Mul", "Sum") else shape)
    if op_type in ("Mul", "Sum"):
        g.calm(result, shape)


def _pair(g: Growing) -> tuple[str, str, tuple[int, ...]]:
    """Two values that broadcast to a shape that is not too large, the same one twice where two others do not."""
    (one, first), (other, second) = g.any(), g.any()
    try:
        shape = np.broadcast_shapes(first, second)
    except ValueError:
        return one, one, first
    return (one, other, shape) if math.prod(shape) <= g.most else (one, one, first)


def division(g: Growing) -> None:
    one, other, shape = _pair(g)
    below = g.emit("Add", [g.emit("Softplus", [other], None), g.constant(np.asarray(1.0))], None)
    if g.source.integer(0, 1):
        g.emit("Div", [one, below], shape)
    else:
        g.emit("Pow", [below, one], None)
        g.calm(g.nodes[-1].output[0], shape)


def where(g: Growing) -> None:
    one, other, shape = _pair(g)
    g.emit("Where", [g.constant(np.asarray(np.arange(math.prod(shape)).reshape(shape) % 3 == 0)), one, other], shape)


def reduce(g: Growing) -> None:
    name, shape = g.any(ranked(1))
    axes, keep = g.axes_of(shape), g.source.integer(0, 1)
    gone = {axis % len(shape) for axis in axes}
    result = tuple(1 if i in gone else d for i, d in enumerate(shape) if keep or i not in gone)
    kind = g.source.pick(REDUCTIONS)
    made = g.emit(
        f"Reduce{kind}", [name, g.constant(axes)], None if kind in ("Sum", "SumSquare", "L1") else result, keepdims=keep
    )
    if kind in ("Sum", "SumSquare", "L1"):
        g.calm(made, result)


def softmax(g: Growing) -> None:
    name, shape = g.any(ranked(1))
    g.emit(g.source.pick(["Softmax", "LogSoftmax"]), [name], shape, axis=g.axis_of(shape))


def reshape(g: Growing) -> None:
    name, shape = g.any(ranked(0))
    count = math.prod(shape)
    first = g.source.pick([n for n in range(1, count + 1) if count % n == 0])
    wanted = g.source.pick([(first, count // first), (count,), (1, first, count // first, 1)])
    g.emit("Reshape", [name, g.constant([-1, *wanted[1:]])], wanted)


def transpose(g: Growing) -> None:
    name, shape = g.any(ranked(2))
    perm = [int(axis) for axis in np.random.default_rng(g.source.integer(0, 23)).permutation(len(shape))]
    g.emit("Transpose", [name], tuple(shape[axis] for axis in perm), perm=perm)


def stretch(g: Growing) -> None:
    name, shape = g.any(lambda shape: math.prod(shape) <= g.most // 3)
    if g.source.integer(0, 1) or not shape:
        wide = tuple(3 if d == 1 and g.source.integer(0, 1) else d for d in shape)
        wide = (2, *wide) if g.source.integer(0, 1) and math.prod(wide) <= g.most // 2 else wide
        wide = wide if math.prod(wide) <= g.most else shape
        g.emit("Expand", [name, g.constant(list(wide))], wide)
    else:
        repeats = [1] * len(shape)
        repeats[g.source.integer(0, len(shape) - 1)] = 2
        g.emit("Tile", [name, g.constant(repeats)], tuple(d * r for d, r in zip(shape, repeats, strict=True)))


def concat(g: Growing) -> None:
    name, shape = g.any(lambda shape: len(shape) >= 1 and math.prod(shape) <= g.most // 3)
    axis = g.axis_of(shape)
    others = [other for other, known in g.known if known == shape]
    inputs = [name, g.source.pick(others), name][: g.source.integer(2, 3)]
    result = list(shape)
    result[axis] *= len(inputs)
    g.emit("Concat", inputs, tuple(result), axis=axis)


def split(g: Growing) -> None:
    """Only some of the outputs are read."""
    name, shape = g.any(lambda shape: any(d > 1 for d in shape))
    axis = g.source.pick([i for i, d in enumerate(shape) if d > 1])
    at = g.source.integer(1, shape[axis] - 1)
    sizes = [at, shape[axis] - at]
    names = [f"s{len(g.nodes)}", f"t{len(g.nodes)}"]
    g.nodes.append(helper.make_node("Split", [name, g.constant(sizes)], names, name=f"Split_{names[0]}", axis=axis))
    which = g.source.integer(0, 1)
    g.known.append((names[which], (*shape[:axis], sizes[which], *shape[axis + 1 :])))


def cut(g: Growing) -> None:
    name, shape = g.any(ranked(1))
    axis = g.axis_of(shape)
    size = shape[axis]
    step = g.source.pick([1, 2, -1, -2])
    start, end = (0, size) if step > 0 else (size - 1, -size - 1)
    if size > 2 and g.source.integer(0, 1):
        start, end = (1, size) if step > 0 else (-2, -size - 1)
    count = len(range(size)[slice(start, None if end < -size else end, step)])
    result = list(shape)
    result[axis] = count
    g.emit("Slice", [name, *(g.constant([n]) for n in (start, end, axis, step))], tuple(result))


def pad(g: Growing) -> None:
    name, shape = g.any(lambda shape: len(shape) >= 1 and min(shape) > 1 and math.prod(shape) <= g.most // 3)
    mode = g.source.pick(["constant", "reflect", "edge", "wrap"])
    begin, end = [0] * len(shape), [0] * len(shape)
    axis = g.source.integer(0, len(shape) - 1)
    begin[axis], end[axis] = g.source.integer(0, 1), g.source.integer(0, 1)
    result = tuple(d + b + e for d, b, e in zip(shape, begin, end, strict=True))
    g.emit("Pad", [name, g.constant([*begin, *end])], result, mode=mode)


def scan(g: Growing) -> None:
    name, shape = g.any(ranked(1))
    made = g.emit(
        "CumSum",
        [name, g.constant(np.asarray(g.axis_of(shape)))],
        None,
        exclusive=g.source.integer(0, 1),
        reverse=g.source.integer(0, 1),
    )
    g.calm(made, shape)


def triangle(g: Growing) -> None:
    name, shape = g.any(ranked(2))
    g.emit("Trilu", [name, g.constant(np.asarray(g.source.integer(-1, 1)))], shape, upper=g.source.integer(0, 1))


def gather(g: Growing) -> None:
    name, shape = g.any(lambda shape: len(shape) >= 1 and math.prod(shape) <= g.most // 3)
    axis = g.axis_of(shape)
    size = shape[axis]
    picks = np.asarray([g.source.integer(-size, size - 1) for _ in range(g.source.integer(1, 3))])
    kind = g.source.pick(["Gather", "GatherElements", "GatherND"])
    if kind == "Gather":
        scalar = g.source.integer(0, 3) == 0
        index = picks[0] if scalar else picks
        result = list(shape)
        result[axis : axis % len(shape) + 1] = [] if scalar else [len(picks)]
        if axis < 0:
            place = axis % len(shape)
            result = [*shape[:place], *([] if scalar else [len(picks)]), *shape[place + 1 :]]
        g.emit("Gather", [name, g.constant(np.asarray(index))], tuple(result), axis=axis)
    elif kind == "GatherElements":
        result = list(shape)
        result[axis] = len(picks)
        index = np.random.default_rng(len(picks)).integers(-size, size, result)
        g.emit("GatherElements", [name, g.constant(index)], tuple(result), axis=axis)
    else:
        first = shape[0]
        index = np.asarray([[g.source.integer(-first, first - 1)] for _ in range(2)])
        g.emit("GatherND", [name, g.constant(index)], (2, *shape[1:]))


def scatter(g: Growing) -> None:
    name, shape = g.any(ranked(1))
    if g.source.integer(0, 1):
        axis = g.axis_of(shape)
        part = list(shape)
        part[axis] = g.source.integer(1, shape[axis])
        add = g.source.integer(0, 1)
        index = np.random.default_rng(7).integers(0, shape[axis], part)
        if not add:
            index = np.broadcast_to(
                np.arange(part[axis]).reshape([-1] + [1] * (len(shape) - 1 - axis % len(shape))), part
            )
        updates = g.weight(tuple(part))
        reduction = "add" if add else "none"
        g.emit(
            "ScatterElements",
            [name, g.constant(np.ascontiguousarray(index)), updates],
            shape,
            axis=axis,
            reduction=reduction,
        )
    else:
        add = g.source.integer(0, 1)
        rows = [0] if not add or shape[0] == 1 else [0, shape[0] - 1, 0]
        updates = g.weight((len(rows), *shape[1:]))
        index = g.constant(np.asarray([[row] for row in rows]))
        g.emit("ScatterND", [name, index, updates], shape, reduction="add" if add else "none")


def top(g: Growing) -> None:
    name, shape = g.any(ranked(1))
    axis = g.axis_of(shape)
    count = g.source.integer(1, shape[axis])
    values = f"k{len(g.nodes)}"
    inputs, outputs = [name, g.constant([count])], [values, f"{values}_at"]
    largest = g.source.integer(0, 1)
    g.nodes.append(helper.make_node("TopK", inputs, outputs, name=f"TopK_{values}", axis=axis, largest=largest))
    result = list(shape)
    result[axis] = count
    g.known.append((values, tuple(result)))


def matmul(g: Growing) -> None:
    name, shape = g.any(ranked(2))
    inner, wide = shape[-1], g.source.integer(1, 4)
    kind = g.source.pick(["MatMul", "Gemm", "Einsum", "self"])
    if kind == "Gemm" and len(shape) == 2:
        rows, inner, turned, flipped = (*shape, g.source.integer(0, 1), g.source.integer(0, 1))
        rows, inner = (inner, rows) if turned else (rows, inner)
        weight = g.weight((wide, inner) if flipped else (inner, wide))
        bias = [g.weight(g.source.pick([(wide,), (1,), (rows, 1), (rows, wide)]))] if g.source.integer(0, 1) else []
        numbers = {"alpha": g.source.pick([None, 0.5]), "beta": g.source.pick([None, 2.0])}
        made, result = (
            g.emit("Gemm", [name, weight, *bias], None, transA=turned, transB=flipped, **numbers),
            (rows, wide),
        )
    elif kind == "Einsum":
        weight = g.weight((inner, wide))
        made = g.emit("Einsum", [name, weight], None, equation="...i,ij->...j")
        result = (*shape[:-1], wide)
    elif kind == "self":
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        made = g.emit("MatMul", [name, g.emit("Transpose", [name], None, perm=perm)], None)
        result = (*shape[:-1], shape[-2])
    else:
        weight = g.weight((inner, wide))
        made, result = g.emit("MatMul", [name, weight], None), (*shape[:-1], wide)
    g.calm(made, result)


def convolution(g: Growing) -> None:
    name, shape = g.any(ranked(3, 4))
    rank, channels = len(shape) - 2, shape[1]
    group = g.source.pick([n for n in (1, 2) if channels % n == 0])
    out = group * g.source.integer(1, 2)
    kernel = [g.source.integer(1, min(3, d)) for d in shape[2:]]
    strides = [g.source.integer(1, 2) for _ in kernel]
    attributes: dict[str, Any] = {"group": group, "strides": strides, "kernel_shape": kernel}
    auto = g.source.pick(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if auto == "NOTSET":
        pads = [g.source.integer(0, k - 1) for k in kernel * 2]
        sizes = [
            (d + b + e - k) // s + 1
            for d, b, e, k, s in zip(shape[2:], pads[:rank], pads[rank:], kernel, strides, strict=True)
        ]
        attributes["pads"] = pads
    else:
        attributes["auto_pad"] = auto
        spans = zip(shape[2:], kernel, strides, strict=True)
        sizes = [(d - k) // s + 1 if auto == "VALID" else -(-d // s) for d, k, s in spans]
    weight = g.weight((out, channels // group, *kernel))
    bias = [g.weight((out,))] if g.source.integer(0, 1) else []
    g.calm(g.emit("Conv", [name, weight, *bias], None, **attributes), (shape[0], out, *sizes))


def deconvolution(g: Growing) -> None:
    name, shape = g.any(lambda shape: 3 <= len(shape) <= 4 and math.prod(shape) <= g.most // 2)
    out, kernel = g.source.integer(1, 2), [2] * (len(shape) - 2)
    stride = g.source.integer(1, 2) if math.prod(shape) * 2 ** len(kernel) <= 2 * g.most else 1
    sizes = [(d - 1) * stride + 2 for d in shape[2:]]
    weight = g.weight((shape[1], out, *kernel))
    made = g.emit("ConvTranspose", [name, weight], None, kernel_shape=kernel, strides=[stride] * len(kernel))
    g.calm(made, (shape[0], out, *sizes))


def pool(g: Growing) -> None:
    name, shape = g.any(ranked(3, 4))
    kind = g.source.pick(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"])
    if kind.startswith("Global"):
        g.emit(kind, [name], (*shape[:2], *[1] * (len(shape) - 2)))
        return
    kernel = [min(2, d) for d in shape[2:]]
    strides = [g.source.integer(1, 2) for _ in kernel]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    pads = [0] * 2 * len(kernel)
    if kind == "AveragePool" and g.source.integer(0, 1) and min(kernel) > 1:
        pads = [g.source.integer(0, 1) for _ in pads]
        attributes |= {"pads": pads, "count_include_pad": g.source.integer(0, 1)}
    rank = len(kernel)
    spans = zip(shape[2:], pads[:rank], pads[rank:], kernel, strides, strict=True)
    g.emit(kind, [name], (*shape[:2], *[(d + b + e - k) // s + 1 for d, b, e, k, s in spans]), **attributes)


def normalise(g: Growing) -> None:
    name, shape = g.any(lambda shape: 3 <= len(shape) <= 4 and math.prod(shape[2:]) > 1)
    channels = (shape[1],)
    kind = g.source.pick(["Batch", "Instance", "Group", "Layer", "RMS", "Lp"])
    if kind == "Batch":
        spread = g.constant(np.linspace(0.5, 1.5, shape[1]))
        inputs = [name, g.weight(channels), g.weight(channels), g.constant(np.linspace(-0.2, 0.2, shape[1])), spread]
        g.emit("BatchNormalization", inputs, shape)
    elif kind == "Instance":
        g.emit("InstanceNormalization", [name, g.weight(channels), g.weight(channels)], None, epsilon=0.1)
        g.calm(g.nodes[-1].output[0], shape)
    elif kind == "Group":
        groups = g.source.pick([n for n in (1, 2) if shape[1] % n == 0])
        g.emit(
            "GroupNormalization", [name, g.weight(channels), g.weight(channels)], None, num_groups=groups, epsilon=0.1
        )
        g.calm(g.nodes[-1].output[0], shape)
    elif kind == "Layer":
        bias = [g.weight(shape[2:])] if g.source.integer(0, 1) else []
        g.emit("LayerNormalization", [name, g.weight(shape[2:]), *bias], None, axis=2, epsilon=0.1)
        g.calm(g.nodes[-1].output[0], shape)
    elif kind == "RMS":
        g.emit("RMSNormalization", [name, g.weight(shape[-1:])], None, axis=-1, epsilon=0.1)
        g.calm(g.nodes[-1].output[0], shape)
    else:
        raised = g.emit("Add", [name, g.constant(np.asarray(2.0))], None)
        g.emit("LpNormalization", [raised], shape, axis=-1, p=g.source.integer(1, 2))


def attention(g: Growing) -> None:
    name, shape = g.any(lambda shape: len(shape) == 3 and math.prod(shape) <= g.most // 2)
    heads = g.source.pick([n for n in (1, 2) if shape[-1] % n == 0])
    other = g.source.pick([known for known, s in g.known if s == shape])
    causal = g.source.integer(0, 1)
    g.emit("Attention", [name, other, name], shape, q_num_heads=heads, kv_num_heads=heads, is_causal=causal)


def depth(g: Growing) -> None:
    """Between channels and places, where sizes allow."""
    found = [(n, s) for n, s in g.known if len(s) == 4 and s[1] % 4 == 0 and math.prod(s) <= g.most]
    if not found:
        return unary(g)
    name, (batch, channels, high, wide) = g.source.pick(found)
    mode = g.source.pick(["DCR", "CRD"])
    g.emit("DepthToSpace", [name], (batch, channels // 4, 2 * high, 2 * wide), blocksize=2, mode=mode)
    return None


def resize(g: Growing) -> None:
    name, shape = g.any(lambda shape: len(shape) == 4 and math.prod(shape) <= g.most // 2)
    sizes = (*shape[:2], *(g.source.integer(1, 2 * d if d < 4 else d) for d in shape[2:]))
    mode = g.source.pick(["nearest", "linear"])
    where_to = g.source.pick(["half_pixel", "asymmetric", "align_corners"])
    g.emit("Resize", [name, "", "", g.constant(list(sizes))], sizes, mode=mode, coordinate_transformation_mode=where_to)


STEPS: list[Callable[[Growing], None]] = [
    unary,
    unary,
    kinked,
    positive,
    binary,
    binary,
    division,
    where,
    reduce,
    reduce,
    softmax,
    reshape,
    transpose,
    stretch,
    concat,
    split,
    cut,
    pad,
    scan,
    triangle,
    gather,
    scatter,
    top,
    matmul,
    convolution,
    deconvolution,
    pool,
    normalise,
    attention,
    depth,
    resize,
]


def grow(source: Source, most: int = 40) -> onnx.ModelProto:
    """Draw a float64 model of 5 to about ``most`` nodes; its output ``loss`` weighs a few of its values.

    Every value that nothing reads beside those is a dead end, as in real models.
    """
    g = Growing(source)
    for _ in range(source.integer(1, 4)):
        g.parameter(source.pick(g.shapes))
    wanted = source.integer(5, most - 6)
    while len(g.nodes) < wanted:
        source.pick(STEPS)(g)
    made = g.known[-1 - source.integer(0, 2) :]
    results = dict(made if all(name[0] != "p" for name, _ in made) else g.known[-1:])
    parts = []
    for name, shape in results.items():
        numbers = np.random.default_rng(len(parts)).uniform(0.5, 1.5, shape)
        weighed = g.emit("Mul", [name, g.constant(numbers)], None)
        parts.append(g.emit("ReduceSum", [weighed], None, keepdims=0))
    g.nodes.append(helper.make_node("Sum", parts, ["loss"], name="loss"))
    output = helper.make_tensor_value_info("loss", onnx.TensorProto.DOUBLE, [])
    graph = helper.make_graph(g.nodes, "random", [], [output], g.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
