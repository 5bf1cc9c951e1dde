from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ckplan.arguments import check_factor, check_number, check_table, check_word, names_of, path_of
from ckplan.errors import UsageError


@pytest.mark.parametrize("given", [0, 3, 0.5, 10**400, np.int64(3), np.float32(0.5)])
def test_numbers_of_every_kind_are_taken(given: object) -> None:
    check_number("the budget", given)


@pytest.mark.parametrize("given", [-1, math.nan, math.inf, "1", [1], None, True, 1j])
def test_what_is_no_number_in_range_is_named(given: object) -> None:
    with pytest.raises(UsageError) as caught:
        check_number("the budget", given)
    assert str(caught.value) == f"the budget is {given!r}; give a number of at least 0"


def test_a_value_takes_no_more_than_a_line() -> None:
    with pytest.raises(UsageError) as caught:
        check_number("the budget", np.zeros((30, 30)))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_range_is_told_as_it_is() -> None:
    check_number("the overhead", -5, -math.inf)
    with pytest.raises(UsageError, match=r"is nan; give a number$"):
        check_number("the overhead", math.nan, -math.inf)
    with pytest.raises(UsageError, match=r"is 1\.0; give a whole number of at least 1$"):
        check_number("the number of runs", 1.0, 1, whole=True)


@pytest.mark.parametrize("given", [None, "of", 0, ["a"], np.array(["a", "b"])])
def test_a_word_is_one_of_several(given: object) -> None:
    check_word("the device", "cpu", ("cpu", "cuda"))
    with pytest.raises(UsageError, match=r"; choose one of cpu, cuda$"):
        check_word("the device", given, ("cpu", "cuda"))


@pytest.mark.parametrize("given", [5, ["batch"], {1: 2}])
def test_a_table_has_names(given: object) -> None:
    check_table("`dims`", {"batch": 8})
    with pytest.raises(UsageError, match=r"; give a table: values by name$"):
        check_table("`dims`", given)


@pytest.mark.parametrize("given", ["weight", b"weight", 5, [5], None])
def test_names_are_a_list_of_strings(given: object) -> None:
    assert names_of("`params`", {"weight": 1, "bias": 2}.keys()) == ("weight", "bias")
    with pytest.raises(UsageError, match=r"; give a list of names$"):
        names_of("`params`", given)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "y" * 5000])
def test_a_name_that_no_file_system_has_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^the file is '.*; give a (path without null characters|shorter one)$"):
        path_of("the file", tmp_path / name)


def test_a_factor_is_finite_in_single_precision() -> None:
    check_factor("the learning rate", float(np.finfo(np.float32).max))
    with pytest.raises(UsageError, match=r"^the learning rate is 1e\+39; give at most 3\.40282e\+38$"):
        check_factor("the learning rate", 1e39)
