"""Quantised models: refused with the way out, or trained straight through."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.errors import ModelError
from ckplan.model.loading import normalise
from tests.autodiff.gradcheck import onnxruntime_run

Array = np.ndarray
_RANDOM = np.random.default_rng(0)
_W = _RANDOM.standard_normal((4, 6)).astype(np.float32)
_X = _RANDOM.standard_normal((3, 4)).astype(np.float32)


def _model(text: str, **initializers: Array) -> ir.Model:
    model = onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["": 23]> {text}')
    for name, array in initializers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return normalise(ir.from_proto(model)).model


def _pair(x: Array, scale: Array, zero: Array | None, attributes: str = "", output: int | None = None) -> ir.Model:
    """The mean of a weight that passes a pair, weighed."""
    operands = "scale, zero" if zero is not None else "scale"
    kind = "" if output is None else f"output_dtype = {output}"
    given = ", ".join(part for part in (attributes, kind) if part)
    axis = f"<{attributes}>" if attributes else ""
    return _model(
        f"""g (float[1] one) => (float loss) {{
            q = QuantizeLinear {f"<{given}>" if given else ""} (w, {operands})
            d = DequantizeLinear {axis} (q, {operands})
            p = Mul (d, weight)
            s = ReduceSum <keepdims = 0> (p)
            t = ReduceSum <keepdims = 0> (one)
            loss = Mul (s, t)
        }}""",
        w=x,
        weight=_weights(x.shape),
        scale=scale,
        **({} if zero is None else {"zero": zero}),
    )


def _weights(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(5).uniform(0.5, 1.5, shape).astype(np.float32)


def _gradient(training: TrainingGraph, name: str = "w", **feeds: Array) -> Array:
    return onnxruntime_run(training.model, feeds)[training.gradients[name]]


_TYPES: list[tuple[Any, float, float]] = [
    (np.int8, -128, 127),
    (np.uint8, 0, 255),
    (np.int16, -32768, 32767),
    (np.uint16, 0, 65535),
    (ml_dtypes.int4, -8, 7),
    (ml_dtypes.uint4, 0, 15),
]


@pytest.mark.parametrize(("dtype", "low", "high"), _TYPES, ids=[np.dtype(t[0]).name for t in _TYPES])
def test_gradients_pass_within_the_range_of_the_type(dtype: Any, low: float, high: float) -> None:
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
    scale = np.asarray(4 / (high - low), np.float32)
    zero = np.asarray(3, dtype)
    training = build_training_graph(_pair(x, scale, zero), loss="loss", wrt=["w"], straight_through=True)
    steps = np.round(x / scale) + 3
    inside = (steps >= low) & (steps <= high)
    assert 0 < inside.sum() < inside.size
    found = _gradient(training, one=np.ones(1, np.float32))
    np.testing.assert_array_equal(found, np.where(inside, _weights(x.shape), 0))


def test_a_float_type_that_saturates() -> None:
    x = np.asarray([[-500, -440, 1, 440, 500, 1000]], np.float32)
    model = _pair(x, np.asarray(1.0, np.float32), np.asarray(0, ml_dtypes.float8_e4m3fn))
    training = build_training_graph(model, loss="loss", wrt=["w"], straight_through=True)
    found = _gradient(training, one=np.ones(1, np.float32))
    np.testing.assert_array_equal(found, _weights(x.shape) * [[0, 1, 1, 1, 0, 0]])


def test_a_convolution_of_what_is_quantised_to_int8_loads_and_has_the_numbers_of_uint8() -> None:
    """onnxruntime moves the pair behind the Transpose of the weight's gradient, and then to uint8 in part."""
    weight = _RANDOM.standard_normal((4, 3, 3, 3)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)

    def gradient(zero: np.int8 | np.uint8) -> Array:
        model = _model(
            """g (float[2,3,8,8] x) => (float loss) {
                q = QuantizeLinear (x, scale, zero) d = DequantizeLinear (q, scale, zero)
                c = Conv (d, w) loss = ReduceSumSquare <keepdims = 0> (c)
            }""",
            w=weight,
            scale=np.float32(0.01),
            zero=np.asarray(zero),
        )
        return _gradient(build_training_graph(model, straight_through=True), x=x)

    assert np.array_equal(gradient(np.int8(3)), gradient(np.uint8(131)))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scales_per_axis(axis: int) -> None:
    count = _W.shape[axis]
    scale = np.linspace(0.004, 0.03, count, dtype=np.float32)
    zero = np.arange(count, dtype=np.int8) * 5
    training = build_training_graph(
        _pair(_W, scale, zero, f"axis = {axis}"), loss="loss", wrt=["w"], straight_through=True
    )
    shape = [-1 if i == axis % 2 else 1 for i in range(2)]
    steps = np.round(_W / scale.reshape(shape)) + zero.reshape(shape)
    inside = (steps >= -128) & (steps <= 127)
    assert 0 < inside.sum() < inside.size
    np.testing.assert_array_equal(
        _gradient(training, one=np.ones(1, np.float32)), np.where(inside, _weights(_W.shape), 0)
    )


