"""The largest of many stretches of an array at once.

Each stretch is covered by two that are as long as a power of two, whose largest values are known in advance (Bender and
Farach-Colton, "The LCA Problem Revisited", LATIN 2000).
"""

from __future__ import annotations

import numpy as np

from ckplan.planner.copies import Integers


def maxima(values: Integers, start: Integers, stop: Integers) -> Integers:
    """The largest value of each stretch; O(n log n) for n values, whatever the stretches.

    Args:
        values: an array.
        start: where each stretch begins.
        stop: the place behind its end; no stretch is empty.
    """
    length = stop - start
    power = np.frexp(length)[1] - 1
    table = np.empty((int(power.max(initial=0)) + 1, len(values)), values.dtype)
    table[0] = values
    for row in range(1, len(table)):
        half, end = 1 << (row - 1), len(values) - (1 << row) + 1
        np.maximum(table[row - 1, :end], table[row - 1, half : half + end], out=table[row, :end])
    found: Integers = np.maximum(table[power, start], table[power, stop - (1 << power)])
    return found
