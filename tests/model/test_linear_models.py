"""Linear models of ai.onnx.ml, as skl2onnx writes those of scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ckplan
from ckplan.errors import ModelError
from ckplan.training.export import export_weights
from tests.model.models import normal, run, write
from tests.model.torch_files import loaded

X = normal(0, 5, 4)
COEFFICIENTS, INTERCEPTS = normal(1, 3, 4), normal(2, 3)


def classical(
    op_type: str, *behind: onnx.NodeProto, inputs: int = TensorProto.FLOAT, **options: Any
) -> onnx.ModelProto:
    """A model of ai.onnx.ml alone, from X to the scores y and, of a classifier, the label."""
    made = ["y"] if op_type == "LinearRegressor" else ["label", "y"]
    if behind:
        made[-1] = "raw"
    node = helper.make_node(op_type, ["X"], made, name="linear", domain="ai.onnx.ml", **options)
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, None])]
    if op_type == "LinearClassifier":
        kind = TensorProto.STRING if "classlabels_strings" in options else TensorProto.INT64
        outputs.insert(0, helper.make_tensor_value_info("label", kind, [5]))
    graph = helper.make_graph([node, *behind], "g", [helper.make_tensor_value_info("X", inputs, [5, 4])], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)], ir_version=8)


def normalizer(norm: str) -> onnx.NodeProto:
    return helper.make_node("Normalizer", ["raw"], ["y"], domain="ai.onnx.ml", norm=norm)


def numbers(rows: int = 3, intercepts: bool = True) -> dict[str, list[float]]:
    found = {"coefficients": COEFFICIENTS[:rows].reshape(-1).tolist()}
    return found | ({"intercepts": INTERCEPTS[:rows].tolist()} if intercepts else {})


MODELS = {
    "regressor": classical("LinearRegressor", targets=3, **numbers()),
    "no intercepts": classical("LinearRegressor", targets=1, **numbers(1, intercepts=False)),
    "of doubles": classical("LinearClassifier", inputs=TensorProto.DOUBLE, classlabels_ints=[0, 1, 2], **numbers()),
    "softmax": classical(
        "LinearClassifier", normalizer("L1"), classlabels_ints=[7, 8, 9], post_transform="SOFTMAX", **numbers()
    ),
    "two classes": classical(
        "LinearClassifier", normalizer("L1"), classlabels_ints=[0, 1], post_transform="LOGISTIC", **numbers(2)
    ),
    "names": classical("LinearClassifier", normalizer("L2"), classlabels_strings=["a", "b", "c"], **numbers()),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_they_compute_stays_and_coefficients_have_gradients(name: str) -> None:
    model = MODELS[name]
    forward, notes = loaded(model)
    assert "and the coefficients are parameters" in notes
    feeds = {"X": X.astype(np.float64) if name == "of doubles" else X}
    for found, expected in zip(run(forward, feeds), run(model, feeds), strict=True):
        if expected.dtype == np.float32:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected)
    gradients = ckplan.open_model(model, loss="sum-of-squares:y").training.gradients
    intercepts = [] if name == "no intercepts" else ["linear/intercepts"]
    assert sorted(gradients) == ["linear/coefficients", *intercepts]


def test_gradients_are_those_of_a_linear_layer() -> None:
    torch = pytest.importorskip("torch")
    scaler = helper.make_node(
        "Scaler", ["X"], ["scaled"], domain="ai.onnx.ml", offset=[0.5, 1.0, 0.0, 2.0], scale=[2.0, 1.0, 0.5, 3.0]
    )
    model = onnx.ModelProto()
    model.CopyFrom(MODELS["two classes"])
    model.graph.node[0].input[0] = "scaled"
    model.graph.node.insert(0, scaler)
    step = ckplan.open_model(model, loss="sum-of-squares:y")
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    names = ["linear/coefficients", "linear/intercepts"]
    found = session.run([step.training.gradients[name] for name in names], {"X": X})

    weight, bias = (torch.tensor(array[:2], requires_grad=True) for array in (COEFFICIENTS, INTERCEPTS))
    scaled = (torch.tensor(X) - torch.tensor([0.5, 1, 0, 2])) * torch.tensor([2, 1, 0.5, 3])
    (torch.nn.functional.normalize((scaled @ weight.T + bias).sigmoid(), p=1) ** 2).sum().backward()
    np.testing.assert_allclose(found[0], weight.grad.numpy().T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], bias.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_columns_are_taken_as_before() -> None:
    """As before a perceptron behind polynomial features, whose operators are ONNX's."""
    nodes = [
        helper.make_node("Add", ["X", "shift"], ["whole"]),
        helper.make_node("ArrayFeatureExtractor", ["whole", "columns"], ["some"], domain="ai.onnx.ml"),
        helper.make_node("MatMul", ["some", "weight"], ["y"]),
    ]
    shift, weight, columns = normal(4, 4), normal(3, 3, 2), np.array([[3, 0, 3]])
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [5, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 2])],
        [
            onnx.numpy_helper.from_array(array, name)
            for name, array in (("shift", shift), ("weight", weight), ("columns", columns))
        ],
    )
    opsets = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    forward, _ = loaded(model)
    np.testing.assert_allclose(run(forward, {"X": X})[0], run(model, {"X": X})[0], rtol=1e-5, atol=1e-6)

    gradients = ckplan.open_model(model, loss="sum-of-squares:y", wrt=["shift", "weight"]).training
    session = onnxruntime.InferenceSession(ir.to_proto(gradients.model).SerializeToString())
    names = [gradients.gradients[name] for name in ("shift", "weight")]
    of_shift, of_weight = session.run(names, {"X": X})
    some = (X + shift)[:, columns[0]]
    dy = 2 * some @ weight
    whole = np.zeros((5, 4), np.float32)
    np.add.at(whole, (slice(None), columns[0]), dy @ weight.T)
    np.testing.assert_allclose(of_shift, whole.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_weight, some.T @ dy, rtol=1e-4, atol=1e-5)