def test_scales_per_block() -> None:
    scale = _RANDOM.uniform(0.004, 0.02, (4, 3)).astype(np.float32)
    zero = np.zeros((4, 3), np.int8)
    model = _pair(_W, scale, zero, "axis = 1, block_size = 2")
    training = build_training_graph(model, loss="loss", wrt=["w"], straight_through=True)
    steps = np.round(_W / np.repeat(scale, 2, axis=1))
    inside = (steps >= -128) & (steps <= 127)
    assert 0 < inside.sum() < inside.size
    np.testing.assert_array_equal(
        _gradient(training, one=np.ones(1, np.float32)), np.where(inside, _weights(_W.shape), 0)
    )


def test_a_scale_computed_at_run_time() -> None:
    model = _model(
        """g (float[3,4] x) => (float loss) {
            top = ReduceMax <keepdims = 0> (x)
            scale = Mul (top, fraction)
            q = QuantizeLinear (w, scale, zero)
            d = DequantizeLinear (q, scale, zero)
            loss = ReduceSum <keepdims = 0> (d)
        }""",
        w=_W, fraction=np.asarray(0.004, np.float32), zero=np.asarray(2, np.int8),
    )  # fmt: skip
    training = build_training_graph(model, loss="loss", wrt=["w"], straight_through=True)
    steps = np.round(_W / (_X.max() * np.float32(0.004))) + 2
    inside = (steps >= -128) & (steps <= 127)
    assert 0 < inside.sum() < inside.size
    np.testing.assert_array_equal(_gradient(training, x=_X), inside.astype(np.float32))


def test_a_dynamic_quantisation_cuts_nothing_off() -> None:
    model = _model(
        """g (float[3,4] x) => (float loss) {
            q, scale, zero = DynamicQuantizeLinear (w)
            d = DequantizeLinear (q, scale, zero)
            y = MatMul (x, d)
            loss = ReduceSum <keepdims = 0> (y)
        }""",
        w=_W,
    )
    training = build_training_graph(model, loss="loss", straight_through=True)
    np.testing.assert_allclose(
        _gradient(training, x=_X), np.broadcast_to(_X.sum(0)[:, None], _W.shape), rtol=1e-5, atol=1e-6
    )


_LAYER = """g (float[3,4] x) => (float[3,6] y) {
    qx = QuantizeLinear (x, s, zx)
    dx = DequantizeLinear (qx, s, zx)
    qw = QuantizeLinear <axis = 1> (w, ws)
    dw = DequantizeLinear <axis = 1> (qw, ws)
    h = MatMul (dx, dw)
    qh = QuantizeLinear (h, s, zx)
    dh = DequantizeLinear (qh, s, zx)
    y = Add (dh, b)
}"""
_SCALES = {
    "s": np.asarray(0.05, np.float32),
    "ws": np.full(6, 0.02, np.float32),
    "zx": np.asarray(128, np.uint8),
    "b": np.zeros(6, np.float32),
}


def test_a_quantised_model_is_refused_with_its_nodes_and_the_ways_out() -> None:
    with pytest.raises(ModelError) as caught:
        build_training_graph(_model(_LAYER, w=_W, **_SCALES))
    text = str(caught.value)
    assert text.count("QuantizeLinear '") == 2, text  # that of the weight and that of the product
    assert "before quantisation" in text
    assert "--straight-through" in text
    assert "--no-grad" in text
    assert caught.value.exit_code == 3


