"""Pooling operators."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.utils
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.reading import size_of
from ckplan.autodiff.rules.pooling import pool_maxima
from ckplan.errors import UnsupportedOperatorsError
from ckplan.runtime.sizes import bytes_of
from tests.autodiff.gradcheck import (
    check_gradient,
    infer,
    node_model,
    onnxruntime_run,
    to_dtype,
    values,
    weighed,
)
from tests.autodiff.reference_operators import use_reference_operators
from tests.node_cases.functions import by_onnxruntime

__all__ = ["use_reference_operators"]
pytestmark = pytest.mark.usefixtures("use_reference_operators")

#: Input, attributes.
WINDOWS = [
    pytest.param((2, 2, 7), {"kernel_shape": [3]}, id="1d"),
    pytest.param((2, 2, 6, 6), {"kernel_shape": [2, 2], "strides": [2, 2]}, id="side-by-side"),
    pytest.param((2, 2, 7, 5), {"kernel_shape": [2, 2], "strides": [2, 2]}, id="side-by-side-tail"),
    pytest.param((2, 2, 7, 5), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, id="side-by-side-ceil"),
    pytest.param((2, 2, 5, 6), {"kernel_shape": [3, 2]}, id="overlapping"),
    pytest.param((2, 2, 5, 6), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, id="same"),
    pytest.param((2, 2, 7, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, id="strides"),
    pytest.param((2, 2, 7, 8), {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 0, 2, 1]}, id="uneven-pads"),
    pytest.param((2, 2, 8, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, id="ceil"),
    pytest.param((2, 2, 3, 2), {"kernel_shape": [9, 9], "strides": [9, 9], "ceil_mode": 1}, id="far-larger"),
    pytest.param(
        (2, 2, 8, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 1, 1], "ceil_mode": 1}, id="ceil-pads"
    ),
    pytest.param((2, 2, 7, 7), {"kernel_shape": [2, 2], "strides": [3, 3]}, id="gaps"),
    pytest.param((2, 2, 7, 8), {"kernel_shape": [2, 3], "dilations": [2, 2]}, id="dilations"),
    pytest.param((2, 2, 5, 5), {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}, id="same-upper"),
    pytest.param((2, 2, 5, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}, id="same-lower"),
    pytest.param((2, 2, 5, 5), {"kernel_shape": [2, 2], "auto_pad": "VALID"}, id="valid"),
    pytest.param(
        (2, 2, 5, 5), {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "VALID", "ceil_mode": 1}, id="valid-ceil"
    ),
    pytest.param((2, 2, 5, 5), {"kernel_shape": [5, 5]}, id="everything"),
    pytest.param((1, 2, 4, 5, 4), {"kernel_shape": [2, 2, 3], "strides": [2, 1, 1]}, id="3d"),
]


@pytest.mark.parametrize(("x", "attributes"), WINDOWS)
def test_max_pool(x, attributes):
    check_gradient(node_model("MaxPool", values(*x), **attributes))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of MaxPool are made by comparisons, however small the input."""
    monkeypatch.setattr(pool_maxima, "MANY_ELEMENTS", 1)
    monkeypatch.setattr(pool_maxima, "LEAST_PARTS", 2)
    monkeypatch.setattr(pool_maxima, "MOST_TAPS", 9)


@pytest.mark.parametrize(("x", "attributes"), WINDOWS)
def test_max_pool_by_comparisons(x, attributes, compared):
    model = node_model("MaxPool", values(*x), **attributes)
    kinds = [node.op_type for node in build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph]
    assert "Scan" in kinds
    assert "ScatterElements" not in kinds
    check_gradient(model)


@pytest.mark.parametrize(("elements", "parts"), [(10**9, 5), (100, 15), (1, 30)])
def test_many_parts_are_larger_instead(elements, parts, compared, monkeypatch):
    # 30 planes of 49 elements: by smallness alone there would be a part for each.
    monkeypatch.setattr(pool_maxima, "PART_ELEMENTS", 1)
    monkeypatch.setattr(pool_maxima, "ENOUGH_PARTS", 4)
    monkeypatch.setattr(pool_maxima, "MOST_ELEMENTS", elements)
    model = node_model("MaxPool", values(5, 6, 7, 7), kernel_shape=[3, 3], strides=[2, 2])
    graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
    (scan,) = (node for node in graph if node.op_type == "Scan")
    assert scan.inputs[0].shape[0] == parts
    check_gradient(model)


