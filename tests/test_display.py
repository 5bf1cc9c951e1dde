"""Small pieces of text for people."""

from __future__ import annotations

import pytest

from ckplan.display import shortened


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        ("ab", "a, b"),
        ("abc", "a, b, c"),
        ("abcd", "a, b, c and 1 more"),
        ("x" * 2000, "x, x, x and 1,997 more"),
    ],
)
def test_a_list_that_is_cut_short_says_how_many_are_left_out(names: str, text: str) -> None:
    assert shortened(names, 3) == text
