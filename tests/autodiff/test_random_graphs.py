"""Random graphs against finite differences: shared values, dead ends, broadcasting, all at once."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import (
    check_finite_differences,
    infer,
    onnxruntime_run,
    to_dtype,
    to_overridable,
    values,
    weighed,
)

SHAPES = [(2, 3), (3,), (2, 1), (1, 3), ()]
UNARY = ["Tanh", "Sigmoid", "Sin", "Softplus", "Identity", "Neg", "Erf", "Atan"]
BINARY = ["Add", "Sub", "Mul", "Sum", "Mean"]


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """A model of 5 to 20 nodes over a few parameters; every value may be read any number of times."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    known: list[tuple[str, tuple[int, ...]]] = [(f"p{i}", shape) for i, shape in enumerate(shapes)]
    initializers = [
        onnx.numpy_helper.from_array(values(*shape, seed=i, low=-1, high=1), f"p{i}") for i, shape in enumerate(shapes)
    ]
    initializers.append(onnx.numpy_helper.from_array(np.asarray([1, 0, 1]), "picks"))
    nodes: list[onnx.NodeProto] = []

    def inner(op_type: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(nodes)}"
        nodes.append(onnx.helper.make_node(op_type, list(inputs), [name], name=f"{op_type}{len(nodes)}", **attributes))
        return name

    def emit(op_type: str, inputs: list[str], shape: tuple[int, ...], **attributes: object) -> None:
        known.append((inner(op_type, *inputs, **attributes), shape))

    for _ in range(draw(st.integers(5, 20))):
        name, shape = draw(st.sampled_from(known))
        other, other_shape = draw(st.sampled_from(known))
        kind = draw(
            st.sampled_from(["unary", "binary", "binary", "reduce", "softmax", "concat", "gather", "matmul", "split"])
        )
        if kind == "binary":
            emit(draw(st.sampled_from(BINARY)), [name, other], np.broadcast_shapes(shape, other_shape))
        elif kind == "reduce" and shape:
            emit("ReduceMean", [name], (1,) * len(shape), keepdims=1)
        elif kind == "softmax" and shape:
            emit("Softmax", [name], shape, axis=draw(st.integers(-len(shape), len(shape) - 1)))
        elif kind == "concat" and shape:
            emit("ReduceSum", [inner("Concat", name, name, axis=0)], (1,) * len(shape), keepdims=1)
        elif kind == "gather" and shape and shape[0] > 1:
            emit("ReduceSumSquare", [inner("Gather", name, "picks", axis=0)], (1,) * len(shape), keepdims=1)
        elif kind == "matmul" and len(shape) == 2:
            product = inner("MatMul", name, inner("Transpose", name))
            emit("ReduceLogSumExp", [product], (1, 1), keepdims=1)
        elif kind == "split" and len(shape) == 2 and shape[0] == 2:
            nodes.append(onnx.helper.make_node("Split", [name], [f"a{len(nodes)}", f"b{len(nodes)}"], num_outputs=2))
            known.append((nodes[-1].output[draw(st.integers(0, 1))], (1, shape[1])))
        else:
            emit(draw(st.sampled_from(UNARY)), [name], shape)
    results = {known[-1][0], *(name for name, _ in draw(st.lists(st.sampled_from(known[len(shapes) :]), max_size=2)))}
    return weighed(nodes, initializers, sorted(results))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_gradients(model: onnx.ModelProto) -> None:
    reached = {f"p{i}" for i in range(8)} & {name for node in model.graph.node for name in node.input}
    if not reached:
        return
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    gradients = check_finite_differences(to_overridable(model), training, rtol=1e-6)
    single = build_training_graph(infer(to_dtype(model, np.float32)), loss="loss", wrt=["p*"])
    ran = onnxruntime_run(single.model)
    for name, gradient in gradients.items():
        scale = float(np.abs(gradient).max()) + 1e-2
        np.testing.assert_allclose(ran[single.gradients[name]], gradient, rtol=0, atol=1e-3 * scale, err_msg=name)