def test_of_equal_maxima_the_first_in_memory_takes_the_gradient(compared):
    # The maximum of the first window is 1, twice: to the right in the first row, to the left in the second.
    x = np.zeros((1, 2, 4, 4))
    x[0, 0, 0, 1] = x[0, 0, 1, 0] = 1.0
    model = node_model("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    single = build_training_graph(infer(to_dtype(model, np.float32)), loss="loss", wrt=["p*"])
    gradient = onnxruntime_run(single.model)[single.gradients["p0"]][0]
    assert gradient[0, 0, 1] > 0 == gradient[0, 1, 0]
    assert (gradient[1, ::2, ::2] > 0).all()
    assert np.count_nonzero(gradient) == 8


def test_comparisons_are_for_large_inputs_and_work_in_small_parts_of_them():
    def inside(*shape: int) -> list[ir.Node]:
        model = node_model("MaxPool", values(*shape), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
        return [node for scan in graph if scan.op_type == "Scan" for node in scan.attributes["body"].as_graph()]

    assert not inside(4, 8, 60, 60)
    assert max(size_of(value) for node in inside(4, 8, 72, 72) for value in node.outputs) <= 4 * 8 * 72 * 72 / 8


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(("x", "attributes"), WINDOWS)
def test_average_pool(x, attributes, include):
    check_gradient(node_model("AveragePool", values(*x), count_include_pad=include, **attributes))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("x", "attributes"), WINDOWS)
def test_lp_pool(x, attributes, p):
    check_gradient(node_model("LpPool", values(*x), p=p, **attributes))


@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize("auto_pad", ["SAME_LOWER", "SAME_UPPER"])
def test_dilations_that_onnxruntime_does_not_pad_for_are_refused(op_type, auto_pad):
    x = values(1, 2, 7)
    model = node_model(op_type, x, opset=22, kernel_shape=[3], dilations=[2], auto_pad=auto_pad)
    alone = onnx.utils.Extractor(onnx.shape_inference.infer_shapes(to_dtype(model, np.float32))).extract_model(
        [], ["y0"]
    )
    assert by_onnxruntime(alone)({})[0].shape == (1, 2, 5)  # and not x.shape, as ONNX says
    with pytest.raises(UnsupportedOperatorsError, match="write 'pads' in its place"):
        build_training_graph(infer(model), loss="loss", wrt=["p0"])
    check_gradient(node_model(op_type, x, opset=22, kernel_shape=[1], dilations=[2], auto_pad=auto_pad))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 2), (2, 3, 1, 1)])
@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools(op_type, shape):
    check_gradient(node_model(op_type, values(*shape)))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool(p):
    check_gradient(node_model("GlobalLpPool", values(2, 3, 4, 5), p=p))


def chain(middle: str, *more: onnx.NodeProto) -> onnx.ModelProto:
    nodes = [
        onnx.helper.make_node(middle, ["p0"], ["x"], name="before"),
        onnx.helper.make_node("MaxPool", ["x"], ["y0"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        *more,
    ]
    results = [f"y{index}" for index in range(1 + len(more))]
    return weighed(nodes, [onnx.numpy_helper.from_array(values(1, 2, 6, 6), "p0")], results)


def pools(model: onnx.ModelProto) -> list[tuple[str | None, int]]:
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    found = [node for node in training.model.graph if node.op_type == "MaxPool"]
    return [(node.metadata_props["pkg.ckplan.phase"], len(node.outputs)) for node in found]


def test_max_pool_keeps_indices_where_its_input_could_be_dropped():
    assert pools(chain("Neg")) == [("forward", 2)]
    check_gradient(chain("Neg"))


@pytest.mark.parametrize(
    "model",
    [chain("Tanh"), chain("Neg", onnx.helper.make_node("Mul", ["x", "x"], ["y1"], name="square"))],
    ids=["kept-by-its-producer", "kept-by-another-reader"],
)
def test_max_pool_reads_its_input_again_where_that_is_kept_anyway(model):
    assert pools(model) == [("forward", 1), ("backward", 2)]
    check_gradient(model)


def test_of_equal_maxima_the_first_one_takes_the_gradient():
    x = np.zeros((1, 1, 4, 4))
    model = node_model("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    single = build_training_graph(infer(to_dtype(model, np.float32)), loss="loss", wrt=["p*"])
    gradient = onnxruntime_run(single.model)[single.gradients["p0"]][0, 0]
    assert (gradient[::2, ::2] > 0).all()
    assert np.count_nonzero(gradient) == 4


def test_indices_that_the_model_asks_for_serve_the_gradient():
    model = node_model("MaxPool", values(1, 2, 6, 6), outputs=2, kernel_shape=[2, 2])
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    assert [node.op_type for node in training.model.graph].count("MaxPool") == 1
    check_gradient(model, torch=False)


def test_column_major_indices_are_not_used():
    model = node_model("MaxPool", values(1, 2, 6, 4), outputs=2, kernel_shape=[2, 2], storage_order=1)
    check_gradient(model, torch=False)


def test_a_window_far_larger_than_its_input_makes_nothing_of_its_own_size():
    model = node_model("AveragePool", values(2, 2, 3, 2), kernel_shape=[9, 9], strides=[9, 9], ceil_mode=1)
    graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
    assert max(bytes_of(value) for node in graph for value in node.outputs) == 2 * 2 * 3 * 2 * 8


def test_average_pool_reads_no_activation():
    model = node_model("AveragePool", values(1, 2, 6, 6), kernel_shape=[3, 3], strides=[2, 2])
    graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
    read = [value for node in graph if node.metadata_props["pkg.ckplan.phase"] == "backward" for value in node.inputs]
    assert not {"p0", "y0"} & {value.name for value in read if isinstance(value, ir.Value)}
