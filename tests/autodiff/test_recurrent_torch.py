"""LSTM, GRU and RNN: gradients against torch, in all directions."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch oracle needs torch; install ckplan[oracle]")

from tests.autodiff.recurrent_cases import Case, gradients
from tests.oracles.torch_oracle import torch_gradients

CASES = {
    "LSTM": Case("LSTM", {}, "bhc", None, (0, 1, 2), (6, 3, 4, 5)),
    "GRU": Case("GRU", {}, "bh", None, (0, 1), (6, 3, 4, 5)),
    "GRU, reset after": Case("GRU", {"linear_before_reset": 1}, "bh", None, (0, 1), (6, 3, 4, 5)),
    "RNN": Case("RNN", {}, "bh", None, (0, 1), (6, 3, 4, 5)),
    "RNN of Relu": Case("RNN", {"activations": ["Relu"]}, "bh", None, (0, 1), (6, 3, 4, 5)),
}


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("name", CASES)
def test_against_torch(name, direction, layout):
    base = CASES[name]
    attributes = {**base.attributes, "direction": direction, "layout": layout}
    if "activations" in attributes and direction == "bidirectional":
        attributes["activations"] = attributes["activations"] * 2
    for optional in (base.optional, ""):
        case = Case(base.op_type, attributes, optional, base.lengths, base.outputs, base.sizes)
        found = gradients(case)
        _, expected = torch_gradients(case.model(), {}, "loss", list(found))
        for parameter, gradient in found.items():
            np.testing.assert_allclose(gradient, expected[parameter], rtol=1e-9, atol=1e-11, err_msg=parameter)


@pytest.mark.parametrize("name", CASES)
def test_against_torch_in_single_precision(name):
    found = gradients(CASES[name], np.float32)
    _, expected = torch_gradients(CASES[name].model(), {}, "loss", list(found))
    for parameter, gradient in found.items():
        scale = np.abs(expected[parameter]).max()
        np.testing.assert_allclose(gradient, expected[parameter], rtol=0, atol=3e-6 * scale, err_msg=parameter)
