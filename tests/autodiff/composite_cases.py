"""Small models in which a composite reads a value z, in several ways, and the slopes of their losses.

In each model ``h = tanh(x w)`` leads to z by way of ``delta``, which is zero: the slope along delta is that along z.
The losses are the composite's (``kind``), one before z (``side``), one of z itself (``square``), and ``<g, z>``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import Array, evaluator, parse, slope, values

LOSSES = ("kind", "side", "square", "given")

#: How z comes from h and delta, both of the shape S.
READINGS = {
    "directly": "z = Add(h, delta)",
    "view": "a = Add(h, delta) flat = Reshape(a, minus) copy = Identity(flat) z = Reshape(copy, shape)",
    "function": "a = Add(h, delta) z = CenterCropPad(a, shape)",
    "if": """
        z = If (yes) <
            then_branch = yes_branch () => (double[S] p) { p = Add(h, delta) },
            else_branch = no_branch () => (double[S] n) { n = Sub(h, delta) }
        >
    """,
}


@dataclass(frozen=True)
class Kind:
    """One composite behind z.

    Attributes:
        shape: of z.
        text: nodes from z to the loss ``l``; empty where the loss is put behind z.
        loss: the loss in terms of ``--loss``.
        results: outputs that the nodes make.
        parameters: initializers behind z that are trained.
        constants: other initializers.
        feeds: inputs of the loss.
        options: of the training graph.
        smooth: what has the same gradient and is smooth, where the nodes are not.
    """

    shape: tuple[int, ...]
    text: str = ""
    loss: str = "l"
    results: str = "double l"
    parameters: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    smooth: str = ""


ROWS, MAPS = (3, 5), (2, 3, 2, 2)
LABELS = {"t": np.array([4, 0, 2])}
SUM = "e = Mul(y, q) l = ReduceSum <keepdims = 0> (e)"
NORM = {name: values(3, seed=seed, low=0.5, high=1.5) for seed, name in enumerate("sb")}
STATISTICS = {name: values(3, seed=seed, low=0.5, high=1.5) for seed, name in enumerate("mv", 2)}
SMOOTHED = (
    "chances = LogSoftmax({0}) norm = ReduceLogSumExp <keepdims = 0> ({0}, last) squares = Mul(norm, norm)"
    " picked = GatherElements <axis = 1> (chances, column) evenly = ReduceMean(chances, last)"
    " most = Mul(picked, many) least = Mul(evenly, few) both = Add(most, least) losses = Neg(both)"
    " mean = ReduceMean <keepdims = 0> (losses) square = ReduceMean <keepdims = 0> (squares)"
    " penalty = Mul(square, few) l = Add(mean, penalty)"
)
SMOOTHING = {
    "column": np.array([[4], [0], [2]]),
    "last": np.array([1]),
    "many": np.asarray(0.75),
    "few": np.asarray(0.25),
}
TABLE = {"table": values(8, 5, seed=6)}
# Quantisation is of float32: these numbers are the same in both.
SHORT = values(*ROWS, seed=9).astype(np.float32).astype(np.float64)
SCALE = {"scale": np.asarray(1 / 256, np.float32), "zero": np.asarray(3, dtype=np.int8), "q": SHORT}
LIMITS = {"low": np.asarray(-131.5 / 256), "high": np.asarray(124.5 / 256)}
STRAIGHT = {"straight_through": True}

KINDS = {
    "cross-entropy": Kind(ROWS, loss="cross-entropy:z", feeds={"labels": np.array([4, 0, 2])}),
    "cross-entropy of maps": Kind(MAPS, loss="cross-entropy:z", feeds={"labels": np.arange(8).reshape(2, 2, 2) % 3}),
    "mse": Kind(ROWS, loss="mse:z", feeds={"target": values(*ROWS, seed=8)}),
    "SoftmaxCrossEntropyLoss": Kind(ROWS, 'l = SoftmaxCrossEntropyLoss <reduction = "mean"> (z, t)', constants=LABELS),
    "weighted": Kind(
        ROWS,
        'l = SoftmaxCrossEntropyLoss <reduction = "mean", ignore_index = 0> (z, t, k)',
        constants={**LABELS, "k": values(5, seed=3, low=0.5, high=1.5)},
    ),
    "of each sample": Kind(
        ROWS,
        f'y = SoftmaxCrossEntropyLoss <reduction = "none"> (z, t) {SUM}',
        constants={**LABELS, "q": values(3, seed=4)},
    ),
    "with logarithms": Kind(
        ROWS,
        'f, lp = SoftmaxCrossEntropyLoss <reduction = "sum"> (z, t)'
        " r = ReduceSumSquare <keepdims = 0> (lp) l = Add(f, r)",
        constants=LABELS,
    ),
    "NegativeLogLikelihoodLoss": Kind(
        ROWS, 'o = LogSoftmax(z) l = NegativeLogLikelihoodLoss <reduction = "mean"> (o, t)', constants=LABELS
    ),
    "likelihood of z": Kind(ROWS, 'l = NegativeLogLikelihoodLoss <reduction = "sum"> (z, t)', constants=LABELS),
    "BatchNormalization": Kind(
        MAPS,
        f"y = BatchNormalization(z, s, b, m, v) {SUM}",
        parameters=NORM,
        constants={**STATISTICS, "q": values(*MAPS, seed=5)},
        options={"training": True},
    ),
    "BatchNormalization by statistics of its input": Kind(
        MAPS,
        "mean = ReduceMean <keepdims = 0> (z, axes) again = ReduceMean <keepdims = 1> (z, axes) centred = Sub(z, again)"
        " squares = Mul(centred, centred) variance = ReduceMean <keepdims = 0> (squares, axes)"
        f" y = BatchNormalization(z, s, b, mean, variance) {SUM}",
        parameters=NORM,
        constants={"axes": np.array([0, 2, 3]), "q": values(*MAPS, seed=5)},
    ),
    "GroupNormalization in four nodes": Kind(
        MAPS,
        "i = Reshape(z, groups) n = InstanceNormalization(i, ones, zeros) r = Reshape(n, shape) f = Mul(r, s)"
        f" y = Add(f, b) {SUM}",
        parameters={name: array.reshape(3, 1, 1) for name, array in NORM.items()},
        constants={
            "groups": np.array([2, 1, 12]),
            "ones": np.ones(1),
            "zeros": np.zeros(1),
            "q": values(*MAPS, seed=5),
        },
    ),
    "Dropout": Kind(
        ROWS,
        f"y = Dropout(z, ratio) {SUM}",
        constants={"ratio": np.asarray(0.4, np.float32), "q": values(*ROWS, seed=5)},
        options={"training": True},
    ),
    "Conv and BatchNormalization": Kind(
        MAPS,
        f"c = Conv(z, f) y = BatchNormalization(c, s, b, m, v) {SUM}",
        parameters={"f": values(3, 3, 2, 2, seed=6), **NORM},
        constants={**STATISTICS, "q": values(2, 3, 1, 1, seed=5)},
    ),
    "an angle": Kind(ROWS, f"t = Div(q, z) r = Atan(t) y = Mul(r, r) {SUM}", constants={"q": values(*ROWS, seed=5)}),
    "Mish": Kind(
        ROWS, f"s = Softplus(z) t = Tanh(s) r = Mul(z, t) y = Tanh(r) {SUM}", constants={"q": values(*ROWS, seed=5)}
    ),
    "Mish as one node": Kind(ROWS, f"r = Mish(z) y = Tanh(r) {SUM}", constants={"q": values(*ROWS, seed=5)}),
    "a sigmoid and its product": Kind(
        ROWS, f"s = Sigmoid(z) r = Mul(z, s) y = Tanh(r) {SUM}", constants={"q": values(*ROWS, seed=5)}
    ),
    "a sigmoid, its product and a gate": Kind(
        ROWS,
        f"s = Sigmoid(z) r = Mul(s, z) gate = Mul(k, k) y = Mul(gate, r) {SUM}",
        parameters={"k": values(*ROWS, seed=6)},
        constants={"q": values(*ROWS, seed=5)},
    ),
    "a sigmoid of a multiple and its product": Kind(
        ROWS,
        f"k = Mul(z, slope) s = Sigmoid(k) r = Mul(z, s) y = Tanh(r) {SUM}",
        constants={"q": values(*ROWS, seed=5), "slope": np.asarray(1.7)},
    ),
    "a sigmoid of a multiple, its product and a gate": Kind(
        ROWS,
        f"k = Mul(slope, z) s = Sigmoid(k) r = Mul(s, z) gate = Mul(k2, k2) y = Mul(gate, r) {SUM}",
        parameters={"k2": values(*ROWS, seed=6)},
        constants={"q": values(*ROWS, seed=5), "slope": np.asarray(1.7)},
    ),
    "a Relu and its maxima": Kind(
        MAPS,
        f"r = Relu(z) y = MaxPool <kernel_shape = [2, 1]> (r) {SUM}",
        constants={"q": values(2, 3, 1, 2, seed=5)},
    ),
    "rows taken and added element by element": Kind(
        ROWS,
        "top = ArgMax <axis = 1> (x) at = Mod(top, three) spread = Expand(at, shape)"
        " taken = GatherElements <axis = 0> (z, spread) r = Tanh(taken)"
        f' y = ScatterElements <axis = 0, reduction = "add"> (z, spread, r) {SUM}',
        constants={"three": np.asarray(3), "q": values(*ROWS, seed=5)},
    ),
    "rows taken element by element of each sample": Kind(
        MAPS,
        "largest = ReduceMax <keepdims = 1> (x, planes) top = ArgMax <axis = 1> (largest) at = Expand(top, sizes)"
        f" y = GatherElements <axis = 1> (z, at) {SUM}",
        constants={"planes": np.array([2, 3]), "sizes": np.array([2, 2, 2, 2]), "q": values(2, 1, 2, 2, seed=5)},
    ),
    "a linear layer in chunks": Kind(
        ROWS,
        'y = MatMul(z, e) l = SoftmaxCrossEntropyLoss <reduction = "mean"> (y, t)',
        parameters={"e": values(5, 8, seed=6)},
        constants=LABELS,
        options={"chunks": 3},
    ),
    "a linear layer in chunks, in two passes": Kind(
        ROWS,
        'y = MatMul(z, e) l = SoftmaxCrossEntropyLoss <reduction = "mean"> (y, t)',
        parameters={"e": values(5, 8, seed=6)},
        constants=LABELS,
        options={"chunks": "loss=3x2"},
    ),
    "label smoothing and z-loss": Kind(ROWS, SMOOTHED.format("z"), constants=SMOOTHING),
    "label smoothing and z-loss in chunks": Kind(
        ROWS,
        "y = MatMul(z, e) " + SMOOTHED.format("y"),
        parameters={"e": values(5, 8, seed=6)},
        constants=SMOOTHING,
        options={"chunks": 3},
    ),
    "label smoothing and z-loss in chunks, in two passes": Kind(
        ROWS,
        "y = MatMul(z, e) " + SMOOTHED.format("y"),
        parameters={"e": values(5, 8, seed=6)},
        constants=SMOOTHING,
        options={"chunks": "loss=3x2"},
    ),
    "a tied table": Kind(
        ROWS,
        'e = Transpose <perm = [1, 0]> (table) y = MatMul(z, e) f = SoftmaxCrossEntropyLoss <reduction = "mean"> (y, t)'
        " rows = Gather(table, t) r = ReduceSumSquare <keepdims = 0> (rows) l = Add(f, r)",
        parameters=TABLE,
        constants=LABELS,
    ),
    "a tied table and mse": Kind(
        ROWS,
        "rows = Gather(table, t) m = Add(z, rows) e = Transpose <perm = [1, 0]> (table) y = MatMul(m, e)",
        loss="mse:y",
        results="double[3,8] y",
        parameters=TABLE,
        constants=LABELS,
        feeds={"target": values(3, 8, seed=8)},
    ),
    "QuantizeLinear": Kind(
        ROWS,
        "n = Cast <to = 1> (z) i = QuantizeLinear(n, scale, zero) d = DequantizeLinear(i, scale, zero)"
        f" y = Cast <to = 11> (d) {SUM}",
        constants={**SCALE, **LIMITS},
        options=STRAIGHT,
        smooth=f"y = Clip(z, low, high) {SUM}",
    ),
    "DynamicQuantizeLinear": Kind(
        ROWS,
        "n = Cast <to = 1> (z) i, scale, zero = DynamicQuantizeLinear(n) d = DequantizeLinear(i, scale, zero)"
        f" y = Cast <to = 11> (d) {SUM}",
        constants={"q": SHORT},
        options=STRAIGHT,
        smooth=f"y = Identity(z) {SUM}",
    ),
    "Round": Kind(
        ROWS, f"y = Round(z) {SUM}", constants={"q": SHORT}, options=STRAIGHT, smooth=f"y = Identity(z) {SUM}"
    ),
}


def model_of(kind: Kind, reading: str, smooth: bool = False) -> ir.Model:
    """The model in which this composite reads z in this way."""
    dims = ",".join(str(dim) for dim in kind.shape)
    behind = kind.smooth if smooth and kind.smooth else kind.text
    outputs = ["double[S] z", "double side", "double given", "double[2] u", *([kind.results] if behind else [])]
    text = f"""
    g (double[S] x, double[2] idle) => ({", ".join(outputs)}) {{
        before = Mul(x, w)
        h = Tanh(before)
        {READINGS[reading]}
        {behind}
        side = ReduceSumSquare <keepdims = 0> (h)
        product = Mul(z, given_weights)
        given = ReduceSum <keepdims = 0> (product)
        u = Mul(idle, idle)
    }}
    """.replace("[S]", f"[{dims}]")
    constants = {"yes": np.asarray(True), "shape": np.asarray(kind.shape), "minus": np.array([-1])}
    return parse(text, **parameters_of(kind), **kind.constants, **constants, given_weights=given_of(kind))


def parameters_of(kind: Kind) -> dict[str, Array]:
    """What is trained: w, delta, and what stands behind z."""
    channels = [1] * len(kind.shape)
    channels[1] = kind.shape[1]
    return {"w": values(*channels, seed=7, low=0.5, high=1.5), "delta": np.zeros(kind.shape), **kind.parameters}


def given_of(kind: Kind) -> Array:
    """The gradient of z that is given."""
    return values(*kind.shape, seed=11)


def feeds_of(kind: Kind) -> dict[str, Array]:
    """All inputs."""
    return {"x": values(*kind.shape, seed=12), "idle": values(2), **kind.feeds}


def direction_of(name: str, array: Array) -> Array:
    """Along which the slope is taken."""
    rng = np.random.default_rng(len(name))
    return rng.uniform(0.5, 1.0, array.shape) * rng.choice([-1.0, 1.0], array.shape)


@functools.cache
def slopes_of(name: str, reading: str) -> dict[str, dict[str, float]]:
    """Slopes of each of the losses along each parameter, by finite differences of the forward pass."""
    kind = KINDS[name]
    losses = [kind.loss, "side", "sum-of-squares:z", "given"]
    training = build_training_graph(
        model_of(kind, reading, smooth=True), loss=losses, wrt=list(parameters_of(kind)), **kind.options
    )
    proto = ir.to_proto(training.model)
    del proto.graph.output[5:]
    session = evaluator(proto)
    found: dict[str, dict[str, float]] = {}
    for parameter, array in parameters_of(kind).items():
        direction = direction_of(parameter, array)

        @functools.cache
        def run(t: float, parameter: str = parameter, moved: Array = direction, at: Array = array) -> list[Array]:
            return session.run(None, {**feeds_of(kind), parameter: at + t * moved})[1:]

        found[parameter] = {
            loss: slope(lambda t, run=run, index=index: float(run(t)[index])) for index, loss in enumerate(LOSSES)
        }
    return found


def along(training: TrainingGraph, results: dict[str, Array], kind: Kind) -> dict[str, float]:
    """The gradients of a training graph along the same directions; that of z stands for delta's."""
    arrays = {**parameters_of(kind), "z": np.zeros(kind.shape)}
    names = {**training.gradients, **training.retained}
    return {
        name: float((results[names[name]] * direction_of("delta" if name == "z" else name, array)).sum())
        for name, array in arrays.items()
        if name in names
    }