def test_a_bias_of_a_quantised_layer_is_no_scale() -> None:
    text = """g (float[3,4] x) => (float[3,6] y) {
        h = com.microsoft.DynamicQuantizeMatMul (x, w, scale, , inner)
        q, s, z = DynamicQuantizeLinear (h)
        d = DequantizeLinear (q, s, z)
        y = Add (d, b)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["": 23, "com.microsoft": 1]> {text}')
    arrays = {
        "w": np.ones((4, 6), np.int8),
        "scale": np.asarray(0.5, np.float32),
        "inner": _W[0],
        "b": np.zeros(6, np.float32),
    }
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    loaded = normalise(ir.from_proto(model)).model
    with pytest.raises(ModelError, match=r"DynamicQuantizeMatMul '.*', DynamicQuantizeLinear"):
        build_training_graph(loaded)
    assert set(build_training_graph(loaded, no_grad=["inner"]).gradients) == {"b"}


def test_what_stands_behind_the_last_quantisation_is_trained_without_ado() -> None:
    training = build_training_graph(_model(_LAYER, w=_W, **_SCALES), no_grad=["w"])
    assert set(training.gradients) == {"b"}


def test_a_layer_is_trained_straight_through_and_scales_are_not() -> None:
    training = build_training_graph(_model(_LAYER, w=_W, **_SCALES), loss="sum", straight_through=True)
    assert set(training.gradients) == {"w", "b"}
    quantised = np.clip(np.round(_X / 0.05) + 128, 0, 255) * 0.05 - 128 * 0.05
    got = _gradient(training, x=_X)
    weights = np.clip(np.round(_W / 0.02), 0, 255) * 0.02
    whole = np.abs(quantised @ weights) < 127 * 0.05
    inside = (np.round(_W / 0.02) >= 0) & (np.round(_W / 0.02) <= 255)
    np.testing.assert_allclose(got, (quantised.T @ whole) * inside, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("read", ["w", "narrow"])
def test_weights_stored_as_integers_are_named(read: str) -> None:
    model = _model(
        f"""g (float[3,4] x) => (float[3,6] y) {{
            narrow = Clip (w, low)
            dw = DequantizeLinear ({read}, s)
            h = MatMul (x, dw)
            g = Mul (h, gain)
            q = QuantizeLinear (g, s, z)
            y = DequantizeLinear (q, s, z)
        }}""",
        w=np.ones((4, 6), np.int8), s=np.asarray(0.05, np.float32), z=np.asarray(0, np.int8),
        gain=np.ones(6, np.float32), low=np.asarray(-127, np.int8),
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"1 weight\(s\) are stored as integers, first that of DequantizeLinear '.*'"):
        build_training_graph(model)
    training = build_training_graph(model, straight_through=True)
    assert set(training.gradients) == {"gain"}
    assert "1 weight(s) are stored as integers, first that of DequantizeLinear" in " ".join(training.notes)
    chosen = build_training_graph(model, wrt=["gain"], straight_through=True)
    assert "stored as integers" not in " ".join(chosen.notes)


def test_a_model_whose_scales_alone_are_floats_is_known_to_be_quantised() -> None:
    model = _model(
        """g (float[3,4] x) => (float[3,6] y) {
            q = QuantizeLinear (x, s, z)
            dq = DequantizeLinear (q, s, z)
            dw = DequantizeLinear (w, scales, zeros)
            y = MatMul (dq, dw)
        }""",
        w=np.ones((4, 6), np.int8), s=np.asarray(0.05, np.float32), z=np.asarray(0, np.int8),
        scales=np.linspace(0.1, 0.3, 6, dtype=np.float32), zeros=np.zeros(6, np.int8),
    )  # fmt: skip
    with pytest.raises(ModelError, match="before quantisation"):
        build_training_graph(model)


def test_round_in_fake_quantisation_passes_straight_through() -> None:
    text = """g (float[3,4] x) => (float loss) {
        t = Div (w, s)
        r = Round (t)
        c = Clip (r, low, high)
        d = Mul (c, s)
        loss = ReduceSum <keepdims = 0> (d)
    }"""
    numbers = {"s": np.asarray(0.01, np.float32), "low": np.asarray(-100, np.float32),
               "high": np.asarray(100, np.float32)}  # fmt: skip
    model = _model(text, w=_W, **numbers)
    training = build_training_graph(model, loss="loss", wrt=["w"], straight_through=True)
    inside = np.abs(np.round(_W / np.float32(0.01))) < 100
    np.testing.assert_allclose(_gradient(training, x=_X), inside.astype(np.float32), rtol=1e-5)
    with pytest.raises(ModelError, match=r"no gradient passes Round '.*' \(is constant between its steps\)"):
        build_training_graph(model, loss="loss", wrt=["w"])


_BRANCH = """g (float[3,4] x) => (float l) {
    z = Mul (x, w)
    y = If (yes) <
        then_branch = a () => (float[3,4] o) { q = QuantizeLinear (z, s, zx) o = DequantizeLinear (q, s, zx) },
        else_branch = b () => (float[3,4] p) { p = Neg (z) }
    >
    e = Mul (y, z)
    l = ReduceSum <keepdims = 0> (e)
}"""


def test_quantisation_in_a_branch_is_refused_or_passed_straight_through_as_outside() -> None:
    settings = {"yes": np.asarray(True), "s": _SCALES["s"], "zx": _SCALES["zx"], "w": np.full(4, 1.5, np.float32)}
    model = _model(_BRANCH, **settings)
    with pytest.raises(ModelError, match=r"1 node\(s\) pass no gradient on: QuantizeLinear '.*'"):
        build_training_graph(model, loss="l", wrt=["w"])
    training = build_training_graph(model, loss="l", wrt=["w"], straight_through=True)
    z = _X * np.float32(1.5)
    quantised = (np.clip(np.round(z / np.float32(0.05)) + 128, 0, 255) - 128) * 0.05
    inside = (z > -128.5 * 0.05) & (z < 127.5 * 0.05)
    np.testing.assert_allclose(_gradient(training, x=_X), ((quantised + z * inside) * _X).sum(0), rtol=1e-5)


def test_quantisation_in_a_scan_passes_straight_through_as_outside() -> None:
    text = """g (float[3,4] x) => (float l) {
        z = Mul (x, w)
        {}
        e = Mul (y, x)
        l = ReduceSum <keepdims = 0> (e)
    }"""
    inside = """y = Scan <num_scan_inputs = 1, body = b (float[4] r) => (float[4] o) {
        q = QuantizeLinear (r, s, zx) o = DequantizeLinear (q, s, zx)
    }> (z)"""
    outside = "q = QuantizeLinear (z, s, zx) y = DequantizeLinear (q, s, zx)"
    settings = {"s": np.asarray(0.005, np.float32), "zx": _SCALES["zx"], "w": np.full(4, 1.5, np.float32)}
    found = []
    for nodes in (inside, outside):
        model = _model(text.replace("{}", nodes), **settings)
        training = build_training_graph(model, loss="l", wrt=["w"], straight_through=True)
        found.append(_gradient(training, x=_X))
        with pytest.raises(ModelError, match="the model is quantised"):
            build_training_graph(model, loss="l", wrt=["w"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    assert not np.allclose(found[0], (_X * _X).sum(0))  # something was cut off


def test_what_is_quantised_once_may_be_dequantised_twice() -> None:
    text = """g (float[3,4] x) => (float l) {
        z = Mul (x, w)
        q = QuantizeLinear (z, s, zx)
        first = DequantizeLinear (q, s, zx)
        t = Sin (first)
        second = DequantizeLinear (q, s2, zx2)
        e = Mul (second, x)
        both = Add (t, e)
        l = ReduceSum <keepdims = 0> (both)
    }"""
    settings = {"s": _SCALES["s"], "zx": _SCALES["zx"], "s2": _SCALES["s"], "zx2": _SCALES["zx"]}
    model = _model(text, w=np.ones(4, np.float32), **settings)
    training = build_training_graph(model, loss="l", wrt=["w"], straight_through=True)
    quantised = (np.clip(np.round(_X / np.float32(0.05)) + 128, 0, 255) - 128) * 0.05
    expected = ((np.cos(quantised) + _X) * _X).sum(0)
    np.testing.assert_allclose(_gradient(training, x=_X), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_clip_in_a_pair_narrows_what_gradients_pass(dtype: Any) -> None:
    low, high = (1, 15) if dtype == np.uint8 else (-7, 7)  # four bits, as Brevitas writes them
    zero = np.asarray(high // 2 + 1, dtype)
    text = """g (float[3,4] x) => (float l) {
        z = Mul (x, w)
        q = QuantizeLinear (z, s, zero)
        c = Clip (q, low, high)
        d = DequantizeLinear (c, s, zero)
        t = Sin (d)
        l = ReduceSum <keepdims = 0> (t)
    }"""
    s, w = np.asarray(0.2, np.float32), np.linspace(0.5, 2, 4, dtype=np.float32)
    model = _model(text, w=w, s=s, zero=zero, low=np.asarray(low, dtype), high=np.asarray(high, dtype))
    training = build_training_graph(model, loss="l", wrt=["w"], straight_through=True)
    steps = np.round(_X * w / s) + int(zero)
    inside = (steps >= low) & (steps <= high)
    assert 0 < inside.sum() < inside.size
    quantised = (np.clip(steps, low, high) - int(zero)) * s
    expected = (np.cos(quantised) * inside * _X).sum(0)
    np.testing.assert_allclose(_gradient(training, x=_X), expected, rtol=1e-5, atol=1e-5)


def test_what_is_quantised_and_read_by_something_else_is_refused() -> None:
    text = """g (float[3,4] x) => (float l) {
        z = Mul (x, w)
        q = QuantizeLinear (z, s, zx)
        d = DequantizeLinear (q, s, zx)
        other = DequantizeLinear (q, s2, zx)
        both = Add (d, other)
        l = ReduceSum <keepdims = 0> (both)
    }"""
    settings = {"s": _SCALES["s"], "zx": _SCALES["zx"], "s2": np.asarray(0.07, np.float32)}
    model = _model(text, w=np.ones(4, np.float32), **settings)
    with pytest.raises(ModelError, match=r"1 node\(s\) pass no gradient on: QuantizeLinear '.*'") as caught:
        build_training_graph(model, loss="l", wrt=["w"], straight_through=True)
    assert "--straight-through" not in str(caught.value)
