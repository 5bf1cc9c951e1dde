"""Modules and parameters side by side that torch's default exporter merged, with what reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ckplan
from tests.model.models import normal
from tests.model.torch_files import add_source, gradients, in_modules, loaded

ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)
NORMS = ("a.weight", "a.bias", "b.weight", "b.bias")


def norms(scale: np.ndarray, listed: tuple[str, ...] = NORMS, kept: str = "a") -> onnx.ModelProto:
    """Two branches, each behind a norm of its own; one norm is left."""
    return in_modules(
        f"n = LayerNormalization(x, {kept}.weight, {kept}.bias) s = Sigmoid(n) t = Tanh(n) y = Add(s, t)",
        [
            "aten.layer_norm](args = (%x, [4], %p_a_weight, %p_a_bias))",
            "aten.sigmoid](args = (%n,))",
            "aten.tanh](args = (%n_1,))",
            "aten.add](args = (%s, %t))",
        ],
        ["a", "c", "d", ""],
        {f"{kept}.weight": scale, f"{kept}.bias": ZEROS},
        listed,
    )


def apart(nodes: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradients of a file in which nothing was merged."""
    return gradients(in_modules(nodes, [""] * nodes.count(" = "), [""] * nodes.count(" = "), arrays, tuple(arrays)))


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kept", ["a", "b"])
def test_two_norms_that_read_the_same_have_gradients_of_their_own(kept: str) -> None:
    """The file has the scale that the program lists first, be it that of the norm that runs first or not."""
    expected = apart(
        "n = LayerNormalization(x, a.weight, a.bias) m = LayerNormalization(x, b.weight, b.bias) "
        "s = Sigmoid(n) t = Tanh(m) y = Add(s, t)",
        {name: ONES if "weight" in name else ZEROS for name in NORMS},
    )
    listed = NORMS if kept == "a" else (*NORMS[2:], *NORMS[:2])
    assert_close(gradients(norms(ONES, listed, kept)), expected)


def test_a_norm_that_is_used_twice_stays_one() -> None:
    """As a trained one is, which none beside it equals."""
    assert set(gradients(norms(normal(3, 4)))) == set(NORMS[:2])


def test_trained_norms_are_two_in_the_exported_file(tmp_path: Path) -> None:
    """With their nodes, of which onnxruntime takes no two of one name."""
    source, target = tmp_path / "norms.onnx", tmp_path / "trained.onnx"
    onnx.save(norms(ONES), source)
    weights = {name: normal(number, 4) for number, name in enumerate(NORMS)}
    ckplan.export_weights(source, weights, target)
    x = normal(9, 2, 4)
    (found,) = onnxruntime.InferenceSession(target).run(None, {"x": x})
    rows = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    a, b = (rows * weights[f"{norm}.weight"] + weights[f"{norm}.bias"] for norm in "ab")
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-a)) + np.tanh(b), rtol=1e-5, atol=1e-6)


def test_which_of_several_siblings_is_read_is_not_guessed() -> None:
    model = norms(ONES, (*NORMS, "c.weight", "c.bias"))
    assert set(gradients(model)) == set(NORMS[:2])
    assert "4 parameter(s) of the torch module are not in the file" in loaded(model)[1]


def test_a_norm_with_statistics_is_no_sibling_of_one_without() -> None:
    """Such a norm is lost where the exporter folded it into a convolution."""
    model = norms(ONES)
    (signature,) = [one for one in model.graph.metadata_props if "signature" in one.key]
    signature.value = signature.value.replace("\nx:", "\nb_b_mean: BUFFER target='b.running_mean'\nx:")
    assert set(gradients(model)) == set(NORMS[:2])


@pytest.mark.parametrize(("other", "is_copy"), [("r", True), ("conv", False)])
def test_layers_that_begin_with_numbers_are_copies_where_they_are_called_alike(other: str, is_copy: bool) -> None:
    model = in_modules(
        "mm = MatMul(x, q.w) y = Max(mm, mm)",
        ["aten.mm](args = (%x, %p_q_w))", "aten.max](args = (%mm, %mm_1))"],
        ["q", ""],
        {"q.w": normal(5, 4, 4)},
        ("q.w", f"{other}.w"),
    )
    assert set(gradients(model)) == ({"q.w", f"{other}.w"} if is_copy else {"q.w"})


