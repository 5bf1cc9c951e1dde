"""Files of training data."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest

from ckplan.errors import EnvironmentUnavailableError, ModelError, UsageError
from ckplan.training.data import fitted, read_data
from ckplan.training.stepfile import Spec

INPUTS = {"x": Spec((4, 2, 3), np.dtype(np.float32)), "labels": Spec((4,), np.dtype(np.int64))}


def patched() -> bytes:
    """An archive whose first entry says that it holds a patch, which zipfile does not read."""
    stream = io.BytesIO()
    np.savez(stream, x=np.ones(3))
    made = bytearray(stream.getvalue())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        made[made.index(signature) + flags] |= 1 << 5
    return bytes(made)


def test_arrays_are_brought_into_the_types_of_the_step(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((5, 2, 3)), labels=np.arange(5, dtype=np.uint8), other=np.zeros(3))
    found = fitted(read_data(tmp_path / "d.npz"), INPUTS, "d.npz")
    assert {name: (array.dtype, array.shape) for name, array in found.items()} == {
        "x": (np.float32, (5, 2, 3)),
        "labels": (np.int64, (5,)),
    }


def test_rows_of_a_table_get_the_shape_of_the_input() -> None:
    found = fitted({"x": np.arange(30.0).reshape(5, 6), "labels": np.zeros((5,), np.int32)}, INPUTS, "a table")
    assert found["x"].shape == (5, 2, 3)
    assert found["x"][1, 0, 0] == 6


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("d.csv", b"1,2", "neither .npz nor .parquet"),
        ("d.npz", b"junk", "damaged or of another format"),
        ("d.npz", b"PK\x03\x04junk", "damaged or of another format"),
        ("d.npz", patched(), "damaged or of another format"),
        ("none.npz", None, "there is no file"),
    ],
)
def test_what_is_no_data_is_refused_in_one_line(name: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=said) as error:
        read_data(tmp_path / name)
    assert "\n" not in str(error.value)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ModelError, match="damaged or of another format"):
        read_data(tmp_path / "d.npz")


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_a_table_needs_pyarrow(tmp_path: Path) -> None:
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    with pytest.raises(EnvironmentUnavailableError, match="pip install pyarrow"):
        read_data(tmp_path / "d.parquet")


def test_columns_are_inputs(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    x = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    table = pyarrow.table({"x": x.reshape(5, 6).tolist(), "nested": x.tolist(), "labels": np.arange(5)})
    parquet.write_table(table, tmp_path / "d.parquet")
    found = read_data(tmp_path / "d.parquet")
    np.testing.assert_array_equal(fitted(found, INPUTS, "d")["x"], x)
    np.testing.assert_array_equal(found["nested"], x)
    wide = pyarrow.array(x.tolist(), pyarrow.large_list(pyarrow.large_list(pyarrow.float32())))  # as polars writes
    parquet.write_table(pyarrow.table({"x": wide}), tmp_path / "wide.parquet")
    np.testing.assert_array_equal(read_data(tmp_path / "wide.parquet")["x"], x)
    for bad, said in (([[1.0], [2.0, 3.0, 4.0]], "different lengths"), ([1.0, None], "empty cells")):
        parquet.write_table(pyarrow.table({"x": bad}), tmp_path / "bad.parquet")
        with pytest.raises(UsageError, match=said):
            read_data(tmp_path / "bad.parquet")


def test_whole_numbers_that_do_not_fit_into_the_type_of_the_step_are_refused() -> None:
    inputs = {"tokens": Spec((2, 3), np.dtype(np.int32))}
    with pytest.raises(UsageError, match=r"`tokens` in d\.npz holds numbers that do not fit into int32"):
        fitted({"tokens": np.full((4, 3), 2**31 + 1)}, inputs, "d.npz")


def test_numbers_that_are_infinite_in_the_type_of_the_step_are_refused_without_a_warning_of_numpys() -> None:
    inputs = {"x": Spec((2, 3), np.dtype(np.float32))}
    with pytest.raises(UsageError, match=r"`x` in d\.npz holds NaN or infinity, first in sample 1"):
        fitted({"x": np.array([[0.0] * 3, [1e300] * 3])}, inputs, "d.npz")


@pytest.mark.parametrize("other", [(1, 3), (), (5, 2)])
def test_an_input_that_takes_no_samples_is_named(other: tuple[int, ...]) -> None:
    inputs = {"x": Spec((2, 3), np.dtype(np.float32)), "s": Spec(other, np.dtype(np.float32))}
    given = {"x": np.zeros((4, 3), np.float32), "s": np.zeros((4, *other[1:]), np.float32)}
    with pytest.raises(UsageError, match=r"takes `s` of shape \[.*\], and `x` of \[2, 3\]: their first axes .*--set"):
        fitted(given, inputs, "d.npz")
