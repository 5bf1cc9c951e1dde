"""Repetitions in a sequence of labels: where a block stands several times in a row, and where else it stands.

Where a sequence equals itself moved by p places for p places or more, there is a block of p labels that is repeated.
All p are tried, at one comparison of arrays each.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

_LONGEST = 4096
"""Labels of the longest block that is looked for."""

Labels = npt.NDArray[np.int32]


def repetitions(labels: Labels, smallest: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """Stretches ``(start, end)`` in which a block stands twice or more in a row.

    Args:
        labels: the sequence.
        smallest: labels of the shortest block that counts.

    Returns:
        For each block, whatever label it begins with, its length and its stretches; first those that spare the most
        labels.
    """
    kinds: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for start, end, period in _runs(labels):
        kinds[np.sort(labels[start : start + period]).tobytes()].append((start, end))
    width = labels.itemsize
    by_gain = [(len(kind) // width, runs) for kind, runs in kinds.items() if len(kind) // width >= smallest]
    by_gain.sort(key=lambda kind: (-sum(end - start - kind[0] for start, end in kind[1]), kind[0], kind[1]))
    return by_gain


def _runs(labels: Labels) -> list[tuple[int, int, int]]:
    """All stretches ``(start, end, period)`` that repeat with a period of 2 or more, at least twice."""
    found = []
    for period in range(2, min(len(labels) // 2, _LONGEST) + 1):
        equal = labels[:-period] == labels[period:]
        if np.count_nonzero(equal) < period:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False]))))
        long = edges[1::2] - edges[::2] >= period
        found += [
            (start, stop + period, period)
            for start, stop in zip(edges[::2][long].tolist(), edges[1::2][long].tolist(), strict=True)
        ]
    return found


def is_repetition(block: Labels) -> bool:
    """Whether a block is a smaller one several times over."""
    size = len(block)
    return any(size % part == 0 and np.array_equal(block[part:], block[:-part]) for part in range(1, size // 2 + 1))


def longest_free(taken: npt.NDArray[np.bool_], start: int, end: int) -> tuple[int, int]:
    """The longest stretch between two positions that is not taken yet; an empty one where all is."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], taken[start:end], [True])))) + start
    return max(
        ((int(first), int(last)) for first, last in zip(edges[::2], edges[1::2], strict=True)),
        key=lambda stretch: stretch[1] - stretch[0],
        default=(start, start),
    )


def further_places(labels: Labels, block: Labels, taken: npt.NDArray[np.bool_]) -> list[int]:
    """Where else a block begins, away from what is taken and without overlap."""
    values, counts = np.unique(labels, return_counts=True)
    often = dict(zip(values.tolist(), counts.tolist(), strict=True))
    rare = min(range(len(block)), key=lambda index: often[int(block[index])])
    places: list[int] = []
    for place in (np.flatnonzero(labels == block[rare]) - rare).tolist():
        end = place + len(block)
        if place < 0 or end > len(labels) or (places and place < places[-1] + len(block)):
            continue
        if not taken[place:end].any() and np.array_equal(labels[place:end], block):
            places.append(place)
    return places
