"""Conv and BatchNormalization as one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.rules.convolution.conv_batch_norm import outline_conv_batch_norms
from tests.autodiff.gradcheck import check_gradient, infer, values, weighed
from tests.autodiff.reference_operators import use_reference_operators

__all__ = ["use_reference_operators"]
pytestmark = pytest.mark.usefixtures("use_reference_operators")

IDLE = ["p6", "p7"]


def block(x=(2, 3, 6, 5), w=(4, 3, 3, 3), bias=True, scale=None, results=("y0",), **attributes) -> onnx.ModelProto:
    """Tanh, Conv, BatchNormalization, Tanh of parameters: p0 is x, p1 w, p2 the bias, p4 to p7 the normalisation's."""
    vectors = [values(w[0], seed=seed, low=0.3, high=1.8) for seed in range(4)]
    arrays = {"p0": values(*x), "p1": values(*w, seed=1, low=-1, high=1)}
    if bias:
        arrays["p2"] = values(w[0], seed=2)
    arrays |= {f"p{4 + index}": vector for index, vector in enumerate(vectors)}
    if scale is not None:
        arrays["p4"] = scale
    nodes = [
        onnx.helper.make_node("Tanh", ["p0"], ["x"], name="before"),
        onnx.helper.make_node("Conv", ["x", "p1", *(["p2"] if bias else [])], ["c"], name="conv", **attributes),
        onnx.helper.make_node("BatchNormalization", ["c", "p4", "p5", "p6", "p7"], ["n"], name="norm", epsilon=0.01),
        onnx.helper.make_node("Tanh", ["n"], ["y0"], name="after"),
    ]
    return weighed(nodes, [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items()], results)


def backward_reads(model: onnx.ModelProto, **options) -> set[str | None]:
    graph = build_training_graph(infer(model), loss="loss", **options).model.graph
    nodes = [node for node in graph if node.metadata_props["pkg.ckplan.phase"] == "backward"]
    return {value.name for node in nodes for value in node.inputs if isinstance(value, ir.Value)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"pads": [1, 1, 1, 1]},
        {"strides": [2, 2], "pads": [1, 0, 1, 1]},
        {"x": (2, 3, 5, 5), "w": (3, 1, 3, 3), "group": 3},
        {"x": (2, 4, 5, 5), "w": (6, 2, 1, 1), "group": 2},
        {"x": (2, 3, 7), "w": (4, 3, 3)},
    ],
)
def test_gradients(options, bias):
    model = block(bias=bias, **options)
    check_gradient(model, idle=IDLE)
    assert "c" not in backward_reads(model, wrt=["p*"])


def test_a_scale_of_zero():
    scale = values(4, low=0.3, high=1.8)
    scale[2] = 0
    gradients = check_gradient(block(scale=scale), idle=IDLE)
    assert gradients["p4"][2] != 0


@pytest.mark.parametrize("wrt", [["p0"], ["p1"], ["p2"], ["p4"], ["p5"]])
def test_one_gradient_at_a_time(wrt):
    everything = check_gradient(block(), idle=IDLE, differences=False, runtime=False)
    alone = check_gradient(
        block(), idle={f"p{i}" for i in (0, 1, 2, 4, 5, 6, 7)} - set(wrt), wrt=wrt, differences=False, runtime=False
    )
    np.testing.assert_allclose(alone[wrt[0]], everything[wrt[0]], rtol=1e-12)


def test_a_convolution_that_is_read_elsewhere_stays_alone():
    model = block()
    model.graph.node.insert(3, onnx.helper.make_node("Sigmoid", ["c"], ["other"], name="other"))
    model.graph.node[4].input[0] = "both"
    model.graph.node.insert(4, onnx.helper.make_node("Mul", ["n", "other"], ["both"], name="both"))
    graph = infer(model).graph
    nodes = [node.op_type for node in graph]
    outline_conv_batch_norms(Builder(graph, graph.opset_imports))
    assert [node.op_type for node in graph] == nodes
    check_gradient(model, idle=IDLE)