FITTED = {
    "NaN, one for all": ("Imputer", {"imputed_value_floats": [0.5], "replaced_value_float": float("nan")}),
    "NaN, one a column": ("Imputer", {"imputed_value_floats": [0.5, -1, 2, 3], "replaced_value_float": float("nan")}),
    "a number": ("Imputer", {"imputed_value_floats": [0.5, -1, 2, 3], "replaced_value_float": 4.0}),
    "steps": ("Binarizer", {"threshold": 0.25}),
}


@pytest.mark.parametrize("name", FITTED)
def test_what_is_fitted_lets_what_is_behind_train(name: str) -> None:
    """As behind the power transform of a pipeline, whose exponents are initializers and whose logarithms are NaN."""
    op_type, options = FITTED[name]
    nodes = [
        helper.make_node("Pow", ["X", "exponent"], ["whole"]),
        helper.make_node(op_type, ["whole"], ["filled"], domain="ai.onnx.ml", **options),
        helper.make_node("MatMul", ["filled", "weight"], ["y"]),
    ]
    exponent, weight = np.array([0.5, 2, 2, 2], np.float32), normal(3, 4, 2)
    shapes = {"X": [5, 4], "y": [5, 2]}
    given, result = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items())
    weights = [onnx.numpy_helper.from_array(a, n) for n, a in (("exponent", exponent), ("weight", weight))]
    graph = helper.make_graph(nodes, "g", [given], [result], weights)
    opsets = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"X": np.where(np.eye(5, 4, dtype=bool), np.float32(-2), X)}
    if op_type == "Binarizer":
        feeds = {"X": abs(X)}  # onnxruntime's refuses NaN
    forward, _ = loaded(model)
    (expected,) = run(model, feeds)
    np.testing.assert_allclose(run(forward, feeds)[0], expected, rtol=1e-5, atol=1e-6, equal_nan=True)

    step = ckplan.open_model(model, loss="sum-of-squares:y")
    assert list(step.training.gradients) == ["weight"]
    assert any("get no gradient" in note and "'exponent'" in note for note in step.notes)
    if "NaN" in name:
        session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
        (found,) = session.run([step.training.gradients["weight"]], feeds)
        filled = feeds["X"].astype(np.float64)
        with np.errstate(invalid="ignore"):
            filled = filled**exponent
        filled = np.where(np.isnan(filled), np.array(options["imputed_value_floats"]), filled)
        np.testing.assert_allclose(found, filled.T @ (2 * expected), rtol=1e-4, atol=1e-4)


def test_trained_coefficients_are_written_back(tmp_path: Path) -> None:
    path = write(MODELS["softmax"], tmp_path)
    trained = {"linear/coefficients": 2 * COEFFICIENTS.T, "linear/intercepts": -INTERCEPTS}
    export_weights(path, trained, tmp_path / "trained.onnx")
    label, scores = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"X": X})
    raw = 2 * X @ COEFFICIENTS.T - INTERCEPTS
    expected = np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    np.testing.assert_array_equal(label, raw.argmax(axis=1) + 7)


def test_what_has_no_counterpart_is_refused() -> None:
    """Of one row for two classes, and of a transform that ONNX has no operator for."""
    one_row = classical("LinearClassifier", classlabels_ints=[0, 1], **numbers(1))
    probit = classical("LinearRegressor", targets=3, post_transform="PROBIT", **numbers())
    for model in (one_row, probit):
        with pytest.raises(ModelError, match=r"'linear' \(ai.onnx.ml\) holds its numbers as attributes"):
            ckplan.open_model(model)
