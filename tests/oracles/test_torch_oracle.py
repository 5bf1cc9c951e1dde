"""The oracle against onnxruntime on whole networks, and its gradients against differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

pytest.importorskip("torch", reason="the torch oracle needs torch; install ckplan[oracle]")

import torch

from sample_models.catalogue import SMALL
from sample_models.densenet import densenet
from sample_models.feeds import random_feeds
from sample_models.gpt import gpt
from sample_models.light_models import light_model
from sample_models.mobilenet_v3 import mobilenet_v3
from sample_models.resnet import resnet18, resnet50
from sample_models.unet import unet
from sample_models.vgg import vgg16
from sample_models.vit import vit
from tests.oracles.torch_oracle import torch_gradients, torch_values

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    **SMALL,
    "gpt_untied": lambda: gpt(layers=2, width=32, heads=2, vocabulary=64, sequence=16, tied=False),
    "mobilenet_v3": lambda: mobilenet_v3(percent=25, image=64, classes=10, hidden=64),
    "resnet50": lambda: resnet50(image=64, width=8, classes=10),
    "vgg16": lambda: vgg16(image=32, width=4, hidden=32, classes=10),
    "vit": lambda: vit(image=32, patch=8, layers=2, width=32, heads=4, classes=10),
    "resnet_training": lambda: resnet18(image=64, width=8, classes=10, training=True),
    "densenet_training": lambda: densenet(image=64, growth=4, blocks=(2, 2), classes=10, training=True),
    "unet_training": lambda: unet(image=32, width=4, levels=2, training=True),
}
LIGHT_SMALL = ("light_densenet121", "light_inception_v1", "light_inception_v2", "light_shufflenet", "light_squeezenet")
LIGHT_LARGE = ("light_bvlc_alexnet", "light_resnet50", "light_vgg19", "light_zfnet512")


def _compare_with_onnxruntime(model: onnx.ModelProto) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = random_feeds(model)
    expected = session.run(None, feeds)
    for wanted, result in zip(expected, torch_values(model, feeds).values(), strict=True):
        assert result.shape == wanted.shape
        np.testing.assert_allclose(result, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", NETWORKS)
def test_forward_agrees_with_onnxruntime(name: str) -> None:
    _compare_with_onnxruntime(NETWORKS[name]())


@pytest.mark.parametrize("name", [*LIGHT_SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LIGHT_LARGE)])
def test_light_model_agrees_with_onnxruntime(name: str) -> None:
    _compare_with_onnxruntime(onnx.version_converter.convert_version(light_model(name), 21))


def _with_squared_loss(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add the mean of the squared first output as ``loss``."""
    name = model.graph.output[0].name
    model.graph.node.append(helper.make_node("Mul", [name, name], ["squared"]))
    model.graph.node.append(helper.make_node("ReduceMean", ["squared"], ["loss"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return model


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny", "unet_training", "vit", "mobilenet_v3"])
def test_gradient_is_the_slope_along_a_random_direction(name: str) -> None:
    model = NETWORKS[name]()
    if model.graph.output[0].name != "loss":
        model = _with_squared_loss(model)
    feeds = random_feeds(model)
    weights = {
        tensor.name: onnx.numpy_helper.to_array(tensor).astype(np.float64)
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and tensor.dims and "running" not in tensor.name
    }
    _, gradients = torch_gradients(model, feeds, "loss", list(weights))
    random, step = np.random.default_rng(3), 1e-8  # so small that few ReLUs switch in between
    direction = {key: random.standard_normal(value.shape) for key, value in weights.items()}

    def loss_at(distance: float) -> float:
        moved = {key: value + distance * direction[key] for key, value in weights.items()}
        return float(torch_values(model, {**feeds, **moved}, ["loss"])["loss"])

    slope = sum(float(np.vdot(gradients[key], direction[key])) for key in weights)
    difference = (loss_at(step) - loss_at(-step)) / (2 * step)
    assert slope == pytest.approx(difference, rel=1e-5, abs=1e-6)


def test_float32_and_float64_differ_by_rounding_only() -> None:
    model = SMALL["gpt_tiny"]()
    feeds, names = random_feeds(model), ["transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"]
    exact_loss, exact = torch_gradients(model, feeds, "loss", names)
    loss, rounded = torch_gradients(model, feeds, "loss", names, torch.float32)
    assert loss == pytest.approx(exact_loss, rel=1e-5)
    for name in names:
        assert rounded[name].dtype == np.float32
        assert exact[name].dtype == np.float64
        np.testing.assert_allclose(rounded[name], exact[name], atol=1e-4 * np.abs(exact[name]).max())
        assert np.any(rounded[name] != exact[name])


def test_onnx_ir_models_are_taken_too() -> None:
    proto = SMALL["tanh_chain"]()
    feeds, names = random_feeds(proto), ["layer0.weight"]
    from_ir = torch_gradients(onnx_ir.from_proto(proto), feeds, "loss", names)
    from_proto = torch_gradients(proto, feeds, "loss", names)
    assert from_ir[0] == from_proto[0]
    np.testing.assert_array_equal(from_ir[1]["layer0.weight"], from_proto[1]["layer0.weight"])


def _model(nodes: list[onnx.NodeProto], outputs: list[str]) -> onnx.ModelProto:
    """Nodes on a graph input ``x`` of three numbers."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [
            helper.make_tensor("half", TensorProto.FLOAT, [], [0.5]),
            helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
            helper.make_tensor("unread", TensorProto.FLOAT, [2], [1.0, 2.0]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


X = {"x": np.array([1.0, 2.0, 3.0], dtype=np.float32)}


def test_parts_that_the_loss_does_not_need_are_not_run() -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["loss"], keepdims=0),
        helper.make_node("Multinomial", ["x"], ["drawn"], name="draw"),
    ]
    loss, gradients = torch_gradients(_model(nodes, ["loss", "drawn"]), X, "loss", ["x", "unread"])
    assert loss == 6.0
    np.testing.assert_array_equal(gradients["x"], np.ones(3))
    np.testing.assert_array_equal(gradients["unread"], np.zeros(2))
    with pytest.raises(NotImplementedError, match="Multinomial `draw`"):
        torch_values(_model(nodes, ["loss", "drawn"]), X)


def test_dropout_uses_the_mask_it_is_given_and_none_other() -> None:
    nodes = [
        helper.make_node("Dropout", ["x", "half", "yes"], ["y", "mask"]),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    model = _model(nodes, ["loss"])
    loss, gradients = torch_gradients(model, {**X, "mask": np.array([True, False, True])}, "loss", ["x"])
    assert loss == 8.0
    np.testing.assert_array_equal(gradients["x"], [2.0, 0.0, 2.0])
    with pytest.raises(NotImplementedError, match="mask"):
        torch_gradients(model, X, "loss", ["x"])


def test_unknown_names_are_told() -> None:
    model = _model([helper.make_node("ReduceSum", ["x"], ["loss"], keepdims=0)], ["loss"])
    with pytest.raises(KeyError, match="nothing in the graph makes absent"):
        torch_values(model, X, ["absent"])
    with pytest.raises(KeyError, match="absent"):
        torch_gradients(model, X, "loss", ["absent"])
    with pytest.raises(KeyError, match="no floating-point tensor"):
        torch_gradients(model, X, "loss", ["yes"])