def test_copies_of_a_module_are_apart_with_all_that_is_in_them() -> None:
    weights = {"q.u.w": normal(5, 4, 4), "q.v.w": normal(6, 4, 4)}
    found = in_modules(
        "mm = MatMul(x, q.u.w) mm_1 = MatMul(mm, q.v.w) y = Max(mm_1, mm_1)",
        ["aten.mm](args = (%x, %p_q_u_w))", "aten.mm](args = (%mm, %p_q_v_w))", "aten.max](args = (%mm_1, %mm_3))"],
        ["q.u", "q.v", ""],
        weights,
        (*weights, "r.u.w", "r.v.w"),
    )
    expected = apart(
        "mm = MatMul(x, q.u.w) mm_1 = MatMul(mm, q.v.w) mm_2 = MatMul(x, r.u.w) mm_3 = MatMul(mm_2, r.v.w) "
        "y = Max(mm_1, mm_3)",
        weights | {name.replace("q", "r"): array for name, array in weights.items()},
    )
    assert_close(gradients(found), expected)


@pytest.mark.parametrize(("one", "other"), [("w.0", "w.1"), ("bias_u", "bias_v")])
def test_parameters_of_one_module_are_apart(one: str, other: str) -> None:
    """A sum that begins at zero is named in the program and not in the file; it is none of a sibling."""
    found = in_modules(
        f"mul = Mul(x, m.{one}) tanh = Tanh(mul) add_1 = Add(tanh, tanh) y = Add(add_1, add_1)",
        [
            f"aten.mul](args = (%x, %p_m_{one.replace('.', '_')}))",
            "aten.tanh](args = (%mul,))",
            "aten.add](args = (%add, %tanh_1))",
            "aten.add](args = (%add_1, %add_2))",
        ],
        ["m", "m", "m", ""],
        {f"m.{one}": ONES},
        (f"m.{one}", f"m.{other}"),
    )
    expected = apart(
        f"mul = Mul(x, m.{one}) tanh = Tanh(mul) mul_1 = Mul(x, m.{other}) tanh_1 = Tanh(mul_1) "
        "add_1 = Add(tanh, tanh_1) y = Add(add_1, add_1)",
        {f"m.{one}": ONES, f"m.{other}": ONES},
    )
    assert_close(gradients(found), expected)


@pytest.mark.parametrize(("one", "other"), [("a.weight", "b.weight"), ("table_u", "table_v")])
def test_tables_of_zeros_that_were_looked_up_beforehand_are_apart(one: str, other: str) -> None:
    """Of the constants of the program, as the places that are looked up, none is of a sibling."""
    found = in_modules(
        "add = Add(x, select) tanh = Tanh(add) y = Add(tanh, select)",
        [
            "aten.add](args = (%x, %select))",
            "aten.tanh](args = (%add,))",
            "aten.add](args = (%tanh, %select_1))",
        ],
        ["", "", ""],
        {"select": np.zeros((2, 4), np.float32)},
        (one, other),
    )
    add_source(found, "select", one, "embedding")
    (signature,) = [entry for entry in found.graph.metadata_props if "signature" in entry.key]
    signature.value = signature.value.replace("\nx:", "\nc_a: CONSTANT_TENSOR target='a.lifted_tensor_0'\nx:")
    expected = apart(
        "add = Add(x, a.weight) tanh = Tanh(add) y = Add(tanh, b.weight)",
        {"a.weight": np.zeros((2, 4), np.float32), "b.weight": np.zeros((2, 4), np.float32)},
    )
    assert_close(dict(zip(expected, gradients(found).values(), strict=True)), expected)
    assert f"'{other}' from '{one}'" in loaded(found)[1]
