"""Weights that local functions hold as constants."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import ckplan
from tests.model.models import normal, parse, run
from tests.model.torch_files import gradients, loaded

WEIGHT, OTHER = normal(1, 4, 4), normal(2, 4, 4)
HEAD = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'


def text_of(array: np.ndarray) -> str:
    return f"float[4,4] {{{', '.join(map(str, array.ravel().tolist()))}}}"


LAYER = f"""
<domain: "local", opset_import: ["" : 17]>
layer (x) => (y) {{
    w = Constant <value = {text_of(WEIGHT)}> ()
    half = Constant <value_float = 0.5> ()
    m = MatMul (x, w)
    s = Mul (m, half)
    y = Tanh (s)
}}"""
BLOCK = f"""
<domain: "local", opset_import: ["" : 17, "local" : 1]>
block (x) => (y) {{
    w = Constant <value = {text_of(OTHER)}> ()
    a = local.layer (x)
    y = MatMul (a, w)
}}"""
BRANCHES = f"""
<domain: "local", opset_import: ["" : 17]>
branches (x, c) => (y) {{
    y = If (c) <
        then_branch = t () => (p) {{ w = Constant <value = {text_of(WEIGHT)}> () p = MatMul (x, w) }},
        else_branch = e () => (q) {{ w = Constant <value = {text_of(OTHER)}> () q = MatMul (x, w) }}
    >
}}"""


def plain(layers: str) -> onnx.ModelProto:
    """The same without functions."""
    return parse(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,4] y) {{ {layers} }}',
        {"w": WEIGHT, "v": OTHER},
    )


def layer(read: str, made: str, inner: str) -> str:
    return f"{inner} = MatMul ({read}, w) {inner}2 = Mul ({inner}, half) {made} = Tanh ({inner}2)"


def test_a_weight_of_a_function_that_is_called_twice_is_one() -> None:
    model = parse(f"{HEAD} g (float[2,4] x) => (float[2,4] y) {{ h = local.layer (x) y = local.layer (h) }} {LAYER}")
    half = "half = Constant <value_float = 0.5> ()"
    expected = gradients(plain(f"{half} {layer('x', 'h', 'a')} {layer('h', 'y', 'b')}"))
    found = gradients(model)
    assert list(found) == ["w"]
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-5, atol=1e-7)


def test_a_weight_of_a_function_in_a_function_is_one() -> None:
    graph = "h = local.block (x) y = local.block (h)"
    model = parse(f"{HEAD} g (float[2,4] x) => (float[2,4] y) {{ {graph} }} {LAYER} {BLOCK}")
    half = "half = Constant <value_float = 0.5> ()"
    layers = f"{layer('x', 'i', 'a')} h = MatMul (i, v) {layer('h', 'j', 'b')} y = MatMul (j, v)"
    expected, found = gradients(plain(f"{half} {layers}")), gradients(model)
    assert len(found) == 2
    for gradient in expected.values():
        assert any(np.allclose(gradient, other, rtol=1e-5, atol=1e-7) for other in found.values())
    x = normal(3, 2, 4)
    np.testing.assert_allclose(run(loaded(model)[0], {"x": x})[0], run(model, {"x": x})[0], rtol=1e-6)


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, False)])
def test_weights_of_one_name_in_two_branches_of_a_function_are_two(first: bool, second: bool) -> None:
    graph = "h = local.branches (x, c) y = local.branches (h, d)"
    model = parse(f"{HEAD} g (float[2,4] x, bool c, bool d) => (float[2,4] y) {{ {graph} }} {BRANCHES}")
    forward = loaded(model)[0]
    feeds = {"x": normal(3, 2, 4), "c": np.array(first), "d": np.array(second)}
    np.testing.assert_allclose(run(forward, feeds)[0], run(model, feeds)[0], rtol=1e-6)
    assert len(ckplan.open_model(model, loss="sum").training.gradients) == 2


def test_what_a_function_returns_as_it_is_stays_in_it() -> None:
    graph = "h, v = local.both (x) i, u = local.both (h) y = MatMul (i, u)"
    both = f"""
    <domain: "local", opset_import: ["" : 17]>
    both (x) => (y, w) {{ w = Constant <value = {text_of(WEIGHT)}> () y = MatMul (x, w) }}"""
    model = parse(f"{HEAD} g (float[2,4] x) => (float[2,4] y) {{ {graph} }} {both}")
    x = normal(3, 2, 4)
    np.testing.assert_allclose(run(loaded(model)[0], {"x": x})[0], run(model, {"x": x})[0], rtol=1e-6)
