"""Parameters that torch's exporter repeated for each sample of a fixed batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from ckplan.keys import STANDS_FOR
from ckplan.training.export import with_weights
from tests.model.models import normal, parse, run, write
from tests.model.torch_files import add_source, exported, loaded, recurrent

ROW = normal(0, 1, 4)


def expanded(array: np.ndarray, on_the_way: str = "expand") -> onnx.ModelProto:
    """A product and what was computed of a parameter that is not in the file."""
    model = exported(
        "h = MatMul(x, l.weight) y = Add(h, val_1)",
        {"l.weight": normal(1, 4, 4), "val_1": array},
        {f"p_{name}": ("PARAMETER", name) for name in ("l.weight", "token")},
        ["aten.mm](args = (%x, %p_l.weight))", "aten.add](args = (%mm, %expand))"],
    )
    add_source(model, "val_1", "token", on_the_way)
    return model


def test_what_was_repeated_for_each_sample_is_one_again() -> None:
    model = expanded(np.repeat(ROW, 2, axis=0))
    found, notes = loaded(model)
    row = found.graph.initializers["val_1_row"]
    assert list(row.shape or ()) == [1, 4]
    assert row.metadata_props[STANDS_FOR] == "token"
    assert "1 weight(s) that torch's exporter repeated are one: 'val_1_row'" in notes
    x = normal(2, 2, 4)
    np.testing.assert_array_equal(run(found, {"x": x})[0], run(model, {"x": x})[0])


@pytest.mark.parametrize(
    ("name", "rows", "is_one"),
    [
        ("/embeddings/Expand_output_0", ROW.repeat(2, axis=0), True),
        ("expand", ROW.repeat(2, axis=0), True),
        ("/embeddings/Expand_output_0", normal(3, 2, 4), False),
        ("/embeddings/Gather_output_0", ROW.repeat(2, axis=0), False),
    ],
)
def test_what_a_tool_computed_of_an_expand_is_one_row(name: str, rows: np.ndarray, is_one: bool) -> None:
    """As tools that simplify a file with a fixed batch do, which keep only the name."""
    model = parse(
        f'''<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (float[2,4] y) {{
        h = MatMul(x, weight) y = Add(h, "{name}") }}''',
        {"weight": normal(1, 4, 4), name: rows},
    )
    found, _ = loaded(model)
    assert set(found.graph.initializers) >= {"weight", f"{name}_row" if is_one else name}
    assert (name in found.graph.initializers) is not is_one


def test_states_of_a_recurrent_layer_are_repeated_along_the_second_axis() -> None:
    state = normal(3, 1, 1, 4)
    model = recurrent(np.repeat(state, 2, axis=1), "%clone, %clone", {"p_h0": "h0"})
    add_source(model, "val_4", "h0", "expand")
    found, _ = loaded(model)
    row = found.graph.initializers["val_4_row"]
    assert (list(row.shape or ()), row.metadata_props[STANDS_FOR]) == ([1, 1, 4], "h0")
    x = normal(2, 2, 4)
    np.testing.assert_array_equal(run(found, {"x": x})[0], run(model, {"x": x})[0])


def test_a_further_key_of_attention_is_repeated_along_the_second_axis() -> None:
    model = expanded(np.repeat(ROW[None], 2, axis=1), "repeat")
    model.graph.node[1].op_type = "Concat"
    model.graph.node[1].attribute.add(name="axis", i=0, type=onnx.AttributeProto.INT)
    model.graph.node[0].input[0] = "steps"
    model.graph.input[0].name = "steps"
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=1))
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    found, _ = loaded(model)
    assert list(found.graph.initializers["val_1_row"].shape or ()) == [1, 1, 4]


@pytest.mark.parametrize(
    ("row", "leaf", "rows", "noted"),
    [
        (normal(4, 1, 1, 8), "bias", 1, False),
        (np.zeros((1, 1, 8), np.float32), "mask_token", 1, False),
        (np.zeros((1, 1, 8), np.float32), "bias", 3, True),
        (np.zeros((1, 1, 8), np.float32), "group_token", 3, True),
        (np.repeat(normal(5, 1, 1, 2), 4, axis=2), "sinks", 3, True),
    ],
)
def test_what_was_repeated_for_each_place_is_one_row_if_that_can_be_told(
    row: np.ndarray, leaf: str, rows: int, noted: bool
) -> None:
    """A mask token, or a bias that is expanded to what it is added to."""
    model = exported(
        "h = MatMul(x, l.weight) s = Reshape(h, sizes) a = Add(s, expand) t = Tanh(a) y = ReduceSum(t, axes)",
        {
            "l.weight": normal(1, 4, 24),
            "expand": np.tile(row, (2, 3, 1)),
            "sizes": np.array([2, 3, 8]),
            "axes": np.array([1]),
        },
        {"p_weight": ("PARAMETER", "l.weight"), "p_row": ("PARAMETER", f"m.{leaf}")},
        [
            "aten.mm](args = (%x, %p_weight))",
            "",
            "aten.add](args = (%view, %expand))",
            "aten.tanh](args = (%add,))",
            "",
        ],
    )
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 8
    add_source(model, "expand", f"m.{leaf}", "val_6")
    found, notes = loaded(model)
    assert list(found.graph.initializers["expand_row"].shape or ()) == [1, rows, 8]
    assert (f"'expand' of 'm.{leaf}'): numbers are trained for each place" in notes) == noted
    x = normal(2, 2, 4)
    np.testing.assert_array_equal(run(found, {"x": x})[0], run(model, {"x": x})[0])


@pytest.mark.parametrize(
    ("array", "on_the_way"),
    [(normal(3, 2, 4), "expand"), (np.repeat(ROW, 2, axis=0), "permute")],
    ids=["rows that differ", "equal rows of a parameter"],
)
def test_other_weights_stay_as_they_are(array: np.ndarray, on_the_way: str) -> None:
    found, _ = loaded(expanded(array, on_the_way))
    assert list(found.graph.initializers["val_1"].shape or ()) == [2, 4]


@pytest.mark.parametrize("axis", [0, 1])
def test_what_was_concatenated_with_itself_is_one_again(axis: int) -> None:
    block = normal(3, *(2 if place == axis else 4 for place in (0, 1)))
    model = expanded(np.concatenate([block, block], axis), "cat")
    model.graph.node[1].op_type = "MatMul"
    found, _ = loaded(model)
    assert {"l.weight", "val_1_block"} <= set(found.graph.initializers)
    np.testing.assert_array_equal(found.graph.initializers["val_1_block"].const_value.numpy(), block)
    x = normal(2, 2, 4)
    np.testing.assert_array_equal(run(found, {"x": x})[0], run(model, {"x": x})[0])


def test_its_trained_values_are_written_into_the_model(tmp_path: Path) -> None:
    path = write(expanded(np.repeat(ROW, 2, axis=0)), tmp_path)
    trained = with_weights(path, {"l.weight": normal(1, 4, 4), "val_1_row": ROW + 1})
    x = np.zeros((2, 4), np.float32)
    np.testing.assert_array_equal(run(trained, {"x": x})[0], np.repeat(ROW + 1, 2, axis=0))
