"""Convolutions of patches side by side, of what has its channels last."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import onnxruntime_run, parse, values

LAST = "h = Transpose<perm=[0,3,1,2]>(z)"
"""Of 4 x 6 places the channels come first."""


def model_of(
    nodes: str = LAST,
    kernel: tuple[int, ...] = (3, 2, 3),
    attributes: str = "strides=[2,3]",
    x: tuple[int, ...] = (2, 4, 6, 3),
    bias: str = ", b",
    behind: str = "s = Tanh(y)",
) -> ir.Model:
    """A convolution of 5 filters."""
    shape = ",".join(map(str, x))
    text = (
        f"g (float[{shape}] x) => (float loss) {{ z = Tanh(x) {nodes} y = Conv<{attributes}>(h, w{bias}) {behind} "
        "loss = ReduceSum<keepdims=0>(s) }"
    )
    arrays = {"w": values(5, *kernel), "b": values(5, seed=1), "ones": np.ones(5), "zeros": np.zeros(5)}
    single = {name: array.astype(np.float32) for name, array in arrays.items()}
    return parse(text, **single)


def training_of(model: ir.Model, retained: tuple[str, ...] = ()) -> TrainingGraph:
    return build_training_graph(model, loss="loss", wrt=["x", "w", *model_biases(model)], retain_grad=retained)


def model_biases(model: ir.Model) -> list[str]:
    (conv,) = (node for node in model.graph if node.op_type == "Conv")
    return [str(value.name) for value in conv.inputs[2:] if value is not None]


def is_product(training: TrainingGraph) -> bool:
    return not any(node.op_type.startswith("Conv") for node in training.model.graph)


def run(training: TrainingGraph) -> dict[str, np.ndarray]:
    x = values(*map(int, training.model.graph.inputs[0].shape), seed=8)
    return onnxruntime_run(training.model, {"x": x.astype(np.float32)})


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model_of(), id="2d"),
        pytest.param(model_of(bias=""), id="no-bias"),
        pytest.param(model_of("h = Transpose<perm=[0,2,1]>(z)", (3, 4), "strides=[4]", (2, 12, 3)), id="1d"),
        pytest.param(
            model_of("h = Transpose<perm=[0,4,1,2,3]>(z)", (3, 2, 1, 2), "strides=[2,1,2]", (2, 4, 3, 4, 3)), id="3d"
        ),
        pytest.param(model_of(attributes='strides=[2,3], auto_pad="SAME_UPPER"'), id="automatic"),
        pytest.param(model_of(kernel=(3, 4, 6), attributes="strides=[4,6]"), id="weight-larger"),
    ],
)
def test_it_is_one_product(model, monkeypatch: pytest.MonkeyPatch):
    training = training_of(model)
    assert is_product(training)
    monkeypatch.setattr("ckplan.autodiff.forward_forms.multiply_patches", lambda *_: None)
    plain = training_of(model)
    assert not is_product(plain)
    found = run(training)
    for name, array in run(plain).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_weight_that_is_larger_than_what_it_reads_is_not_copied():
    training = training_of(model_of(kernel=(3, 4, 6), attributes="strides=[4,6]"))
    readers = [node for node in training.model.graph if "w" in {value.name for value in node.inputs if value}]
    assert {node.op_type for node in readers} == {"Reshape"}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model_of("h = Identity(z)", x=(2, 3, 4, 6)), id="channels-first"),
        pytest.param(model_of("h = Transpose<perm=[0,3,2,1]>(z)", x=(2, 6, 4, 3)), id="turned"),
        pytest.param(model_of(f"{LAST} r = ReduceMax<keepdims=0>(h)", behind="s = Mul(y, r)"), id="another-reader"),
        pytest.param(model_of(f"{LAST} r = ReduceMax<keepdims=0>(z)", behind="s = Mul(y, r)"), id="of-the-source"),
        pytest.param(model_of(attributes="strides=[1,3]"), id="overlapping"),
        pytest.param(model_of(attributes="strides=[3,3]"), id="gaps"),
        pytest.param(model_of(attributes="strides=[2,3], pads=[1,0,1,0]"), id="padded"),
        pytest.param(model_of(x=(2, 5, 6, 3)), id="remainder"),
        pytest.param(model_of(kernel=(3, 1, 1), attributes="strides=[1,1]"), id="pointwise"),
        pytest.param(model_of(kernel=(1, 2, 3), attributes="strides=[2,3], group=5", x=(2, 4, 6, 5)), id="groups"),
        pytest.param(model_of(behind="s = BatchNormalization(y, ones, zeros, zeros, ones)"), id="normalised"),
    ],
)
def test_others_are_left_alone(model):
    assert not is_product(training_of(model))


def test_what_a_gradient_is_asked_for_stays():
    assert not is_product(training_of(model_of(), ("h",)))
