"""A tanh recurrence over 200 steps, as Scan, as Loop and in chunks, against torch's RNN."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autodiff.control_flow.models import parse, run, training_graph

torch = pytest.importorskip("torch")

STEPS, BATCH, INPUT, HIDDEN = 200, 3, 5, 8


def torch_gradients(arrays):
    layer = torch.nn.RNN(INPUT, HIDDEN, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.from_numpy(arrays["W"].T))
        layer.weight_hh_l0.copy_(torch.from_numpy(arrays["R"].T))
    x = torch.tensor(arrays["X"], requires_grad=True)
    h = torch.tensor(arrays["H"], requires_grad=True)
    results, last = layer(x, h[None])
    loss = (results**2).sum() + last.sum()
    loss.backward()
    found = {"W": layer.weight_ih_l0.grad.T, "R": layer.weight_hh_l0.grad.T, "X": x.grad, "H": h.grad}
    return float(loss.detach()), {name: gradient.numpy() for name, gradient in found.items()}


@pytest.mark.parametrize("chunks", [None, "sqrt", 7])
@pytest.mark.parametrize("operator", ["Scan", "Loop"])
def test_a_tanh_recurrence(operator, chunks):
    rng = np.random.default_rng(0)
    shapes = {"W": (INPUT, HIDDEN), "R": (HIDDEN, HIDDEN), "H": (BATCH, HIDDEN), "X": (STEPS, BATCH, INPUT)}
    arrays = {name: rng.normal(size=shape) * 0.4 for name, shape in shapes.items()}
    row = f"double[{BATCH},{HIDDEN}]"
    cell = "a = MatMul(x, W) r = MatMul(h, R) s = Add(a, r) n = Tanh(s) y = Identity(n)"
    loop = {
        "Scan": f"""Scan <num_scan_inputs = 1, body = b ({row} h, double[{BATCH},{INPUT}] x) => ({row} n, {row} y) {{
            {cell} }}> (H, X)""",
        "Loop": f"""Loop <body = b (int64 i, bool c, {row} h) => (bool goes, {row} n, {row} y) {{
            goes = Identity(c) x = Gather(X, i) {cell} }}> (M, , H)""",
    }[operator]
    text = f"""g () => (double loss) {{
        last, ys = {loop}
        q = Mul(ys, ys)
        l = ReduceSum<keepdims = 0>(q)
        k = ReduceSum<keepdims = 0>(last)
        loss = Add(l, k)
    }}"""
    training = training_graph(parse(text, **arrays, M=np.array(STEPS)), time_checkpoints=chunks)
    got = run(training.model, {})
    loss, expected = torch_gradients(arrays)
    np.testing.assert_allclose(got[training.loss], loss, rtol=1e-12)
    assert set(training.gradients) == set(expected)
    for name, gradient in expected.items():
        np.testing.assert_allclose(got[training.gradients[name]], gradient, rtol=1e-8, atol=1e-11, err_msg=name)
