"""How many nodes the gradient of a convolutional network takes: each costs time when a file is opened."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import infer, onnxruntime_run, reference, values

#: Channels in and out, size of the kernel, stride and groups of each layer.
PLAIN = [
    (3, 16, 3, 1, 1),
    (16, 32, 3, 2, 1),
    (32, 32, 3, 2, 1),
    (32, 32, 3, 1, 1),
    (32, 32, 3, 1, 1),
    (32, 64, 1, 1, 1),
]
BOTTLENECKS = [(3, 64, 3, 1, 1), *[(64, 16, 1, 1, 1), (16, 16, 3, 2, 1), (16, 64, 1, 1, 1)] * 3]
DEPTHWISE = [(3, 16, 3, 2, 1), (16, 64, 1, 1, 1), (64, 64, 5, 2, 64), (64, 32, 1, 1, 1), (32, 32, 3, 1, 32)]


def network(layers: list[tuple[int, ...]], activation: str, dtype: type, norm: bool) -> ir.Model:
    """Layers of a convolution, a normalisation and an activation, for images of 32 x 32."""
    lines, arrays, value = [], {}, "x"
    for i, (before, after, kernel, stride, groups) in enumerate(layers):
        arrays[f"w{i}"] = values(after, before // groups, kernel, kernel, seed=i) / np.sqrt(
            before // groups * kernel**2
        )
        pads = [kernel // 2] * 4
        lines.append(f"c{i} = Conv <pads = {pads}, strides = [{stride}, {stride}], group = {groups}> ({value}, w{i})")
        value = f"c{i}"
        if norm:
            arrays |= {f"s{i}": 1 + values(after, seed=i) / 4, f"b{i}": values(after, seed=i + 1) / 4}
            arrays |= {f"m{i}": np.zeros(after), f"v{i}": np.ones(after)}
            lines.append(f"n{i} = BatchNormalization ({value}, s{i}, b{i}, m{i}, v{i})")
            value = f"n{i}"
        if activation == "silu":
            lines.append(f"g{i} = Sigmoid ({value}) a{i} = Mul ({value}, g{i})")
        else:
            lines.append(f"a{i} = {activation} ({value})")
        value = f"a{i}"
    kind = "float" if dtype is np.float32 else "double"
    body = " ".join(lines)
    body += f" q = Mul({value}, {value}) loss = ReduceMean<keepdims=0>(q)"
    text = f"g ({kind}[4,3,32,32] x) => ({kind} loss) {{ {body} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    made = (onnx.numpy_helper.from_array(array.astype(dtype), name) for name, array in arrays.items())
    proto.graph.initializer.extend(made)
    return infer(proto)


def step(*arguments, training: bool = False) -> TrainingGraph:
    return build_training_graph(network(*arguments), training=training)


@pytest.mark.parametrize(
    ("layers", "activation", "norm", "most"),
    [
        (PLAIN, "Relu", False, 8),
        (BOTTLENECKS, "Relu", False, 6),
        (DEPTHWISE, "silu", False, 5),
        (DEPTHWISE, "HardSwish", False, 7),
        (PLAIN, "Relu", True, 11),
        (DEPTHWISE, "silu", True, 8),
    ],
)
def test_a_convolutional_network_grows_by_a_bounded_factor(layers, activation, norm, most):
    forward = len(network(layers, activation, np.float32, norm).graph)
    assert len(step(layers, activation, np.float32, norm, training=norm).model.graph) <= most * forward


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("layers", "activation"), [(PLAIN, "Relu"), (DEPTHWISE, "silu"), (DEPTHWISE, "HardSwish")])
def test_its_gradients_are_those_in_double_precision(layers, activation, norm):
    """Single precision takes other forms than double precision does, which the other tests are about."""
    single, double = (step(layers, activation, dtype, norm, training=norm) for dtype in (np.float32, np.float64))
    x = values(4, 3, 32, 32, seed=5)
    found = onnxruntime_run(single.model, {"x": x.astype(np.float32)})
    expected = reference(double.model, {"x": x})
    for name in single.gradients.values():
        distance = np.linalg.norm(found[name] - expected[name]) / np.linalg.norm(expected[name])
        assert distance < 1e-4, name


def test_a_gate_of_a_single_place_takes_one_node_for_each_of_its_gradients() -> None:
    """Squeeze-and-excitation: a convolution of one place is a matrix product in another layout."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[4,16,8,8] x) => (float loss) {
        p = GlobalAveragePool(x) c = Conv(p, w, b) y = Mul(x, c) q = Mul(y, y) loss = ReduceMean <keepdims = 0> (q)
    }"""
    proto = onnx.parser.parse_model(text)
    arrays = {"w": values(16, 16, 1, 1).astype(np.float32), "b": values(16, seed=1).astype(np.float32)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    made = build_training_graph(infer(proto))
    of_gate = [node.op_type for node in made.model.graph if str(node.name).startswith("Conv_1/grad")]
    assert sorted(of_gate) == ["Einsum", "ReduceSum"]
    x = values(4, 16, 8, 8, seed=3).astype(np.float32)
    found = onnxruntime_run(made.model, {"x": x})
    for name, expected in reference(made.model, {"x": x}).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-6)


def test_a_relu_that_a_product_reads_has_a_mask_of_one_node() -> None:
    """Where nothing else keeps the activation, its comparison is made early and waits as bools."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[4,8] x) => (float loss) { h = MatMul(x, w) r = Relu(h) %s loss = ReduceMean <keepdims = 0> (y) }"""
    for after, expected in (("y = MatMul(r, v)", ["HardSigmoid", "Mul"]), ("y = Neg(r)", ["Cast", "Greater", "Mul"])):
        proto = onnx.parser.parse_model(text % after)
        arrays = {"w": values(8, 8).astype(np.float32), "v": values(8, 8, seed=1).astype(np.float32)}
        proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
        made = build_training_graph(infer(proto))
        assert sorted(node.op_type for node in made.model.graph if str(node.name).startswith("Relu_1/grad")) == expected


def test_what_a_mean_spreads_is_spread_by_the_sum_with_other_gradients() -> None:
    """The gradient of a mean is one number for all of its terms; the Add that joins it to another spreads it."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,4,8,8] x) => (float loss) {
        h = Mul(x, w) m = ReduceMean <keepdims = 1> (h, axes) s = Sigmoid(m) y = Mul(h, s) q = Mul(y, y)
        loss = ReduceMean <keepdims = 0> (q)
    }"""
    proto = onnx.parser.parse_model(text)
    arrays = {"w": values(1, 4, 1, 1).astype(np.float32), "axes": np.array([2, 3])}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    made = build_training_graph(infer(proto))
    backward = [node for node in made.model.graph if "grad" in str(node.name)]
    assert sum(node.op_type == "Expand" for node in backward) <= 1  # the loss's own
    x = values(2, 4, 8, 8, seed=3).astype(np.float32)
    found = onnxruntime_run(made.model, {"x": x})
    for name, expected in reference(made.model, {"x": x}).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-6)
