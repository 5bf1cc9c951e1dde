"""Arrays survive the way from process to process."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ckplan.isolation.arrays import Array, load_arrays, save_arrays
from tests.isolation.limits import few_open_files


@pytest.mark.parametrize("mapped", [False, True])
def test_every_kind_of_array_comes_back_as_it_was(tmp_path: Path, mapped: bool) -> None:
    arrays: dict[str, Array] = {
        "/a:b/c": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 4), np.int64),
        "flags": np.array([True, False]),
        "bfloat": np.array([1.5, -2.0, np.nan], dtype=ml_dtypes.bfloat16),
        "bfloat scalar": np.array(1.5, dtype=ml_dtypes.bfloat16),
        "eight": np.array([1, 2], dtype=ml_dtypes.float8_e4m3fn),
        "text": np.array(["one", "three"], dtype=object),
    }
    save_arrays(tmp_path / "new", arrays)
    found = load_arrays(tmp_path / "new", mapped=mapped)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].shape == array.shape, name
        assert found[name].tolist() == array.tolist() or "bfloat" in name, name
        if name != "text":
            assert found[name].dtype == array.dtype, name
            assert found[name].tobytes() == array.tobytes(), name


def test_more_arrays_than_files_may_be_open(tmp_path: Path) -> None:
    save_arrays(tmp_path / "arrays", {str(number): np.array([number]) for number in range(80)})
    with few_open_files():
        loaded = load_arrays(tmp_path / "arrays", mapped=True)
    assert [array.item() for array in loaded.values()] == list(range(80))
