"""Slices gathered or scattered element by element, and rows that are added in parts."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import onnxruntime
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.idioms import scattering
from tests.autodiff.gradcheck import check_gradient, infer, onnxruntime_run, values, weighed

REDUCTIONS = ["none", "add", "mul", "max", "min"]
ROWS = np.asarray([2, 0, -1, 1, 2, 2])


def rows_model(op_type: str, shape: tuple[int, ...], axis: int, given: list[int], **attributes: str) -> onnx.ModelProto:
    """GatherElements or ScatterElements of whole slices along an axis, whose indices are known at run time alone.

    Args:
        op_type: the operator.
        shape: of the data.
        axis: along which slices are.
        given: shape of what is expanded.
        attributes: more of the operator.
    """
    spread = [*shape]
    spread[axis] = len(ROWS)
    rows = ROWS if attributes.get("reduction") != "none" else np.arange(len(ROWS))  # of equal ones any may stay
    if attributes.get("reduction") == "none":
        shape = (*shape[:axis], len(ROWS), *shape[axis + 1 :])
    arrays = {"p0": values(*shape), "rows": rows.reshape(given), "sizes": np.asarray(spread)}
    others = []
    if op_type == "ScatterElements":
        arrays["p1"] = values(*spread, seed=1)
        others = ["p1"]
    nodes = [
        # A sum of whole numbers and zeros that the loss's own input makes cannot be folded.
        onnx.helper.make_node("Cast", ["p0"], ["whole"], to=onnx.TensorProto.INT64),
        onnx.helper.make_node("ReduceMax", ["whole"], ["most"], keepdims=0),
        onnx.helper.make_node("Sub", ["most", "most"], ["nothing"]),
        onnx.helper.make_node("Add", ["rows", "nothing"], ["read"]),
        onnx.helper.make_node("Expand", ["read", "sizes"], ["spread"]),
        onnx.helper.make_node(op_type, ["p0", "spread", *others], ["y0"], axis=axis, name="rows", **attributes),
    ]
    return weighed(nodes, [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()], ["y0"])


def largest_indices(model: onnx.ModelProto, wrt: list[str]) -> int:
    """Elements of the largest tensor of whole numbers that a step makes, the parameters cast to them left out."""
    graph = build_training_graph(infer(model), loss="loss", wrt=wrt).model.graph
    made = [value for node in graph for value in node.outputs if node.op_type in ("Add", "Expand", "Mul")]
    return max(prod(value.shape.numpy()) for value in made if value.dtype.is_integer())


@pytest.mark.parametrize(("shape", "axis", "given"), [((3, 4), 0, [6, 1]), ((2, 3), 1, [6]), ((2, 3, 2), 1, [6, 1])])
def test_slices_that_are_taken(shape, axis, given):
    model = rows_model("GatherElements", shape, axis, given)
    check_gradient(model)
    graph = build_training_graph(infer(model), loss="loss", wrt=["p0"]).model.graph
    assert "GatherElements" not in {node.op_type for node in graph}


NEIGHBOURS = {
    "of each sample": ((2, 5, 3), (2, 5, 3), (2, 4, 1), (2, 4, 3), 1),
    "of each point, among copies": ((2, 5, 1, 3), (2, 5, 4, 3), (2, 5, 4, 1), (2, 5, 4, 3), 1),
    "of each point, among others": ((2, 5, 4, 3), (2, 5, 4, 3), (2, 5, 4, 1), (2, 5, 4, 3), 1),
    "of fewer samples": ((3, 5, 2, 2), (3, 5, 2, 2), (4, 1, 1), (2, 4, 2, 2), 1),
    "one for all samples": ((1, 5, 3), (2, 5, 3), (4, 1), (2, 4, 3), 1),
    "along the second of three": ((2, 3, 5, 2), (2, 3, 5, 2), (2, 1, 4, 1), (2, 3, 4, 2), 2),
}
"""Shapes of the data, before and after they are copied, of indices likewise, and the axis."""


def neighbours_model(case: str, indices: np.ndarray) -> onnx.ModelProto:
    """What takes rows as pytorch3d and others take neighbours."""
    own, sizes, given, shape, axis = NEIGHBOURS[case]
    nodes = [
        onnx.helper.make_node("Expand", ["p0", "sizes"], ["table"]),
        onnx.helper.make_node("Cast", ["p0"], ["whole"], to=onnx.TensorProto.INT64),
        onnx.helper.make_node("ReduceMax", ["whole"], ["most"], keepdims=0),
        onnx.helper.make_node("Sub", ["most", "most"], ["nothing"]),
        onnx.helper.make_node("Add", ["rows", "nothing"], ["read"]),
        onnx.helper.make_node("Expand", ["read", "shape"], ["spread"]),
        onnx.helper.make_node("GatherElements", ["table", "spread"], ["y0"], axis=axis, name="rows"),
    ]
    arrays = {
        "p0": values(*own),
        "rows": indices.reshape(given),
        "sizes": np.asarray(sizes),
        "shape": np.asarray(shape),
    }
    return weighed(nodes, [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()], ["y0"])


@pytest.mark.parametrize("case", NEIGHBOURS)
@pytest.mark.parametrize("wrt", [["p0"], ["p0", "table"]])
def test_rows_of_each_sample(case, wrt):
    """Some indices count from the end."""
    own, sizes, given, *_ = NEIGHBOURS[case]
    model = neighbours_model(case, np.random.default_rng(3).integers(-5, 5, given))
    check_gradient(model)
    training = build_training_graph(infer(model), loss="loss", wrt=["p0"], retain_grad=wrt[1:])
    assert "GatherElements" not in {node.op_type for node in training.model.graph}
    found = onnxruntime_run(training.model)
    for name, gradient in training.retained.items():  # the same as where nothing is asked for but this
        alone = build_training_graph(infer(model), loss="loss", wrt=[name])
        np.testing.assert_array_equal(found[gradient], onnxruntime_run(alone.model)[alone.retained[name]])
        summed = found[gradient].sum(tuple(i for i, (a, b) in enumerate(zip(own, sizes, strict=True)) if a != b))
        np.testing.assert_allclose(summed.reshape(own), found[training.gradients["p0"]], rtol=1e-6)


@pytest.mark.parametrize("index", [5, -6, 7])
def test_a_row_that_a_sample_does_not_have_is_not_one_of_another(index):
    model, indices = neighbours_model("of each sample", np.zeros(8, np.int64)), np.zeros((2, 4, 1), np.int64)
    indices[int(index < 0), 1] = index  # of the other sample
    rows = next(tensor for tensor in model.graph.initializer if tensor.name == "rows")
    rows.CopyFrom(onnx.numpy_helper.from_array(indices, "rows"))
    training = build_training_graph(infer(model), loss="loss", wrt=["p0"])
    assert "GatherElements" not in {node.op_type for node in training.model.graph}
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="out of data bounds"):
        onnxruntime_run(training.model)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("shape", "axis", "given"), [((3, 4), 0, [6, 1]), ((3, 2, 2), 0, [6, 1, 1]), ((2, 3), 1, [6])])
def test_slices_that_are_put(reduction, shape, axis, given):
    model = rows_model("ScatterElements", shape, axis, given, reduction=reduction)
    check_gradient(model)
    graph = build_training_graph(infer(model), loss="loss", wrt=["p0", "p1"]).model.graph
    assert "GatherElements" not in {node.op_type for node in graph}


@pytest.mark.parametrize("op_type", ["GatherElements", "ScatterElements"])
def test_fixed_indices(op_type):
    """The file holds an index for each element: all of a row are one, and then one of them is another."""
    reduction = {"reduction": "add"} if op_type == "ScatterElements" else {}
    for alike in (True, False):
        spread = np.repeat(ROWS[:, None], 4, axis=1)
        spread[0, 3] = 2 if alike else 0
        arrays = {"p0": values(3, 4), "spread": spread, "p1": values(6, 4, seed=1)}
        others = ["p1"] if reduction else []
        node = onnx.helper.make_node(op_type, ["p0", "spread", *others], ["y0"], axis=0, **reduction)
        kept = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if name in node.input]
        model = weighed([node], kept, ["y0"])
        check_gradient(model)
        graph = build_training_graph(infer(model), loss="loss", wrt=["p0", *others]).model.graph
        assert ("GatherElements" not in {node.op_type for node in graph}) == alike


@pytest.mark.parametrize("columns", [3, 4])
def test_parts_of_slices_stay_elements(columns):
    """Of four columns three are taken: the index is spread, but no whole row is read."""
    nodes = [onnx.helper.make_node("GatherElements", ["p0", "spread"], ["y0"], axis=0)]
    arrays = {"p0": values(3, 4), "spread": np.repeat(ROWS[:, None], columns, axis=1)}
    model = weighed(nodes, [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()], ["y0"])
    check_gradient(model)
    graph = build_training_graph(infer(model), loss="loss", wrt=["p0"]).model.graph
    assert ("GatherElements" in {node.op_type for node in graph}) == (columns == 3)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_rows_go_in_parts(reduction, monkeypatch):
    """The numbers are the same to the bit, and no tensor of places is as large as what is added."""
    model = rows_model("ScatterElements", (3, 4), 0, [6, 1], reduction=reduction)
    runs, sizes = [], []
    for part in (100, 4):
        monkeypatch.setattr(scattering, "_PART", part)
        runs.append(onnxruntime_run(build_training_graph(infer(model), loss="loss", wrt=["p0", "p1"]).model))
        sizes.append(largest_indices(model, ["p0", "p1"]))
    assert sizes == [24, 6]
    for name, array in runs[0].items():
        np.testing.assert_array_equal(array, runs[1][name])
    check_gradient(model)
