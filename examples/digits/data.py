"""The task: 1,797 images of handwritten digits, 8x8, that come with scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

BATCH = 60
TRAINED = 1500

Batch = tuple[np.ndarray, np.ndarray]


def digits() -> tuple[Batch, Batch]:
    """Images in [0, 1], float32 [N, 1, 8, 8], and labels, int64 [N]: 1,500 to train on and 297 to test with."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.images[order, None] / 16).astype(np.float32)
    labels = found.target[order].astype(np.int64)
    return (images[:TRAINED], labels[:TRAINED]), (images[TRAINED:], labels[TRAINED:])


def batches(epochs: int, seed: int = 0) -> Iterator[Batch]:
    """Batches of 60, in a new random order each epoch, 25 an epoch."""
    (images, labels), _ = digits()
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        for chosen in rng.permutation(TRAINED).reshape(-1, BATCH):
            yield images[chosen], labels[chosen]
