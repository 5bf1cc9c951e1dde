"""Normalisations."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.rules.normalisation import layer_norm
from ckplan.errors import UnsupportedOperatorsError
from ckplan.model.loading import normalise
from tests.autodiff.gradcheck import (
    Array,
    check_gradient,
    check_training_graph,
    infer,
    node_model,
    onnxruntime_run,
    parse,
    slope,
    to_dtype,
    values,
    weighed,
)
from tests.autodiff.reference_operators import MeanVarianceNormalization, use_reference_operators

__all__ = ["use_reference_operators"]
pytestmark = pytest.mark.usefixtures("use_reference_operators")

X = values(3, 4, 5, 6)


@pytest.fixture(params=["few rows", "many short rows"])
def _rows(request, monkeypatch):
    """Rows of a normalisation as they are, and as if they were many."""
    if request.param == "many short rows":
        monkeypatch.setattr(layer_norm, "_MANY", 0)


def vectors(size: int, count: int = 2) -> list[Array]:
    return [values(size, seed=seed, low=0.3, high=1.8) for seed in range(count)]


def backward_reads(model: onnx.ModelProto, **options) -> set[str | None]:
    graph = build_training_graph(infer(model), loss="loss", **options).model.graph
    nodes = [node for node in graph if node.metadata_props["pkg.ckplan.phase"] == "backward"]
    return {value.name for node in nodes for value in node.inputs if isinstance(value, ir.Value)}


# -- BatchNormalization ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 5, 6), (2, 4, 2, 3, 2), (1, 4, 1, 1)])
@pytest.mark.parametrize("attributes", [{}, {"epsilon": 0.1}])
def test_batch_normalization(shape, attributes):
    model = node_model("BatchNormalization", values(*shape), *vectors(4, 4), **attributes)
    check_gradient(model, idle=["p3", "p4"])


def test_scales_of_zero_have_a_gradient():
    scale, *others = vectors(4, 4)
    scale[1] = 0
    gradients = check_gradient(node_model("BatchNormalization", X, scale, *others), idle=["p3", "p4"])
    assert abs(gradients["p1"][1]) > 0


def test_batch_normalization_keeps_its_input_for_the_scale_alone():
    model = node_model("BatchNormalization", X, *vectors(4, 4))
    assert "p0" in backward_reads(model, wrt=["p*"])
    assert not {"p0", "y0"} & backward_reads(model, wrt=["p0", "p2"])


def in_training(shape: tuple[int, ...], results: list[str], **attributes) -> onnx.ModelProto:
    arrays = [values(*shape), *vectors(shape[1], 4)]
    names = [f"p{index}" for index in range(5)]
    outputs = ["y0", "y1", "y2"]
    node = onnx.helper.make_node("BatchNormalization", names, outputs, name="node", training_mode=1, **attributes)
    return weighed([node], [onnx.numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)], results)


@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 5), (3, 4, 5, 6), (2, 4, 2, 3, 2)])
@pytest.mark.parametrize("attributes", [{}, {"epsilon": 0.1, "momentum": 0.3}])
def test_batch_normalization_in_training_mode(shape, attributes):
    check_gradient(in_training(shape, ["y0"], **attributes), idle=["p3", "p4"])


@pytest.mark.parametrize("outputs", [["y0", "y1", "y2"], ["y0", "y1"], ["y0", "y2"], ["y1"], ["y2"], ["y1", "y2"]])
def test_a_loss_of_running_statistics(outputs):
    idle = ["p3", "p4"] if "y0" in outputs else ["p1", "p2", "p3", "p4"]
    check_gradient(in_training((3, 4, 5), outputs, momentum=0.3), idle=idle, torch=False)


# -- by the statistics of samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4, 5, 6), (2, 4, 2, 3, 2)])
@pytest.mark.parametrize("attributes", [{}, {"epsilon": 0.1}])
def test_instance_normalization(shape, attributes):
    check_gradient(node_model("InstanceNormalization", values(*shape), *vectors(4), **attributes))


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 4, 3, 4)])
def test_group_normalization(shape, groups):
    check_gradient(node_model("GroupNormalization", values(*shape), *vectors(4), num_groups=groups, epsilon=0.01))


@pytest.mark.parametrize(("scale", "bias"), [(1, 4), (4, 1), (1, 1)])
def test_group_normalization_by_one_number_for_all_channels(scale, bias):
    inputs = values(3, 4, 5), values(scale, seed=1, low=0.3, high=1.8), values(bias, seed=2)
    check_gradient(node_model("GroupNormalization", *inputs, num_groups=2, epsilon=0.01), torch=False)


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize(
    ("shape", "scale", "bias", "attributes"),
    [
        ((3, 4, 6), (6,), (6,), {}),
        ((7, 6), (6,), (6,), {}),
        ((3, 4, 6), (6,), None, {}),
        ((3, 4, 6), (4, 6), (4, 6), {"axis": 1}),
        ((3, 4, 6), (3, 4, 6), (6,), {"axis": 0, "epsilon": 0.1}),
        ((3, 4, 6), (1,), (6,), {}),
        ((2, 6), (6,), (6,), {"axis": -1}),
        ((2, 1), (1,), (1,), {}),
        ((2, 1), (), (), {}),
        ((6, 6), (6, 1), (6, 1), {}),  # as many numbers as a row has, one for each row
        ((2, 4, 6), (6,), (4, 6), {"axis": 1}),
    ],
)
def test_layer_normalization(shape, scale, bias, attributes):
    inputs = [values(*shape), values(*scale, seed=1), *([] if bias is None else [values(*bias, seed=2)])]
    model = node_model("LayerNormalization", *inputs, **attributes)
    check_gradient(model)


def test_layer_normalization_is_made_to_give_its_statistics():
    model = to_dtype(node_model("LayerNormalization", values(3, 4, 6), values(6), values(6)), np.float32)
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    node = next(node for node in training.model.graph if node.op_type == "LayerNormalization")
    assert [value.shape for value in node.outputs] == [[3, 4, 6], [3, 4, 1], [3, 4, 1]]
    assert {"ReduceMean", "ReduceSumSquare", "Sqrt"}.isdisjoint(n.op_type for n in training.model.graph)


@pytest.mark.parametrize(("width", "centred"), [(64, "BatchNormalization"), (65, "Sub")], ids=["short", "long"])
def test_many_short_rows_are_centred_row_by_row(width, centred):
    model = to_dtype(node_model("LayerNormalization", values(4096, width), values(width)), np.float32)
    training = build_training_graph(infer(model), loss="loss", wrt=["p1"])
    operators = {node.op_type for node in training.model.graph}
    assert operators & {"BatchNormalization", "Sub"} == {centred}


@pytest.mark.usefixtures("_rows")
def test_layer_normalization_whose_statistics_are_used():
    torch = pytest.importorskip("torch")
    arrays = [values(3, 6), values(6, seed=1)]
    x, scale = (torch.tensor(array, requires_grad=True) for array in arrays)
    mean = x.mean(-1, keepdim=True)
    inverse = ((x - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    for results in (["y0", "y1", "y2"], ["y1"], ["y2"]):
        model = layer_norm_with_statistics(arrays, results)
        single = build_training_graph(infer(model), loss="loss", wrt=["p*"])
        ran = onnxruntime_run(single.model)
        outputs = {"y0": (x - mean) * inverse * scale, "y1": mean, "y2": inverse}
        weights = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
        loss = sum((torch.tensor(weights[f"weight_{name}"]) * outputs[name]).sum() for name in results)
        theirs = torch.autograd.grad(loss, (x, scale), allow_unused=True, retain_graph=True)
        for name, expected in zip(("p0", "p1"), theirs, strict=True):
            if expected is None:
                assert name not in single.gradients
            else:
                np.testing.assert_allclose(ran[single.gradients[name]], expected.numpy(), rtol=1e-4, atol=1e-5)


def layer_norm_with_statistics(arrays: list[Array], results: list[str]) -> onnx.ModelProto:
    node = onnx.helper.make_node("LayerNormalization", ["p0", "p1"], ["y0", "y1", "y2"], name="node")
    parameters = [onnx.numpy_helper.from_array(a.astype(np.float32), f"p{i}") for i, a in enumerate(arrays)]
    return weighed([node], parameters, results)


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize(
    ("shape", "scale", "attributes"),
    [((3, 4, 6), (6,), {}), ((3, 4, 6), (4, 6), {"axis": 1, "epsilon": 0.1}), ((3, 6), (1,), {}), ((6, 6), (6, 1), {})],
)
def test_rms_normalization(shape, scale, attributes):
    check_gradient(node_model("RMSNormalization", values(*shape), values(*scale, seed=1), opset=23, **attributes))


@pytest.mark.parametrize(("op_type", "opset", "steps"), [("LayerNormalization", 21, 3), ("RMSNormalization", 23, 5)])
def test_few_nodes_make_a_number_for_each_row(op_type, opset, steps):
    model = to_dtype(node_model(op_type, values(3, 8), values(8, seed=1), opset=opset), np.float32)
    graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
    arithmetic = {"Add", "Mul", "Neg", "Reciprocal", "Sqrt"}
    made = [node.op_type for node in graph if node.outputs[0].shape == [3, 1] and node.op_type in arithmetic]
    assert len(made) == steps


# -- the others --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_lp_normalization(p, axis):
    check_gradient(node_model("LpNormalization", values(3, 4, 5), p=p, axis=axis))


@pytest.mark.parametrize(
    "attributes", [{"size": 3}, {"size": 5, "alpha": 0.5}, {"size": 4, "alpha": 0.3, "beta": 0.6, "bias": 1.5}]
)
@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (2, 3, 2, 2), (2, 70, 1, 2)])
def test_lrn(shape, attributes):
    # onnxruntime has no LRN over an even number of channels.
    check_gradient(node_model("LRN", values(*shape), **attributes), runtime=attributes["size"] % 2 == 1)


@pytest.mark.parametrize("attributes", [{"axes": [0, 2, 3]}, {"axes": [2, 3]}])
def test_mean_variance_normalization(attributes):
    # onnx defines it by a body with float32 constants, so that it is not valid in double.
    model = node_model("MeanVarianceNormalization", X.astype(np.float32), **attributes)
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    gradient = onnxruntime_run(training.model)[training.gradients["p0"]].astype(np.float64)
    weight = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "weight_y0")
    direction = values(*X.shape, seed=5)

    def loss(t: float) -> float:
        y = MeanVarianceNormalization.eval(X + t * direction, **attributes)
        return float((y * weight).sum())

    assert (gradient * direction).sum() == pytest.approx(slope(loss), rel=1e-4)


@pytest.mark.parametrize(("shape", "axes"), [((2, 3, 4), [0, 2, 3]), ((2, 3, 4, 2), [0, -4, 1])])
def test_mean_variance_normalization_over_axes_that_are_none_is_refused(shape, axes):
    # onnxruntime normalises over others than those named.
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[1] x) => (float loss) {{
        h = Mul(p0, x) y = MeanVarianceNormalization <axes = {axes}> (h) loss = ReduceSum<keepdims = 0>(y) }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(values(*shape).astype(np.float32), "p0"))
    with pytest.raises(UnsupportedOperatorsError, match="which its input lacks or which stands there twice"):
        build_training_graph(normalise(ir.from_proto(model)).model, loss="loss", wrt=["p0"])


def test_statistics_that_are_computed_get_gradients():
    """In inference mode too: those in the file are constants, but a model may compute them from what is trained."""
    model = parse(
        """g (double[2, 3, 4] x) => (double loss) {
            h = Mul(x, w) m = ReduceMean<keepdims = 0>(h, axes) e = Reshape(m, column) c = Sub(h, e)
            s = Mul(c, c) v = ReduceMean<keepdims = 0>(s, axes)
            y = BatchNormalization(h, scale, bias, m, v) z = Mul(y, h) loss = ReduceSum<keepdims = 0>(z)
        }""",
        w=values(3, 4, seed=1),
        scale=values(3, seed=2),
        bias=values(3, seed=3),
        axes=np.asarray([0, 2]),
        column=np.asarray([3, 1]),
    )
    training = build_training_graph(model)
    assert sorted(training.gradients) == ["bias", "scale", "w"]
    check_training_graph(training, {"x": values(2, 3, 4)})


def test_old_running_statistics_that_are_computed_get_gradients():
    model = parse(
        """g (double[2, 3, 4] x) => (double loss) {
            h = Mul(x, w) m = ReduceMean<keepdims = 0>(h, axes) v = Abs(m)
            y, om, ov = BatchNormalization<training_mode = 1>(h, scale, bias, m, v)
            a = ReduceSum<keepdims = 0>(om) z = Mul(ov, om) b = ReduceSum<keepdims = 0>(z) loss = Add(a, b)
        }""",
        w=values(3, 4, seed=1),
        scale=values(3, seed=2),
        bias=values(3, seed=3),
        axes=np.asarray([0, 2]),
    )
    training = build_training_graph(model)
    assert sorted(training.gradients) == ["w"]
    check_training_graph(training, {"x": values(2, 3, 4)})
