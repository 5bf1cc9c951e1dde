"""Ones and zeros of a program that torch's default exporter merged with parameters that nothing has trained."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.model.models import normal
from tests.model.torch_files import add_source, exported, gradients, loaded

_PARAMETERS = {"n.weight": np.ones(4, np.float32), "n.bias": np.zeros(4, np.float32)}
_OWN = {"val_1": np.ones(4, np.float32), "val_2": np.zeros(4, np.float32)}
_ARRAYS = {"rows": np.array([2, 4, 1]), "columns": np.array([2, 4]), "four": np.float32(4)}
_NORM = "aten.{}.default](args = (%{}, {}), kwargs = {{}})"
_AFFINE = _NORM.format("layer_norm", "mul", "[4], %p_n_weight, %p_n_bias, 1e-05, False")


def before_a_norm(
    reading: str, lines: list[str], scale: str = "n.weight", shift: str = "n.bias", buffers: tuple[str, ...] = ()
) -> onnx.ModelProto:
    """A layer norm with a scale and a shift behind nodes that make ``n`` of x with ones and zeros."""
    nodes = reading.replace("SCALE", scale).replace("SHIFT", shift)
    arrays = {**_PARAMETERS, **_ARRAYS, **_OWN}
    used = {name: array for name, array in arrays.items() if name in nodes or name in _PARAMETERS}
    operands = {f"p_{name.replace('.', '_')}": ("PARAMETER", name) for name in _PARAMETERS}
    return exported(
        f"{nodes} mul = Mul(n, x) y = LayerNormalization(mul, n.weight, n.bias)",
        used,
        operands | {f"b_{name}": ("BUFFER", name) for name in buffers},
        [*lines, "aten.mul.Tensor](args = (%n, %x), kwargs = {})", _AFFINE],
    )


CONSTANTS = {
    "layer norm": ("n = LayerNormalization(x, SCALE)", [_NORM.format("layer_norm", "x", "[4], None, None, 1e-05")]),
    "layer norm, by default": ("n = LayerNormalization(x, SCALE)", [_NORM.format("layer_norm", "x", "[4]")]),
    "batch norm": (
        "n = BatchNormalization(x, SCALE, SHIFT, SHIFT, SCALE)",
        [_NORM.format("_native_batch_norm_legit_no_training", "x", "None, None, %b_mean, %b_var, 0.1, 1e-05")],
    ),
    "instance norm": (
        "i = Reshape(x, columns) i3 = Reshape(i, rows) n3 = InstanceNormalization(i3, SCALE, SHIFT) "
        "n = Reshape(n3, columns)",
        ["", "", _NORM.format("instance_norm", "i3", "None, None, None, None, True, 0.1, 1e-05, False"), ""],
    ),
    "group norm": (
        "i3 = Reshape(x, rows) n3 = InstanceNormalization(i3, SCALE, SHIFT) "
        "n4 = Reshape(n3, columns) n = Mul(n4, four)",
        [_NORM.format("group_norm", "x", "4, %p_g_weight, %p_g_bias, 1e-05, False")] * 4,
    ),
    "ones": ("n = Mul(x, SCALE)", ["aten.mul.Tensor](args = (%x, %ones), kwargs = {})"]),
    "zeros": ("n = Sub(SHIFT, x)", ["aten.sub.Tensor](args = (%zeros_3, %x), kwargs = {})"]),
}  # fmt: skip


@pytest.mark.parametrize(("reading", "lines"), CONSTANTS.values(), ids=CONSTANTS)
def test_a_parameter_has_no_gradient_by_a_constant_that_it_was_merged_with(reading: str, lines: list[str]) -> None:
    buffers = ("mean", "var") if "%b_" in lines[0] else ()
    found = gradients(before_a_norm(reading, lines, buffers=buffers))
    expected = gradients(before_a_norm(reading, lines, "val_1", "val_2", buffers))
    assert set(_PARAMETERS) <= set(found) <= {*_PARAMETERS, "val_1", "val_2"}
    for name in _PARAMETERS:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-7)


def test_scale_and_shift_of_an_instance_norm_behind_a_group_norm_are_its_own() -> None:
    """The line of the one names the result of the other."""
    affine = "%p_n_weight, %p_n_bias, None, None, True, 0.1, 1e-05, False"
    model = exported(
        "i = Tanh(x) i3 = Reshape(i, rows) n3 = InstanceNormalization(i3, n.weight, n.bias) y = Reshape(n3, columns)",
        {**_PARAMETERS, "rows": _ARRAYS["rows"], "columns": _ARRAYS["columns"]},
        {"p_n_weight": ("PARAMETER", "n.weight"), "p_n_bias": ("PARAMETER", "n.bias")},
        ["", "", _NORM.format("instance_norm", "group_norm", affine), ""],
    )
    assert set(gradients(model)) == set(_PARAMETERS)


def test_constants_that_are_apart_again_are_told_of() -> None:
    _, notes = loaded(before_a_norm(*CONSTANTS["layer norm"]))
    assert "1 tensor(s) that torch's exporter merged with others of equal values are apart again" in notes


SHARED = {
    "by its name": ("n = Mul(x, n.weight)", ["aten.mul.Tensor](args = (%x, %p_n_weight), kwargs = {})"]),
    "a view": ("n = Mul(x, n.weight)", ["aten.mul.Tensor](args = (%x, %view), kwargs = {})"]),
    "by a norm": (
        "n = LayerNormalization(x, n.weight)",
        [_NORM.format("layer_norm", "x", "[4], %p_n_weight, None, 1e-05")],
    ),
}


@pytest.mark.parametrize(("reading", "lines"), SHARED.values(), ids=SHARED)
def test_a_parameter_that_is_read_twice_stays_one(reading: str, lines: list[str]) -> None:
    model, _ = loaded(before_a_norm(reading, lines))
    scales = [value for value in model.graph.initializers.values() if str(value.name).startswith("n.weight")]
    assert [len(value.uses()) for value in scales] == [2]


@pytest.mark.parametrize(
    ("shift", "name", "is_trained"),
    [("", "val_1", False), (", val_2", "val_1", False), (", n.bias", "val_1", True), ("", "n.weight", True)],
    ids=["no shift", "zeros", "a shift of its own", "a name of its own"],
)
def test_ones_under_a_number_are_not_trained_where_no_lines_tell(shift: str, name: str, is_trained: bool) -> None:
    arrays = {**_PARAMETERS, **_OWN, "w": np.eye(4, dtype=np.float32) + 1}
    nodes = f"h = MatMul(x, w) y = LayerNormalization(h, {name}{shift})"
    model = exported(nodes, {key: array for key, array in arrays.items() if key in nodes}, {}, ["", ""])
    del model.graph.metadata_props[:]
    assert set(gradients(model)) == {"w", *([name] if is_trained else []), *(["n.bias"] if "n.bias" in shift else [])}


def gated(read: str, lines: list[str], gate: float = 2.0) -> onnx.ModelProto:
    """A layer times a gate of one number, which is read once more for a number of the program."""
    arrays = {"w": np.eye(4, dtype=np.float32) + 1, "g": np.float32(gate), "two": np.float32(gate)}
    nodes = f"h = MatMul(x, w) {read} y = Mul(m, g)"
    operands = {"p_w": ("PARAMETER", "w"), "p_g": ("PARAMETER", "g")}
    used = {name: array for name, array in arrays.items() if f"{name})" in nodes}
    return exported(nodes, used, operands, ["aten.mm](args = (%x, %p_w))", *lines, "aten.mul](args = (%m, %p_g))"])


@pytest.mark.parametrize(
    ("operator", "line"),
    [
        ("Mul", "aten.mul](args = (%h, 2.0))"),
        ("Pow", "aten.pow](args = (%h, 2))"),
        ("Add", "aten.add](args = (%h, 2))"),
    ],
)
def test_a_parameter_has_no_gradient_by_a_number_of_a_line(operator: str, line: str) -> None:
    found = gradients(gated(f"m = {operator}(h, g)", [line]))
    expected = gradients(gated(f"m = {operator}(h, two)", [line]))
    assert set(found) == {"w", "g"}
    np.testing.assert_allclose(found["g"], expected["g"], rtol=1e-5)


@pytest.mark.parametrize("named", ["p_g", "view"])
def test_a_number_that_a_line_names_or_a_view_of_it_is_the_parameter(named: str) -> None:
    model, notes = loaded(gated("m = Mul(h, g)", [f"aten.mul](args = (%h, %{named}))"]))
    assert len(model.graph.initializers["g"].uses()) == 2
    assert "may have been merged" not in notes


def test_what_a_program_computes_and_a_parameter_of_equal_numbers_may_be_one() -> None:
    model, notes = loaded(gated("m = Mul(h, g)", ["aten.mul](args = (%h, %rsub))"], gate=0.5))
    assert len(model.graph.initializers["g"].uses()) == 2
    assert "1 tensor(s) that torch computes may have been merged with parameters" in notes
    assert "of equal numbers ('rsub' with 'g')" in notes


@pytest.mark.parametrize("numbers", [[0.5, 0.5], [0.5, 0.6]])
def test_parts_of_a_parameter_that_begin_equal_may_be_one(numbers: list[float]) -> None:
    """As those of a softmax of zeros, by which layers are mixed."""
    model = exported(
        "h = Mul(x, getitem) y = Mul(h, getitem)",
        {"getitem": np.asarray(numbers, np.float32).repeat(2)},
        {"p_w": ("PARAMETER", "w")},
        ["aten.mul](args = (%x, %getitem))", "aten.mul](args = (%mul, %getitem_1))"],
    )
    add_source(model, "getitem", "w", "softmax")
    assert ("('getitem_1' with 'getitem')" in loaded(model)[1]) is (len(set(numbers)) == 1)


def test_what_a_node_fills_is_no_parameter_that_is_written_into_it() -> None:
    """As a flow writes the entries below the diagonal of a matrix: those above stay 0."""
    places, entries = np.array([[1, 0], [2, 0], [2, 1]]), normal(0, 3)
    model = exported(
        "zeros = ConstantOfShape (size) matrix = ScatterND (zeros, places, val_13) y = MatMul (x, matrix)",
        {"size": np.array([4, 4]), "places": places, "val_13": entries},
        {"p_lower_entries": ("PARAMETER", "lower_entries")},
        [
            "aten.new_zeros](args = (%p_lower_entries, [4, 4])",
            "aten.index_put](args = (%new_zeros, [%clone], %p_lower_entries)",
            "aten.matmul](args = (%x, %index_put)",
        ],
    )
    add_source(model, "val_13", "lower_entries", "val_12")
    assert set(gradients(model)) == {"val_13"}
    assert "1 weight(s) are what torch's exporter computed: 'val_13' of 'lower_entries'" in loaded(model)[1]
