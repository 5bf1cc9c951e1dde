"""What torch's exporters looked up in a parameter: each number again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.training.export import with_weights
from tests.model.models import normal, parse, run
from tests.model.torch_files import add_source, exported, loaded

TABLE = np.sort(normal(5, 15))
"""A number for each distance of two of eight positions."""
PLACES = np.subtract.outer(np.arange(8), np.arange(8)) + 7
LOOKED_UP = TABLE[PLACES].astype(np.float32)


def older(array: np.ndarray, operator: str = "Add", name: str = "onnx::Add_9") -> onnx.ModelProto:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,8,8] x) => (float[2,8,8] y) '
        f'{{ h = Softmax <axis=-1> (x) y = {operator}(h, "{name}") }}'
    )
    model = parse(text, {name: array})
    model.producer_name = "pytorch"
    return model


def newer(array: np.ndarray, operator: str = "Add") -> onnx.ModelProto:
    model = exported(
        f"h = Softmax <axis=-1> (x) y = {operator}(h, view_3)",
        {"view_3": array},
        {"p_a_table": ("PARAMETER", "a.table")},
        ["aten.softmax", "aten.add"],
    )
    for value in (model.graph.input[0], model.graph.output[0]):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, [2, 8, 8]))
    add_source(model, "view_3", "a.table", "index")
    return model


def simplified(array: np.ndarray) -> onnx.ModelProto:
    """As onnxruntime's optimiser leaves a file of the old exporter, in which the lookup is a node."""
    return older(array, name="/block/Gather_1_output_0")


@pytest.mark.parametrize("exporter", [older, simplified, newer])
def test_gradients_of_equal_numbers_are_summed(exporter: Callable[[np.ndarray], onnx.ModelProto]) -> None:
    model = exporter(LOOKED_UP)
    forward, notes = loaded(model)
    assert "looked up in the step again" in notes
    x, target = normal(0, 2, 8, 8), normal(1, 2, 8, 8)
    (want,) = run(model, {"x": x})
    np.testing.assert_array_equal(run(forward, {"x": x})[0], want)

    step = ckplan.open_model(model, loss="mse")
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    (found,) = session.run(list(step.training.gradients.values()), {"x": x, "target": target})
    slopes = (2 * (want - target) / want.size).sum(0)
    expected = [slopes[place == PLACES].sum() for place in range(15)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("model", "told"), [(older(LOOKED_UP), False), (newer(LOOKED_UP), True)])
def test_where_the_file_does_not_say_in_what_a_note_tells_what_may_lack(model: onnx.ModelProto, told: bool) -> None:
    """As of a product of two parameters with a state that starts at zero: a step later both are read again."""
    _, notes = loaded(model)
    assert ("looked-up tensor(s) the file does not say ('onnx::Add_9'): the gradient of one" in notes) is not told


def test_a_weight_of_a_layer_is_looked_up_where_its_name_tells() -> None:
    """As of a layer that goes by distances: a Toeplitz matrix."""
    forward, notes = loaded(newer(LOOKED_UP, "MatMul"))
    assert "'view_3' (15 numbers for 64 places)" in notes
    assert forward.graph.initializers["view_3_table"].shape == (15,)


@pytest.mark.parametrize(
    "model",
    [
        older(normal(3, 8, 8)),
        older(LOOKED_UP, "MatMul", "onnx::MatMul_9"),
        older(LOOKED_UP, name="a.bias"),
        older(LOOKED_UP.astype(np.float16).astype(np.float32)),
        older((np.round(LOOKED_UP * 7) / 7).astype(np.float32)),
        older(np.triu(LOOKED_UP)),
    ],
    ids=["free", "a layer's", "named", "rounded to half precision", "rounded to steps", "masked"],
)
def test_others_stay(model: onnx.ModelProto) -> None:
    assert {"onnx::Add_9", "onnx::MatMul_9", "a.bias"} & set(loaded(model)[0].graph.initializers)


def test_a_note_says_that_zeros_do_not_tell_what_is_one_number() -> None:
    assert (
        "1 tensor(s) of zeros were looked up in a parameter ('view_3' of 'a.table')" in loaded(newer(LOOKED_UP * 0))[1]
    )
    assert "of zeros" not in loaded(newer(LOOKED_UP))[1]


@pytest.mark.parametrize(("way", "noted"), [("zeros", True), ("zeros_add", False), ("cat", False)])
def test_zeros_looked_up_for_tokens_that_are_all_of_one_type_are_noted(way: str, noted: bool) -> None:
    """The types are zeros that the program makes; what it adds or joins to others may be zeros of its own."""
    model = exported(
        "h = Softmax <axis=-1> (x) y = Add(h, embedding)",
        {"embedding": np.zeros((2, 4), np.float32)},
        {"p_types": ("PARAMETER", "types.weight")},
        ["aten.softmax", "aten.add](args = (%softmax, %embedding))"],
    )
    add_source(model, "embedding", "types.weight", "val_0", "zeros", *([] if way == "zeros" else [way.split("_")[-1]]))
    assert ("of zeros were looked up in a parameter ('embedding' of 'types.weight')" in loaded(model)[1]) == noted


def test_a_trained_table_is_looked_up_in_the_exported_file(tmp_path: Path) -> None:
    onnx.save(older(LOOKED_UP), tmp_path / "model.onnx")
    new, x = normal(9, 15), np.zeros((2, 8, 8), np.float32)
    (found,) = run(with_weights(tmp_path / "model.onnx", {"onnx::Add_9_table": new}), {"x": x})
    np.testing.assert_allclose(found[0], new[PLACES] + 1 / 8, rtol=1e-5)
