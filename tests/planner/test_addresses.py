"""Tests of addresses for all tensors of a run at once."""

from __future__ import annotations

import itertools
import random

import pytest

from ckplan.planner.arena.addresses import Addresses, Asked, Effort, asked_in
from ckplan.planner.arena.cells import MADE


def _asked(*lives: tuple[int, int, int]) -> Asked:
    """What is asked for: first and last step, and units."""
    steps = max(last for _, last, _ in lives) + 1
    stages: list[list[tuple[int, int]]] = [[] for _ in range(steps + 1)]
    stages[0].append(MADE)
    for key, (begin, _, units) in enumerate(lives):
        stages[begin].append((key, units))
    for key, (_, last, _) in enumerate(lives):
        stages[last + 1].insert(0, (key, 0))
    return asked_in(stages)


def _addresses(asked: Asked, *spaces: tuple[int, int], trials: int = 10_000) -> Addresses:
    return Addresses(asked, asked.beside(), spaces, Effort(trials), random.Random(0))


def _overlaps(asked: Asked, found: Addresses) -> list[tuple[int, int]]:
    """What is there at once at one address."""
    clashes = []
    for one in range(len(asked.size)):
        for other in range(one):
            if asked.begin[one] < asked.end[other] and asked.begin[other] < asked.end[one]:
                first, second = found.of(one), found.of(other)
                assert first is not None
                assert second is not None
                if first < second + asked.size[other] and second < first + asked.size[one]:
                    clashes.append((one, other))
    return clashes


class TestAddresses:
    def test_what_is_alive_at_once_lies_apart(self) -> None:
        rng = random.Random(1)
        lives = [(begin := rng.randrange(30), begin + rng.randrange(1, 12), rng.randint(1, 50)) for _ in range(60)]
        asked = _asked(*lives)
        found = _addresses(asked, (0, 1000), (2000, 500))
        assert found.place(range(len(lives)), 10_000)
        assert not _overlaps(asked, found)
        for number, size in enumerate(asked.size):
            address = found.of(number)
            assert address is not None
            assert address + size <= 1000 or 2000 <= address <= 2500 - size

    def test_packs_into_no_more_than_is_alive(self) -> None:
        # Largest first leaves 2 of 6 between what is there at once; only 3 beside 3, then 2, 2 and 2 fit.
        asked = _asked((0, 1, 3), (0, 3, 3), (2, 5, 2), (4, 7, 4), (6, 9, 2), (8, 9, 4))
        found = _addresses(asked, (0, 6))
        assert found.place(range(6), 1000)
        assert not _overlaps(asked, found)

    def test_tells_what_finds_no_room(self) -> None:
        asked = _asked((0, 1, 3), (0, 1, 3))
        found = _addresses(asked, (0, 5))
        assert not found.place([0, 1], 100)
        assert len(found.homeless) == 1

    def test_what_is_too_large_for_every_region_is_homeless(self) -> None:
        found = _addresses(_asked((0, 1, 6)), (0, 5), (10, 5))
        assert not found.place([0], 100)
        assert found.homeless == [0]

    @pytest.mark.parametrize("there", [0, 1])
    def test_others_give_way_to_what_lies_elsewhere(self, there: int) -> None:
        asked = _asked((0, 5, 2), (1, 5, 2), (2, 5, 4))
        found = _addresses(asked, (0, 9))
        assert found.place([0, 1, 2], 100)
        before = found.copy()
        assert found.lies(0, 6 + there, 2, 100)
        assert all(found.of(number) is not None for number in (1, 2))
        assert found.of(0) is None  # there, and no longer to be placed
        spans = sorted([(6 + there, 2), *((found.of(number) or 0, asked.size[number]) for number in (1, 2))])
        assert all(begin + size <= after for (begin, size), (after, _) in itertools.pairwise(spans))
        assert before.of(0) is not None

    def test_what_is_in_the_middle_leaves_no_room(self) -> None:
        asked = _asked((0, 5, 2), (1, 5, 4))
        found = _addresses(asked, (0, 6))
        assert found.place([0, 1], 100)
        assert not found.lies(0, 2, 2, 100)
        assert found.homeless == [1]

    def test_counts_what_is_tried(self) -> None:
        effort = Effort(100)
        asked = _asked((0, 1, 3), (0, 1, 3))
        found = Addresses(asked, asked.beside(), [(0, 6)], effort, random.Random(0))
        assert found.place([0, 1], 10)
        assert effort.left == 98
