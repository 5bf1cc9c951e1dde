"""What torch.autograd offers, on the same networks: several losses, given gradients, detached values, second order."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="comparison with torch.autograd needs torch; install ckplan[oracle]")

import torch

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import parse, reference, values

MLP = """
g (double[6,3] x) => (double[6,4] h, double[6,2] y, double loss) {
    a = MatMul(x, w1)
    b = Add(a, b1)
    h = Tanh(b)
    y = MatMul(h, w2)
    q = Mul(y, y)
    loss = ReduceMean <keepdims = 0> (q)
}
"""
WEIGHTS = {"w1": values(3, 4), "b1": values(4, seed=1), "w2": values(4, 2, seed=2)}
X = values(6, 3, seed=8)

ATTENTION = """
g (double[2,5,4] x) => (double loss) {
    q = MatMul(x, wq)
    k = MatMul(x, wk)
    v = MatMul(x, wv)
    t = Transpose <perm = [0, 2, 1]> (k)
    s = MatMul(q, t)
    d = Div(s, root)
    p = Softmax <axis = -1> (d)
    c = MatMul(p, v)
    o = MatMul(c, wo)
    r = Add(o, x)
    n = LayerNormalization <axis = -1> (r, gain, shift)
    e = Gelu(n)
    loss = ReduceMean <keepdims = 0> (e)
}
"""
BLOCK = {
    **{name: values(4, 4, seed=seed, low=-1, high=1) for seed, name in enumerate(("wq", "wk", "wv", "wo"))},
    "gain": values(4, seed=5, low=0.5, high=1.5),
    "shift": values(4, seed=6),
}
TOKENS = values(2, 5, 4, seed=9, low=-1, high=1)


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}


def mlp(w: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    h = torch.tanh(x @ w["w1"] + w["b1"])
    y = h @ w["w2"]
    return h, y, (y * y).mean()


def block(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    q, k, v = (x @ w[name] for name in ("wq", "wk", "wv"))
    c = torch.softmax(q @ k.transpose(1, 2) / 2, dim=-1) @ v
    n = torch.nn.functional.layer_norm(c @ w["wo"] + x, [4], w["gain"], w["shift"])
    return torch.nn.functional.gelu(n).mean()


def compare(training: TrainingGraph, expected: dict[str, torch.Tensor | None], feeds: dict[str, np.ndarray]) -> None:
    found = reference(training.model, feeds)
    outputs = {**training.gradients, **training.retained}
    assert {name for name, gradient in expected.items() if gradient is not None} == set(outputs)
    for name, output in outputs.items():
        gradient = expected[name]
        assert gradient is not None
        theirs = gradient.detach().numpy()
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(found[output], theirs, rtol=0, atol=1e-9 * scale, err_msg=name)


def gradients(loss: torch.Tensor, wanted: dict[str, torch.Tensor], **options) -> dict[str, torch.Tensor | None]:
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True, **options)
    return dict(zip(wanted, found, strict=True))


def test_several_losses():
    w, x = tensors(WEIGHTS), torch.tensor(X)
    h, y, loss = mlp(w, x)
    target = values(6, 2, seed=3)
    total = loss + h.mean() + torch.nn.functional.mse_loss(y, torch.tensor(target))
    training = build_training_graph(parse(MLP, **WEIGHTS), loss=["loss", "mean:h", "mse:y"])
    compare(training, gradients(total, w), {"x": X, "target": target})


def test_given_output_gradients():
    w, x = tensors(WEIGHTS), torch.tensor(X, requires_grad=True)
    h, y, _ = mlp(w, x)
    dy, dh = values(6, 2, seed=3), values(6, 4, seed=4)
    wanted = {**w, "x": x}
    found = torch.autograd.grad([y, h], list(wanted.values()), grad_outputs=[torch.tensor(dy), torch.tensor(dh)])
    training = build_training_graph(parse(MLP, **WEIGHTS), grad_ys=["y", "h"], retain_grad=["x"])
    feeds = {"x": X, "y_given_grad": dy, "h_given_grad": dh}
    compare(training, dict(zip(wanted, found, strict=True)), feeds)


def test_retained_gradients():
    w, x = tensors(WEIGHTS), torch.tensor(X, requires_grad=True)
    h, y, loss = mlp(w, x)
    h.retain_grad(), y.retain_grad()
    loss.backward()
    expected = {**{name: weight.grad for name, weight in w.items()}, "h": h.grad, "y": y.grad, "x": x.grad}
    training = build_training_graph(parse(MLP, **WEIGHTS), loss="loss", retain_grad=["h", "y", "x"])
    compare(training, expected, {"x": X})


def test_a_detached_value():
    text = MLP.replace("q = Mul(y, y)", "held = Identity(y) q = Mul(y, held)")
    w, x = tensors(WEIGHTS), torch.tensor(X)
    _, y, _ = mlp(w, x)
    training = build_training_graph(parse(text, **WEIGHTS), loss="loss", no_grad=["held"])
    compare(training, gradients((y * y.detach()).mean(), w), {"x": X})


@pytest.mark.parametrize("network", ["mlp", "attention"])
def test_product_of_the_hessian_and_a_vector(network: str):
    text, weights, data = (MLP, WEIGHTS, X) if network == "mlp" else (ATTENTION, BLOCK, TOKENS)
    constants = {} if network == "mlp" else {"root": np.float64(2)}
    w, x = tensors(weights), torch.tensor(data)
    loss = mlp(w, x)[2] if network == "mlp" else block(w, x)
    vector = {name: values(*array.shape, seed=7) for name, array in weights.items()}
    first = gradients(loss, w, create_graph=True)
    product = sum((first[name] * torch.tensor(vector[name])).sum() for name in w)
    training = build_training_graph(parse(text, **weights, **constants), loss="loss")
    assert list(training.gradients) == list(weights)
    second = build_training_graph(training.model, grad_ys=list(training.gradients.values()))
    given = {f"{training.gradients[name]}_given_grad": array for name, array in vector.items()}
    compare(second, gradients(product, w), {"x": data, **given})


@pytest.mark.parametrize("network", ["mlp", "attention"])
def test_gradient_penalty(network: str):
    text, weights, data = (MLP, WEIGHTS, X) if network == "mlp" else (ATTENTION, BLOCK, TOKENS)
    constants = {} if network == "mlp" else {"root": np.float64(2)}
    w, x = tensors(weights), torch.tensor(data, requires_grad=True)
    loss = mlp(w, x)[2] if network == "mlp" else block(w, x)
    (slope,) = torch.autograd.grad(loss, [x], create_graph=True)
    total = loss + (slope * slope).sum()
    training = build_training_graph(parse(text, **weights, **constants), loss="loss", retain_grad=["x"])
    second = build_training_graph(training.model, loss=["loss", "sum-of-squares:x_grad"])
    compare(second, gradients(total, w), {"x": data})
