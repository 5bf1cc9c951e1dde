"""What is seen in the values of a tensor: formulas are, weights are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.model.structure import Kind, are_equal, is_unstructured, structure_of
from tests.model.models import normal

TABLE = Kind.TABLE.value
POSITIONS = np.arange(128)[:, None]
ANGLES = POSITIONS * 10000.0 ** (-np.arange(32) / 32)
SINES = np.concatenate([np.sin(ANGLES), np.cos(ANGLES)], axis=1)
ROWS, COLUMNS = np.divmod(np.arange(49), 7)
IMAGES = np.concatenate(
    [wave(at[:, None] * ANGLES[1, ::2]) for at in (ROWS, COLUMNS) for wave in (np.sin, np.cos)], axis=1
)
LENGTHS = np.arange(32)
CAUSAL = np.triu(np.full((16, 16), -3.4e38), 1)

FORMULAS = {
    "zeros": (np.zeros((6, 4)), "all 0"),
    "full": (np.full((2,), 3.5), "all 3.5"),
    "causal mask": (CAUSAL, "a mask"),
    "mask of infinities": (np.where(CAUSAL < 0, -np.inf, 0.0), "a mask"),
    "identity": (3 * np.eye(8), "of 2 values"),
    "one-hot rows": (np.eye(10)[[1, 4, 4, 9]], "of 2 values"),
    "shifted windows": (np.where(np.add.outer(LENGTHS, LENGTHS) % 7 < 3, -100.0, 0.0), "of 2 values"),
    "coordinates": (np.repeat(np.log2(1 + np.arange(8)), 40).reshape(20, 16), "of 8 values"),
    "band": (np.triu(np.tril(np.random.default_rng(0).random((64, 64)), 1), -1), "mostly 0"),
    "rotary table": (np.cos(ANGLES), TABLE),
    "positions": (SINES, TABLE),
    "three positions": (SINES[:3], TABLE),
    "two positions, sine beside cosine": (np.stack([np.sin(ANGLES), np.cos(ANGLES)], 2)[:2].reshape(1, 2, 64), TABLE),
    "positions in images": (IMAGES, TABLE),
    "positions in images behind a class token": (np.concatenate([np.zeros((1, 64)), IMAGES]), TABLE),
    "rotary table of five": (np.cos(ANGLES)[3:8], TABLE),
    "positions with padding": (np.concatenate([np.zeros((2, 64)), SINES]), TABLE),
    "DFT": (np.cos(2 * np.pi / 32 * np.outer(LENGTHS, LENGTHS)), TABLE),
    "Hann window": (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400), TABLE),
    "windowed DFT": (
        np.hanning(64) * np.sin(2 * np.pi / 64 * np.outer(np.arange(1, 20), np.arange(64))),
        TABLE,
    ),
    "arange": (np.arange(50.0), TABLE),
    "inverse frequencies": (10000.0 ** (-np.arange(32) / 32), TABLE),
    "slopes of ALiBi": (2.0 ** -np.arange(1, 9), TABLE),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORMULAS)
def test_formulas_are_seen(kind: str) -> None:
    array, said = FORMULAS[kind]
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    assert str(structure_of(ir.Tensor(narrow))) == said
    assert str(structure_of(ir.Tensor(array))) == said


@pytest.mark.parametrize(
    "shape", [(9,), (64,), (2, 8), (4, 4), (5, 6), (8, 8), (64, 3, 3, 3), (16, 1, 9, 9), (500, 300), (2, 3)]
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_weights_are_not(shape: tuple[int, ...], dtype: type) -> None:
    for seed in range(4):
        weights = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
        assert structure_of(ir.Tensor(weights)) is None


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_scales_near_one_are_no_formula_in_half_precision(size: int) -> None:
    # All are the same to a twentieth, and rounded to a two thousandth.
    for seed in range(20):
        scales = 1 + 0.05 * np.random.default_rng(seed).standard_normal(size)
        assert structure_of(ir.Tensor(scales.astype(np.float16))) is None


@pytest.mark.parametrize("shape", [(2, 4), (6, 8), (300, 200)])
def test_weights_of_which_each_row_has_one_length_are_no_formula(shape: tuple[int, int]) -> None:
    for seed in range(20):
        weights = np.random.default_rng(seed).standard_normal(shape)
        weights /= np.linalg.norm(weights, axis=1, keepdims=True)
        assert structure_of(ir.Tensor(weights.astype(np.float32))) is None


def test_smooth_weights_are_no_formula() -> None:
    # Learnt positions are smooth along the axis of positions, but not to the fourth digit.
    noise = np.random.default_rng(0).standard_normal(SINES.shape)
    assert structure_of(ir.Tensor((SINES + 0.01 * noise).astype(np.float32))) is None


@pytest.mark.parametrize("row", range(5))
def test_one_row_that_was_trained_is_no_formula(row: int) -> None:
    table = np.zeros((5, 24), np.float32)
    table[row] = np.random.default_rng(0).standard_normal(24)
    assert structure_of(ir.Tensor(table)) is None


@pytest.mark.parametrize("kind", ["counted", "powers", "masked"])
def test_a_few_rows_that_are_no_sines_are_no_table(kind: str) -> None:
    counted = np.arange(28, dtype=np.float32).reshape(7, 4)
    rows = {"counted": counted, "powers": 1.5**counted, "masked": np.where(counted % 5 == 4, -np.inf, counted)}[kind]
    assert structure_of(ir.tensor(rows)) is None


def test_nothing_is_said_of_a_few_values() -> None:
    assert structure_of(ir.Tensor(np.array([1.0, 2.0, 3.0]))) is None
    assert structure_of(ir.Tensor(np.zeros((0, 3)))) is None


def test_a_large_tensor_in_another_file_is_sampled(tmp_path: Path) -> None:
    shape = (1 << 16, 1 << 14)  # 4 GiB, of which nothing is on the disk
    with (tmp_path / "data").open("wb") as stream:
        stream.truncate(4 * shape[0] * shape[1])
    tensor = ir.ExternalTensor(
        "data", 0, 4 * shape[0] * shape[1], ir.DataType.FLOAT, shape=ir.Shape(shape), name="w", base_dir=tmp_path
    )
    assert str(structure_of(tensor)) == "all 0"


def test_copies_are_told_from_others() -> None:
    weights = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    changed = weights.copy()
    changed += 1e-3
    one = ir.Tensor(weights)
    assert are_equal(one, ir.Tensor(weights.copy()))
    assert are_equal(one, ir.Tensor(np.ascontiguousarray(weights.T)), (1, 0))
    assert not are_equal(one, ir.Tensor(np.ascontiguousarray(weights.T)))
    assert not are_equal(one, ir.Tensor(changed))


@pytest.mark.parametrize(("row", "expected"), [(normal(0, 32), True), (np.arange(32, dtype=np.float32), False)])
def test_a_row_that_stands_there_again_and_again_may_be_a_parameter(row: np.ndarray, expected: bool) -> None:
    """As what is looked up of a table for tokens of one kind."""
    value = ir.Value(name="v", const_value=ir.Tensor(np.tile(row, (2, 12, 1))))
    assert structure_of(ir.Tensor(np.tile(row, (2, 12, 1)))) is not None
    assert is_unstructured(value) is expected
