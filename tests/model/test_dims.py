"""Dimensions: bound by the user, by their names and expressions, or by defaults that are said."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckplan.errors import ModelError, UsageError
from ckplan.model.sizes.dims import bind
from ckplan.model.sizes.expressions import evaluate


def graph(**inputs: Sequence[int | str | None] | None) -> ir.Graph:
    values = [
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=None if dims is None else ir.Shape(dims))
        for name, dims in inputs.items()
    ]
    return ir.Graph(values, [], nodes=[])


def shapes(graph: ir.Graph) -> dict[str, tuple[int, ...]]:
    return {value.name or "": value.shape.numpy() for value in graph.inputs if value.shape is not None}


@pytest.mark.parametrize("name", ["?", "-1", "", "*", "None", None, "batch size", "2x", "a + b"])
def test_names_that_are_no_names_get_a_default(name: str | None) -> None:
    main = graph(x=[name, 5])
    binding = bind(main, {}, {})
    assert shapes(main) == {"x": (8, 5)}
    assert len(binding.notes) == 1
    assert "8 by default" in binding.notes[0]


def test_anonymous_dimensions_are_independent() -> None:
    main = graph(x=["?", "?"])
    bind(main, {}, {})
    assert shapes(main) == {"x": (8, 64)}


def test_the_nameless_batch_of_states_is_that_of_the_input_beside_them() -> None:
    main = graph(input=[None, None], state=[2, None, 128], context=[1, 4, 5])
    notes = bind(main, {}, {}).notes
    assert shapes(main) == {"input": (8, 64), "state": (2, 8, 128), "context": (1, 4, 5)}
    assert "dimension 'batch' is 8 by default" in notes

    main = graph(input=["N", 16], state=[2, None, 128])
    bind(main, {"N": 3}, {})
    assert shapes(main) == {"input": (3, 16), "state": (2, 3, 128)}

    main = graph(input=[None, 16], state=[2, None, 128])
    bind(main, {}, {"input": [4, 16]})
    assert shapes(main) == {"input": (4, 16), "state": (2, 4, 128)}

    main = graph(input=[None, 16], tokens=[2, None, 128])
    bind(main, {}, {"input": [4, 16], "tokens": [2, 7, 128]})
    assert shapes(main) == {"input": (4, 16), "tokens": (2, 7, 128)}


def test_a_sequence_beside_no_batch_or_several_is_no_state() -> None:
    main = graph(audio=[1, None, 80])
    bind(main, {}, {})
    assert shapes(main) == {"audio": (1, 64, 80)}
    main = graph(a=["N", 4], b=["M", 4], c=[2, None, 80])
    bind(main, {}, {})
    assert shapes(main)["c"] == (2, 64, 80)


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        (["N", 3, "H", "W"], (8, 3, 224, 224)),
        ([None, None, None, None], (8, 3, 224, 224)),
        ([None, None, None, 3], (8, 224, 224, 3)),
        (["batch", "sequence"], (8, 64)),
        (["seq_len", "batch", 16], (64, 8, 16)),
        (["batch", "channels", "time"], (8, 3, 64)),
        ([0, -1], (8, 64)),
        (["batch", 4, "past_sequence_length", 16], (8, 4, 0, 16)),  # training is on prompts
        ([], ()),
    ],
)
def test_defaults(dims: list[int | str | None], expected: tuple[int, ...]) -> None:
    main = graph(x=dims)
    bind(main, {}, {})
    assert shapes(main) == {"x": expected}


def test_channels_come_from_the_convolution_that_reads_the_input() -> None:
    main = graph(x=[None, None, None, None])
    weight = ir.Value(name="w", shape=ir.Shape([4, 2, 3, 3]), type=ir.TensorType(ir.DataType.FLOAT))
    main.append(ir.node("Conv", [main.inputs[0], weight], attributes={"group": 2}))
    bind(main, {}, {})
    assert shapes(main) == {"x": (8, 4, 224, 224)}


def test_a_name_has_one_size_everywhere() -> None:
    main = graph(x=["n", "length"], y=["n", "2*length + 1"])
    bind(main, {"n": 3, "length": 5}, {})
    assert shapes(main) == {"x": (3, 5), "y": (3, 11)}


def test_a_shape_binds_the_names_in_it() -> None:
    main = graph(x=["n", 4], y=["n", "m"])
    bind(main, {"m": 7}, {"x": (5, 4)})
    assert shapes(main) == {"x": (5, 4), "y": (5, 7)}


def test_overridden_static_batch_is_followed_by_the_other_inputs() -> None:
    main = graph(ids=[1, 128], mask=[1, 128], scale=[1])
    binding = bind(main, {}, {"ids": (4, 128)})
    assert shapes(main) == {"ids": (4, 128), "mask": (4, 128), "scale": (1,)}
    assert (binding.old_batch, binding.new_batch) == (1, 4)
    assert binding.reference["ids"] == (1, 128)
    assert len(binding.notes) == 2


def test_nothing_overridden_needs_no_reference() -> None:
    assert bind(graph(x=[2, "n"]), {}, {"x": (2, 9)}).reference == {}


@pytest.mark.parametrize(
    ("dims", "given_shapes", "expected"),
    [
        ({"bath": 2}, {}, "`batch`"),
        ({"batch": -2}, {}, "-2"),
        ({}, {"imgae": (1, 2)}, "`image`"),
        ({}, {"image": (1, 2, 3)}, "2 dimensions"),
        ({}, {"image": (-1, 2)}, "is -1; give a whole number of at least 0"),
        ({}, {"image": (2.5, 2)}, "is 2.5; give a whole number"),
        ({}, {"image": 3}, "cannot be 3; give a list of sizes"),
        ({"batch": 2}, {"image": (3, 2)}, "both 2 and 3"),
    ],
)
def test_misfits_are_named(dims: dict[str, int], given_shapes: dict[str, tuple[int, ...]], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        bind(graph(image=["batch", "width"]), dims, given_shapes)


def test_unknown_rank_needs_a_shape() -> None:
    with pytest.raises(ModelError, match="--shape x="):
        bind(graph(x=None), {}, {})
    main = graph(x=None)
    bind(main, {}, {"x": (1, 2)})
    assert shapes(main) == {"x": (1, 2)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + 1", 8),
        ("floor(a/2)", 3),
        ("2*(a - 3)", 8),
        ("max(a, b)", 7),
        ("ceiling(a/2)", 4),
        ("-a", None),
        ("a/2", None),
        ("c", None),
        ("a // 0", None),
        ("__import__('os')", None),
        ("a +", None),
    ],
)
def test_expressions(text: str, expected: int | None) -> None:
    assert evaluate(text, {"a": 7, "b": 2}) == expected


@given(st.lists(st.one_of(st.integers(-1, 5), st.text(max_size=6), st.none()), max_size=5))
def test_every_shape_becomes_static(dims: list[int | str | None]) -> None:
    main = graph(x=dims)
    bind(main, {}, {})
    (shape,) = shapes(main).values()
    assert len(shape) == len(dims)
    for size, dim in zip(shape, dims, strict=True):
        assert size == dim if isinstance(dim, int) and dim > 0 else size >= 0
