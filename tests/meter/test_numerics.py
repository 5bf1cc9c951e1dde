"""Comparison of outputs, against numbers worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from ckplan.keys import UPDATES
from ckplan.meter.facts import file_facts
from ckplan.meter.numbers import numerics
from ckplan.meter.numbers.numerics import compare_outputs, count_nonfinite, difference, ulp_distance


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_neighbours_are_one_ulp_apart_everywhere(dtype: type) -> None:
    width = np.dtype(dtype).itemsize
    start = np.array([1.0, 2.0, -3.5, 1e-3, -1e-3, 100.0], dtype=dtype)
    bits = start.view(f"u{width}")
    steps = np.array([1, 2, 3, 4, 5, 6], dtype=bits.dtype)
    assert ulp_distance(start, (bits + steps).view(dtype)).tolist() == steps.tolist()


def test_ulps_count_across_zero() -> None:
    tiny = np.nextafter(np.float32(0), np.float32(1))
    left = np.array([-0.0, -tiny, -tiny], np.float32)
    right = np.array([0.0, 0.0, tiny], np.float32)
    assert ulp_distance(left, right).tolist() == [1, 2, 3]


def test_integers_differ_by_their_difference() -> None:
    far = ulp_distance(np.array([-(2**63)]), np.array([2**63 - 1]))
    assert far.tolist() == [2**64 - 1]


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2])
def test_whole_numbers_of_few_bits_are_no_floating_point_numbers(dtype: type) -> None:
    found = difference("y", np.array([1, 0, 1], dtype), np.array([1, 0, 0], dtype))
    assert found is not None
    assert not found.is_floating
    assert found.max_ulp == 1


def test_equal_outputs_have_no_difference_even_if_nan() -> None:
    array = np.array([1, np.nan, np.inf], np.float32)
    found = compare_outputs({"y": array}, {"y": array.copy()})
    assert found.bitwise_equal
    assert found.compared == ("y",)
    assert found.base_nonfinite == found.new_nonfinite == count_nonfinite({"y": array})
    assert (found.base_nonfinite[0].nan, found.base_nonfinite[0].inf) == (1, 1)


def test_a_small_gradient_that_is_no_rounding_is_judged_by_itself() -> None:
    """Its elements are a ten-thousandth of the largest gradient, and are wrong by a hundredth."""
    base = {"w_grad": np.array([1.0], np.float32), "b_grad": np.array([1e-4], np.float32), "y": np.ones(1, np.float32)}
    new = base | {"b_grad": np.array([1.01e-4], np.float32), "y": np.full(1, 2, np.float32)}
    found = {
        difference.output: difference for difference in compare_outputs(base, new, [{"w_grad", "b_grad"}]).differences
    }
    assert found["b_grad"].relative_to_gradients == pytest.approx(1e-6, rel=1e-3)
    assert not found["b_grad"].is_rounding
    assert found["y"].relative_to_gradients is None


@pytest.mark.parametrize(
    ("apart", "device", "wobble", "rounding"),
    [
        (1e-6, "cpu", 0.0, True),
        (1e-4, "cpu", 0.0, False),
        (1e-4, "cuda", 0.0, True),
        (1e-2, "cuda", 0.0, False),
        (1e-2, "cuda", 4e-3, True),
        (1e-2, "cuda", 2e-3, False),
    ],
)
def test_rounding_is_of_the_device_and_of_what_runs_of_one_file_differ_by(
    apart: float, device: str, wobble: float, rounding: bool
) -> None:
    one = np.ones(4, np.float32)
    (found,) = compare_outputs({"y": one}, {"y": one * np.float32(1 + apart)}).differences
    assert bool(replace(found, device=device, wobble=wobble).is_rounding) is rounding


def test_the_first_differing_output_and_element_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "_CHUNK", 4)  # so that the difference lies in the second part
    base = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    new = base.copy()
    new[1, 2] = np.nextafter(np.nextafter(new[1, 2], np.float32(99)), np.float32(99))
    new[2, 3] = 15
    found = compare_outputs({"a": base, "b": base}, {"a": base, "b": new})
    assert not found.bitwise_equal
    (only,) = found.differences
    assert (only.output, only.elements, only.first) == ("b", 2, (1, 2))
    assert only.base == "7.0"
    assert only.new.startswith("7.00000")
    assert only.max_absolute == 3
    assert only.max_relative == pytest.approx(3 / 15)
    assert only.relative_to_scale == pytest.approx(3 / 12)
    assert only.max_ulp == 3 * 2**20  # between 8 and 16 a unit is 2 ** -20
    assert only.nonfinite == 0


def test_an_infinity_in_one_file_only_is_counted_apart() -> None:
    base = np.array([1, 2, np.inf, np.nan], np.float32)
    new = np.array([np.nan, 2.5, -np.inf, np.nan], np.float32)
    found = difference("y", base, new)
    assert found is not None
    assert found.elements == 3
    assert found.nonfinite == 2
    assert found.max_absolute == 0.5


def test_other_shapes_and_types_are_a_problem_of_their_own() -> None:
    found = difference("y", np.zeros(3, np.float32), np.zeros((3, 1), np.float32))
    assert found is not None
    assert "(3,)" in found.problem
    found = difference("y", np.zeros(3, np.float32), np.zeros(3))
    assert found is not None
    assert "float32" in found.problem


def test_outputs_of_one_file_only_are_listed() -> None:
    one = np.zeros((), np.float32)
    found = compare_outputs({"a": one, "b": one}, {"b": one, "c": one})
    assert (found.only_base, found.only_new, found.compared) == (("a",), ("c",), ("b",))
    assert not compare_outputs({"a": one}, {"c": one}).bitwise_equal


@pytest.mark.parametrize(
    ("base", "new", "first"),
    [
        (np.array([True, False]), np.array([True, True]), (1,)),
        (np.array(["x", "y"]), np.array(["x", "z"]), (1,)),
        (np.array([1, 2]), np.array([3, 2]), (0,)),
        (np.array(1.5), np.array(2.5), ()),
    ],
)
def test_other_types_are_compared_too(base: np.ndarray, new: np.ndarray, first: tuple[int, ...]) -> None:
    found = difference("y", base, new)
    assert found is not None
    assert (found.elements, found.first) == (1, first)
    assert not found.is_rounding
    assert difference("y", base, base) is None


def test_moments_of_an_optimizer_are_judged_by_their_kind() -> None:
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
    updates = ["step", "w", "w_moment1", "w_moment2", "b", "b_moment1", "b_moment2", "running_mean"]
    model.metadata_props[UPDATES] = json.dumps({name: f"{name}_new" for name in updates})
    assert file_facts(model).groups == (
        frozenset({"w_moment1_new", "b_moment1_new"}),
        frozenset({"w_moment2_new", "b_moment2_new"}),
    )
    model.metadata_props[UPDATES] = "damaged"
    assert file_facts(model).groups == ()
