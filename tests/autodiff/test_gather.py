"""Operators that pick elements by index."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.autodiff.gradcheck import (
    build_training_graph,
    check_gradient,
    infer,
    node_model,
    onnxruntime_run,
    reference,
    values,
)

X = values(5, 3, 4)


def ints(numbers: object) -> np.ndarray:
    return np.asarray(numbers, dtype=np.int64)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [0, -1, [0, 2, 0], [-1, 0, 2], [[0, 1], [2, 2]], [1, 2], [[0, 1, 2]]])
def test_gather(axis, indices):
    check_gradient(node_model("Gather", X, ints(indices), axis=axis))


@pytest.mark.parametrize("axis", [0, 1])
def test_overlapping_windows_are_added_without_indices(axis):
    windows = ints([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [-5, -4, -3, -2, -1]])
    model = node_model("Gather", values(6, 7), windows, axis=axis)
    check_gradient(model)
    assert not [n for n in build_training_graph(infer(model)).model.graph if n.op_type.startswith("Scatter")]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("count", "length", "step", "first", "size"),
    [(4, 4, 2, 0, 10), (3, 5, 2, 1, 12), (5, 3, 1, 0, 7), (3, 2, 4, 0, 10), (2, 6, 4, 2, 12), (9, 4, 3, 0, 28)],
    ids=["halves", "an odd rest", "every place", "gaps", "two", "a rest at the end"],
)
def test_the_windows_of_an_unfold_are_added_without_indices(axis, count, length, step, first, size):
    shape = (size, 2) if axis == 0 else (2, size)
    windows = first + step * np.arange(count)[:, None] + np.arange(length)
    model = node_model("Gather", values(*shape), ints(windows), axis=axis)
    check_gradient(model)
    made = [node.op_type for node in build_training_graph(infer(model)).model.graph]
    assert "ScatterElements" not in made
    assert made.count("Pad") <= 2 * -(-length // step)  # not one for each window


@pytest.mark.parametrize("windows", [[[0, 1, 2], [1, 2, 3], [3, 4, 5]], [[0, 1, 2], [2, 3, 4], [4, 5, 5]]])
def test_windows_that_are_not_all_as_far_apart_or_as_long(windows):
    check_gradient(node_model("Gather", values(2, 40), ints(windows), axis=1))


def test_gather_with_computed_indices():
    model = node_model("Gather", X, ints([[1, 4, 1], [0, 1, 4]]))
    model.graph.node[0].input[1] = "computed"
    model.graph.node.insert(0, onnx.helper.make_node("Abs", ["fed"], ["computed"]))
    model.graph.input.append(onnx.helper.make_tensor_value_info("fed", onnx.TensorProto.INT64, [2, 3]))
    training = build_training_graph(infer(model), wrt=["p0"])
    feeds = {"fed": ints([[1, 4, -1], [0, 1, -4]])}
    expected = check_gradient(node_model("Gather", X, ints([[1, 4, 1], [0, 1, 4]])))["p0"]
    np.testing.assert_allclose(reference(training.model, feeds)["p0_grad"], expected)
    np.testing.assert_allclose(onnxruntime_run(training.model, feeds)["p0_grad"], expected)


def test_gather_with_32_bit_indices():
    check_gradient(node_model("Gather", X, np.asarray([0, 2, 2], dtype=np.int32)))


def test_a_tied_table_has_one_gradient_buffer():
    model = onnx.parser.parse_model(
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (int64[2,3] ids, float[7,4] rows) => (float loss)
        <float[7,4] table = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27}>
        {
            embedded = Gather(table, ids)
            hidden = Tanh(embedded)
            turned = Transpose <perm = [1, 0]> (table)
            logits = MatMul(hidden, turned)
            squares = Mul(logits, logits)
            loss = ReduceSum <keepdims = 0> (squares)
        }
        """
    )
    training = build_training_graph(infer(model))
    (gradient,) = (value for value in training.model.graph.outputs if value.name == "table_grad")
    scatter = gradient.producer().inputs[0].producer()
    assert scatter.op_type == "ScatterElements"
    assert scatter.inputs[0].producer().inputs[0].producer().op_type in ("Transpose", "Gemm", "MatMul")
    assert not [n for n in training.model.graph if n.op_type == "Add" and n.outputs[0].shape == gradient.shape]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis):
    indices = np.random.default_rng(0).integers(-3, 3, (3, 3, 3))
    check_gradient(node_model("GatherElements", values(3, 3, 3), indices, axis=axis))


@pytest.mark.parametrize(
    ("shape", "indices", "batch"),
    [
        ((3, 4), [[0, 1], [2, 3], [0, 1]], 0),
        ((3, 4), [[0], [2], [0], [-1]], 0),
        ((3, 4, 2), [[[0, -1]], [[2, 1]]], 0),
        ((2, 4, 3), [[[0], [3]], [[1], [1]]], 1),
        ((2, 2, 3), [[[0], [2]], [[1], [1]]], 2),
    ],
)
def test_gather_nd(shape, indices, batch):
    given = ints(indices)
    check_gradient(node_model("GatherND", values(*shape), given, batch_dims=batch))


@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 1, "largest": 0}])
def test_topk(attributes):
    check_gradient(node_model("TopK", values(4, 5), ints([2]), outputs=2, **attributes))


@pytest.mark.parametrize("axis", [-1, 0])
def test_one_hot(axis):
    check_gradient(node_model("OneHot", ints([0, 2, -1]), ints(4), np.asarray([0.25, 1.5]), axis=axis), runtime=False)
    single = node_model("OneHot", ints([0, 2, -1]), ints(4), np.asarray([0.25, 1.5], np.float32), axis=axis)
    training = build_training_graph(infer(single), wrt=["p2"])
    np.testing.assert_allclose(
        onnxruntime_run(training.model)["p2_grad"], reference(training.model)["p2_grad"], rtol=1e-5
    )


def test_repeated_rows_are_summed_exactly():
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 3, 4000)
    table, weight = np.zeros((3, 64)), rng.integers(0, 3, (4000, 64)).astype(np.float64)
    model = node_model("Gather", table.astype(np.float32), indices)
    tensor = next(t for t in model.graph.initializer if t.name == "weight_y0")
    tensor.CopyFrom(onnx.numpy_helper.from_array(weight.astype(np.float32), "weight_y0"))
    expected = np.zeros_like(table)
    np.add.at(expected, indices, weight)
    training = build_training_graph(infer(model), wrt=["p0"])
    assert (onnxruntime_run(training.model)["p0_grad"] == expected).all()
