"""Seeded random numbers that come out the same on every platform."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray


def generator(seed: int) -> np.random.Generator:
    """Return the generator that all sample models draw from."""
    return np.random.Generator(np.random.PCG64(seed))


def uniform(
    random: np.random.Generator, shape: Sequence[int], deviation: float, mean: float = 0.0
) -> NDArray[np.float32]:
    """Draw float32 numbers of the given standard deviation, uniform around ``mean``.

    Uniform, not normal: uniform numbers are random bits and one multiplication, without any function of a platform's
    mathematical library, so that a file made of them is the same byte for byte everywhere.
    """
    bound = np.float32(sqrt(3.0) * deviation)
    unit = random.random(tuple(shape), dtype=np.float32)
    return (unit * (2 * bound) + (np.float32(mean) - bound)).astype(np.float32)
