"""Columns of even and of odd places apart, before depthwise convolutions that step over every other one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.rewrites import columns_apart
from ckplan.autodiff.rules.convolution import depthwise_forms
from tests.autodiff.gradcheck import onnxruntime_run, parse, values

SAME = "pads=[1,1,1,1], strides=[2,2]"
CHAIN = "r = Clip(e, low, high)"


def model_of(
    kernel: tuple[int, int] = (3, 3),
    attributes: str = SAME,
    chain: str = CHAIN,
    behind: str = "s = Tanh(y)",
    widens: int = 4,
    size: tuple[int, int] = (8, 10),
) -> ir.Model:
    """A pointwise convolution, what stands between, and a depthwise convolution."""
    height, width = size
    text = (
        f"g (float[2,2,{height},{width}] x) => (float loss) {{ z = Tanh(x) e = Conv(z, p, q) {chain} "
        f"y = Conv<{attributes}, group={2 * widens}>(r, w, b) {behind} loss = ReduceMean<keepdims=0>(s) }}"
    )
    wide = 2 * widens
    arrays = {"p": values(wide, 2, 1, 1, seed=1), "q": values(wide, seed=2), "w": values(wide, 1, *kernel, seed=3)}
    arrays |= {"b": values(wide, seed=4), "low": np.float64(-1), "high": np.float64(2)}
    arrays |= {name: values(wide, seed=5 + at) for at, name in enumerate(("scale", "shift", "mean"))}
    arrays["var"] = values(wide, seed=9, low=0.5)
    return parse(text, **{name: np.asarray(array, dtype=np.float32) for name, array in arrays.items()})


def training_of(model: ir.Model) -> TrainingGraph:
    return build_training_graph(model, wrt=["x", "p", "q", "w", "b"])


def is_apart(training: TrainingGraph) -> bool:
    """Whether the depthwise convolution reads two channels in each group."""
    (conv,) = (node for node in training.model.graph if "y" in [value.name for value in node.outputs])
    return tuple(conv.inputs[1].shape)[1] == columns_apart.STRIDE


def run(training: TrainingGraph) -> dict[str, np.ndarray]:
    (x,) = (value for value in training.model.graph.inputs if value.name == "x")
    return onnxruntime_run(training.model, {"x": values(*map(int, x.shape), seed=3).astype(np.float32)})


@pytest.fixture(autouse=True)
def of_small_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise_forms, "DOT_PLACES", 1)


GEOMETRIES = [
    pytest.param((3, 3), SAME, id="same"),
    pytest.param((3, 3), "pads=[0,0,1,1], strides=[2,2]", id="zeros-behind"),
    pytest.param((3, 3), "strides=[2,2]", id="no-zeros"),
    pytest.param((5, 5), "pads=[2,2,2,2], strides=[1,2]", id="rows-one-by-one"),
    pytest.param((3, 5), "pads=[2,3,2,1], strides=[2,2], dilations=[2,1]", id="uneven"),
    pytest.param((2, 2), "strides=[2,2]", id="two-taps"),
    pytest.param((3, 4), 'auto_pad="SAME_LOWER", strides=[2,2]', id="automatic"),
]


@pytest.mark.parametrize("largest", [1, 10**9], ids=["sample-by-sample", "at-once"])
@pytest.mark.parametrize("einsum", [True, False])
@pytest.mark.parametrize(("kernel", "attributes"), GEOMETRIES)
def test_loss_and_gradients_are_those_of_the_file(kernel, attributes, einsum, largest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ckplan.autodiff.builder.Builder.largest", largest)
    if not einsum:
        monkeypatch.setattr(depthwise_forms, "EINSUM_TYPES", ())
    apart = training_of(model_of(kernel, attributes))
    assert is_apart(apart)
    monkeypatch.setattr(columns_apart, "STRIDE", 3)
    plain = training_of(model_of(kernel, attributes))
    assert not is_apart(plain)
    found, expected = run(apart), run(plain)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=3e-6 * np.abs(array).max(), err_msg=name)


@pytest.mark.parametrize(
    "chain", ["r = Relu(e)", "n = BatchNormalization(e, scale, shift, mean, var) r = HardSwish(n)", "r = Identity(e)"]
)
def test_what_works_at_each_place_alone_may_stand_between(chain):
    assert is_apart(training_of(model_of(chain=chain)))


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({"behind": "m = ReduceMax<keepdims=0>(r) s = Mul(y, m)"}, id="read-by-others"),
        pytest.param({"chain": "r = Softmax<axis=3>(e)"}, id="places-together"),
        pytest.param({"widens": 2}, id="many-channels"),
        pytest.param({"size": (8, 9)}, id="odd-width"),
        pytest.param({"attributes": "pads=[1,1,1,1], strides=[2,1]"}, id="every-column"),
        pytest.param({"attributes": "pads=[1,2,1,2], strides=[2,2], dilations=[1,2]"}, id="taps-apart"),
    ],
)
def test_other_convolutions_stay(model):
    assert not is_apart(training_of(model_of(**model)))


def test_small_planes_stay(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(depthwise_forms, "DOT_PLACES", 400)
    assert not is_apart(training_of(model_of()))


def test_what_gradients_are_asked_for_stays_as_it_is():
    assert not is_apart(build_training_graph(model_of(), wrt=["w", "r"]))


def test_no_gradient_picks_columns():
    training = training_of(model_of())
    columns = [node for node in training.model.graph.all_nodes() if node.op_type in ("Split", "Slice")]
    assert all(node.inputs[0].shape[0] == 8 for node in columns)  # of the weight's gradient alone
