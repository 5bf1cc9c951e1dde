"""Depthwise convolutions of the forward pass as products of rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.rewrites import depthwise
from ckplan.autodiff.rules.convolution import depthwise_planes
from tests.autodiff.gradcheck import onnxruntime_run, parse, values

#: Kernel, attributes, shape of the result for x of 12 x 9.
GEOMETRIES = [
    pytest.param((5, 7), "pads=[2,3,2,3]", (12, 9), id="same"),
    pytest.param((5, 5), "pads=[0,4,1,0]", (9, 9), id="uneven-pads"),
    pytest.param((7, 5), "pads=[3,2,3,2], strides=[2,2]", (6, 5), id="strides"),
    pytest.param((5, 5), "pads=[4,4,4,4], dilations=[2,2]", (12, 9), id="dilations"),
    pytest.param((5, 5), "pads=[12,12,0,0], dilations=[3,3]", (12, 9), id="taps-in-padding-only"),
    pytest.param((3, 3), "pads=[1,1,1,1]", (12, 9), id="few-taps"),
    pytest.param((4, 3), "pads=[0,2,1,0]", (10, 9), id="few-taps-uneven"),
    pytest.param((4, 4), "pads=[0,1,0,2]", (9, 9), id="few-taps-unpadded-rows"),
    pytest.param((3, 4), "pads=[1,1,1,2], strides=[1,2], dilations=[1,2]", (12, 3), id="few-taps-apart"),
]


def model_of(
    kernel: tuple[int, int], attributes: str, *, bias: bool = True, behind: str = "Tanh(a)", kept: int = 20
) -> ir.Model:
    """A convolution behind which ``kept`` times its result waits for the backward pass."""
    attributes = f"{attributes}, " * bool(attributes)
    text = (
        f"g (float[2,6,12,9] x) => (float loss) {{ z = Tanh(x) a = Conv<{attributes}group=6>(z, w{', b' * bias}) "
        f"c = {behind} d = Concat<axis=0>(c{', c' * (kept - 1)}) e = Mul(d, d) loss = ReduceSum<keepdims=0>(e) }}"
    )
    arrays = {"w": values(6, 1, *kernel, seed=1)} | ({"b": values(6, seed=2)} if bias else {})
    arrays |= {"low": np.asarray(-0.2), "high": np.asarray(0.4)} if "low" in behind else {}
    return parse(text, **{name: array.astype(np.float32) for name, array in arrays.items()})


def has_convolution(training: TrainingGraph) -> bool:
    return any(node.op_type == "Conv" and "a" in [v.name for v in node.outputs] for node in training.model.graph)


def training_of(model: ir.Model) -> TrainingGraph:
    return build_training_graph(model, wrt=["x", "w"])


def run(training: TrainingGraph) -> list[np.ndarray]:
    return list(onnxruntime_run(training.model, {"x": values(2, 6, 12, 9, seed=3).astype(np.float32)}).values())


@pytest.fixture(autouse=True)
def however_large_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise.depthwise_rows, "MOST_COPIES", 10**9)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "attributes", "shape"), GEOMETRIES)
def test_products_of_rows_are_the_convolution(kernel, attributes, shape, bias, monkeypatch: pytest.MonkeyPatch):
    rows = training_of(model_of(kernel, attributes, bias=bias))
    (named,) = (node.outputs[0] for node in rows.model.graph if "a" in [value.name for value in node.outputs])
    assert named.producer().op_type == "Transpose"
    assert tuple(named.shape) == (2, 6, *shape)
    monkeypatch.setattr(depthwise, "_TAPS", 10**9)
    monkeypatch.setattr(depthwise_planes, "MOST_TAPS", 0)
    plain = training_of(model_of(kernel, attributes, bias=bias))
    assert has_convolution(plain)
    for one, other in zip(run(rows), run(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


def test_a_transpose_behind_is_the_only_one():
    training = training_of(model_of((5, 5), "pads=[2,2,2,2]", behind="Transpose<perm=[0,2,3,1]>(a)"))
    assert all("a" not in [value.name for value in node.outputs] for node in training.model.graph)
    (turned,) = (node for node in training.model.graph if "c" in [value.name for value in node.outputs])
    assert list(turned.attributes.get_ints("perm")) == [1, 2, 3, 0]


@pytest.mark.parametrize("behind", ["Relu(a)", "Clip(a, low, high)"])
def test_what_is_made_one_kernel_with_a_convolution_stands_right_behind_it(behind: str):
    training = training_of(model_of((3, 3), "pads=[1,1,1,1]", behind=behind))
    (turned,) = (node for node in training.model.graph if "c" in [value.name for value in node.outputs])
    assert (turned.op_type, tuple(turned.outputs[0].shape)) == ("Transpose", (2, 6, 12, 9))
    applied = turned.inputs[0].producer().inputs[0].producer()
    assert applied.op_type == behind.partition("(")[0]
    convolution = applied.inputs[0].producer()
    assert convolution.attributes["kernel_shape"].as_ints() == (3, 9)
    # onnxruntime makes padding of the convolution's of a Pad right before it, and then columns of what it reads.
    assert convolution.inputs[0].producer().op_type == "Reshape"
    assert not has_convolution(training)


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [((3, 5), "pads=[1,2,1,2]"), ((2, 3), ""), ((3, 3), "strides=[2,1]"), ((3, 3), "dilations=[2,1]")],
)
def test_other_kernels_of_few_taps_stay(kernel: tuple[int, int], attributes: str):
    assert has_convolution(training_of(model_of(kernel, attributes)))


def test_copies_are_few_beside_the_largest_tensor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(depthwise.depthwise_rows, "MOST_COPIES", 0.1)
    assert has_convolution(training_of(model_of((5, 5), "pads=[2,2,2,2]")))


def test_nothing_is_copied_where_a_step_has_its_peak():
    assert has_convolution(training_of(model_of((5, 5), "pads=[2,2,2,2]", kept=2)))


def test_copies_do_not_wait_for_the_backward_pass():
    """The gradient of the weight alone copies the same rows, which are not to be kept from here on."""
    training = training_of(model_of((5, 5), "pads=[2,2,2,2], strides=[2,2]"))
    reads = {
        value.name for node in training.model.graph if "/grad/" in str(node.name) for value in node.inputs if value
    }
    made = {value.name for node in training.model.graph if node.name.startswith("Conv_1/") for value in node.outputs}
    forward = {name for name in made if "/grad" not in name}
    assert not has_convolution(training)
    assert not forward & reads


def test_cuda_convolves_by_few_taps():
    model = model_of((3, 3), "pads=[1,1,1,1]")
    assert has_convolution(build_training_graph(model, wrt=["x", "w"], device="cuda"))
    assert not has_convolution(training_of(model))
