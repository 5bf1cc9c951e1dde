"""BatchNormalization by statistics that the model computes itself, differentiated as one."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import check_gradient, check_second_derivatives, infer, onnxruntime_run, to_dtype, values

#: As torch's exporter writes the statistics, and as other people might.
EXPORTED = """
    mean = ReduceMean <keepdims = 0> (x, axes)
    again = ReduceMean <keepdims = 1> (x, axes)
    centred = Sub(x, again)
    square = Mul(centred, centred)
    variance = ReduceMean <keepdims = 0> (square, axes)
"""
ONE_MEAN = """
    again = ReduceMean <keepdims = 1> (x, axes)
    mean = Reshape(again, flat)
    centred = Sub(x, again)
    square = Pow(centred, two)
    wide = ReduceMean <keepdims = 1> (square, axes)
    variance = Reshape(wide, flat)
"""


def block(shape=(4, 3, 3, 2), statistics: str = EXPORTED, behind: str = "y = Tanh(n)") -> onnx.ModelProto:
    """A product, the normalisation and Tanh: p0 and p3 are what x is made of, p1 is the scale and p2 the bias."""
    channels = shape[1]
    text = f"""<ir_version: 10, opset_import: ["": 21]> g () => (double loss) {{
        x = Mul(p0, p3)
        {statistics}
        n = BatchNormalization <epsilon = 0.01> (x, p1, p2, mean, variance)
        {behind}
        weighed = Mul(y, weights)
        loss = ReduceSum <keepdims = 0> (weighed)
    }}"""
    arrays = {
        "p0": values(*shape),
        "p1": values(channels, seed=1),
        "p2": values(channels, seed=2),
        "p3": values(*shape, seed=4),
        "weights": values(*shape, seed=3),
        "axes": np.asarray([0, *range(2, len(shape))]),
        "others": np.asarray([1, *range(2, len(shape))]),
        "flat": np.asarray([channels]),
        "two": np.asarray(2.0),
    }
    proto = onnx.parser.parse_model(text)
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in read)
    return proto


def kept(model: onnx.ModelProto) -> list[str]:
    """The operators of the forward pass that make what is as large as x and read by the backward pass."""
    graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
    phases = {node: node.metadata_props["pkg.ckplan.phase"] for node in graph}
    read = {v for node, phase in phases.items() if phase == "backward" for v in node.inputs if v is not None}
    size = math.prod(model.graph.initializer[0].dims)
    forward = [node for node, phase in phases.items() if phase == "forward" and node.op_type != "Reshape"]
    return [n.op_type for n in forward for v in n.outputs if v in read and math.prod(ir.Shape(v.shape)) == size]


@pytest.mark.parametrize("statistics", [EXPORTED, ONE_MEAN])
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (4, 3, 3, 2), (2, 3, 28, 28)])
def test_gradients(shape, statistics):
    model = block(shape, statistics)
    check_gradient(model)
    assert kept(model) == ["Sub", "Tanh"]


def test_the_forward_pass_computes_what_the_model_does():
    model = infer(to_dtype(block(), np.float32))
    plain = onnxruntime_run(model)["loss"]
    trained = build_training_graph(model, loss="loss", wrt=["p*"])
    np.testing.assert_allclose(onnxruntime_run(trained.model)["loss"], plain, rtol=1e-6)


@pytest.mark.parametrize(
    ("statistics", "behind"),
    [
        (EXPORTED, "s = Exp(variance) t = Tanh(n) r = ReduceSum <keepdims = 0> (s) y = Mul(t, r)"),
        (EXPORTED, "t = Tanh(n) y = Mul(t, centred)"),
        (EXPORTED.replace("Mul(centred, centred)", "Mul(x, centred)"), "y = Tanh(n)"),
        (EXPORTED.replace("(square, axes)", "(square, others)"), "y = Tanh(n)"),
    ],
)
def test_what_is_read_elsewhere_or_is_no_such_statistic_stays_as_it_is(statistics, behind):
    model = block((4, 4, 3, 2), statistics, behind)
    check_gradient(model)
    assert kept(model) != ["Sub", "Tanh"]


def test_second_derivatives():
    check_second_derivatives(block((3, 2, 2)))
