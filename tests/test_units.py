from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckplan.errors import UsageError
from ckplan.units import format_bytes, format_seconds, format_unlike, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096b", 4096),
        ("1k", 1024),
        ("1KiB", 1024),
        ("1 kB", 1000),
        ("512MiB", 512 * 2**20),
        ("512 MB", 512 * 10**6),
        ("1.5GiB", 3 * 2**29),
        (".5g", 2**29),
        (" 2tb ", 2 * 10**12),
    ],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "much", "-1", "1.2.3", "12 parsecs", "1e6", "80%", "MiB"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size; write it like 512MiB") as caught:
        parse_bytes(text)
    assert f"`{text}`" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_budget_may_be_a_share_and_is_no_part_of_a_byte() -> None:
    assert parse_budget("50%") == 0.5
    with pytest.raises(UsageError, match=r"`0\.5` is less than a byte; write it like 512MiB, 1\.5GB, 4096 or 40%"):
        parse_budget("0.5")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (-1536, "-1.5 KiB"),
        (5 * 2**20, "5.0 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**40, "1.0 TiB"),
        (5000 * 2**40, "5000.0 TiB"),
        (2**5000, "9.7e+288 TiB"),
    ],
)
def test_bytes_are_written(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(min_value=0, max_value=2**50))
def test_written_bytes_read_back_to_what_was_shown(count: int) -> None:
    shown = parse_bytes(format_bytes(count))
    assert abs(shown - count) <= max(0.05 * count, 0)


def test_sizes_beside_each_other_are_exact_where_they_would_look_alike() -> None:
    assert format_unlike(12288, 4096) == ("12.0 KiB", "4.0 KiB")
    assert format_unlike(12288, 12287, 4096) == ("12,288 B", "12,287 B", "4,096 B")
    assert format_unlike(12288, 12288) == ("12.0 KiB", "12.0 KiB")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.345, "12.35 s"), (1.0, "1.00 s"), (0.0123, "12.3 ms"), (0.001, "1.0 ms"), (42e-6, "42 us"), (0.0, "0 us")],
)
def test_durations_are_written(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
