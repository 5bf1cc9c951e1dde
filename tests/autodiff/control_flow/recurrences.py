"""Recurrent models of any size, in float64, with a scalar loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from tests.autodiff.control_flow.models import Array, parse


@dataclass(frozen=True)
class Form:
    """How a Scan is written down.

    Attributes:
        steps: number of steps.
        states: number of states; each step mixes them.
        in_axes, in_back: axis and direction of each of two inputs.
        out_axes, out_back: axis and direction of each of two outputs.
        shared: the first output is the first state at the end of each step.
    """

    steps: int = 5
    states: int = 1
    in_axes: tuple[int, int] = (0, 0)
    in_back: tuple[int, int] = (0, 0)
    out_axes: tuple[int, int] = (0, 0)
    out_back: tuple[int, int] = (0, 0)
    shared: bool = False


BATCH, INPUT, HIDDEN = 2, 3, 4


def weights(*shapes: Sequence[int], seed: int = 0) -> list[Array]:
    """Random arrays."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) * 0.5 for shape in shapes]


def scan_model(form: Form) -> onnx.ModelProto:
    """A recurrent cell: h0' = tanh(x W + h0 R) * u, hk' = sin(hk + h(k-1)); results y and r weigh into the loss."""
    row, wide = f"double[{BATCH},{HIDDEN}]", f"double[{BATCH},{INPUT}]"
    befores = ", ".join(f"{row} h{k}" for k in range(form.states))
    afters = ", ".join(f"{row} n{k}" for k in range(form.states))
    chain = "".join(f"s{k} = Add(h{k}, h{k - 1}) n{k} = Sin(s{k}) " for k in range(1, form.states))
    finals = ", ".join(f"f{k}" for k in range(form.states))
    initials = ", ".join(f"i{k}" for k in range(form.states))
    squares = " ".join(f"q{k} = Mul(f{k}, f{k}) l{k} = ReduceSum<keepdims=0>(q{k})" for k in range(form.states))
    lists = {
        "scan_input_axes": form.in_axes,
        "scan_input_directions": form.in_back,
        "scan_output_axes": form.out_axes,
        "scan_output_directions": form.out_back,
    }
    attributes = "".join(f", {name} = {list(value)}" for name, value in lists.items())
    y = "Identity(n0)" if form.shared else "Mul(n0, u)"
    text = f"""g () => (double loss) {{
        {finals}, ys, rs = Scan <num_scan_inputs = 2{attributes},
            body = b ({befores}, {wide} x, {row} u) => ({afters}, {row} y, {row} r) {{
                a = MatMul(x, W)
                c = MatMul(h0, R)
                s = Add(a, c)
                t = Tanh(s)
                n0 = Mul(t, u)
                {chain}
                y = {y}
                r = Exp(t)
            }}> ({initials}, X, U)
        {squares}
        qy = Mul(ys, ys)
        ly = ReduceSum<keepdims = 0>(qy)
        wr = Mul(rs, V)
        lr = ReduceSum<keepdims = 0>(wr)
        loss = Sum(ly, lr, {", ".join(f"l{k}" for k in range(form.states))})
    }}"""

    def sequence(size: int, axis: int) -> list[int]:
        shape = [BATCH, size]
        shape.insert(axis if axis >= 0 else axis + 3, form.steps)
        return shape

    names = ["W", "R", "X", "U", "V", *(f"i{k}" for k in range(form.states))]
    arrays = weights(
        (INPUT, HIDDEN),
        (HIDDEN, HIDDEN),
        sequence(INPUT, form.in_axes[0]),
        sequence(HIDDEN, form.in_axes[1]),
        sequence(HIDDEN, form.out_axes[1]),
        *[(BATCH, HIDDEN)] * form.states,
    )
    return parse(text, **dict(zip(names, arrays, strict=True)))


def loop_model(
    steps: int, goes_on: str = "goes = Identity(c)", inputs: str = "", stacked: bool = True
) -> onnx.ModelProto:
    """A recurrence as Loop; ``goes_on`` computes its condition from the number i of the step and the state h."""
    row = f"double[{BATCH},{HIDDEN}]"
    loss = "q = Mul(ys, ys) ly = ReduceSum<keepdims = 0>(q)" if stacked else "ly = ReduceSum<keepdims = 0>(last)"
    rows = ", ys" if stacked else ""
    result = f", {row} y" if stacked else ""
    text = f"""g ({inputs}) => (double loss) {{
        last{rows} = Loop <body = b (int64 i, bool c, {row} h) => (bool goes, {row} n{result}) {{
            {goes_on}
            x = Gather(X, i)
            a = MatMul(x, W)
            r = MatMul(h, R)
            s = Add(a, r)
            n = Tanh(s)
            {"k = Cast<to = 11>(i) y = Mul(n, k)" if stacked else ""}
        }}> (M, , h0)
        {loss}
        p = Mul(last, last)
        ll = ReduceSum<keepdims = 0>(p)
        loss = Add(ly, ll)
    }}"""
    w, r, h0, x = weights((INPUT, HIDDEN), (HIDDEN, HIDDEN), (BATCH, HIDDEN), (7, BATCH, INPUT))
    return parse(text, W=w, R=r, h0=h0, X=x, M=np.array(steps))
