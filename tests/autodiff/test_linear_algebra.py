"""Determinants."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autodiff.gradcheck import check_gradient, node_model, values


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (2, 3, 3), (2, 1, 4, 4), (3, 2, 2), (3, 1, 1)])
def test_det(shape):
    check_gradient(node_model("Det", values(*shape)), rtol=1e-4)


def test_det_of_a_singular_matrix():
    """It has one, where torch finds zeros."""
    x = np.arange(9, dtype=np.float64).reshape(3, 3)
    found = check_gradient(node_model("Det", x), torch=False)["p0"]
    weight = np.random.default_rng(1).uniform(0.5, 1.5)
    np.testing.assert_allclose(found, weight * np.asarray([[-3, 6, -3], [6, -12, 6], [-3, 6, -3]]), atol=1e-9)
