"""Repetitions of labels, held against what looking at each place finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ckplan.answers.blocks.periods import further_places, is_repetition, longest_free, repetitions

LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=24).map(lambda labels: np.array(labels, dtype=np.int32))


@given(LABELS)
def test_each_stretch_repeats_its_block_and_none_could_be_longer(labels: np.ndarray) -> None:
    for period, stretches in repetitions(labels, 2):
        for start, end in stretches:
            assert end - start >= 2 * period
            assert all(labels[place] == labels[place + period] for place in range(start, end - period))
            assert start == 0 or labels[start - 1] != labels[start - 1 + period]
            assert end == len(labels) or labels[end - period] != labels[end]


def test_a_block_is_found_wherever_it_begins() -> None:
    labels = np.array([9, 1, 2, 3, 1, 2, 3, 8, 2, 3, 1, 2, 3, 1], dtype=np.int32)
    assert repetitions(labels, 3) == [(3, [(1, 7), (8, 14)])]
    assert repetitions(labels, 4) == []


@given(LABELS)
def test_a_repetition_is_a_shorter_block_several_times(labels: np.ndarray) -> None:
    size = len(labels)
    parts = [part for part in range(1, size) if size % part == 0]
    assert is_repetition(labels) == any((np.tile(labels[:part], size // part) == labels).all() for part in parts)


def test_the_longest_free_stretch() -> None:
    taken = np.array([0, 0, 1, 0, 0, 0, 1, 0], dtype=bool)
    assert longest_free(taken, 0, 8) == (3, 6)
    assert longest_free(taken, 0, 5) == (0, 2)
    assert longest_free(taken, 6, 7) == (6, 6)


def test_further_places_do_not_overlap() -> None:
    labels = np.array([1, 1, 1, 2, 1, 1, 1], dtype=np.int32)
    taken = np.array([0, 0, 0, 0, 0, 0, 1], dtype=bool)
    assert further_places(labels, np.array([1, 1], dtype=np.int32), taken) == [0, 4]
