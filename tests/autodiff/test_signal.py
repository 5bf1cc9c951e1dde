"""Fourier transforms, and sums and products along an axis."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import UnsupportedOperatorsError
from tests.autodiff.gradcheck import (
    check_gradient,
    check_second_derivatives,
    infer,
    node_model,
    onnxruntime_run,
    reference,
    to_dtype,
    values,
)


def number(value: int) -> np.ndarray:
    return np.asarray(value, dtype=np.int64)


# One side of a spectrum stands for the other only from real to complex and back.
@pytest.mark.parametrize(
    ("inverse", "onesided", "width"), [(0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 1), (1, 0, 2), (1, 1, 2)]
)
@pytest.mark.parametrize("length", [None, 4, 5, 8])
@pytest.mark.parametrize("axis", [None, 1, -3])
def test_dft(inverse, onesided, width, length, axis):
    x = values(2, 5, 6, width)
    if inverse and onesided and length is not None:
        length += 2 * (x.shape[-2 if axis is None else 1] - 1 - length // 2)  # even or odd as it is, for so many bins
    inputs = [x, None if length is None else number(length), None if axis is None else number(axis)]
    while inputs[-1] is None:
        inputs.pop()
    check_gradient(node_model("DFT", *inputs, inverse=inverse, onesided=onesided))


@pytest.mark.parametrize("length", [4, 5, 10])
def test_an_inverse_transform_of_other_bins_than_its_length_has_is_refused(length):
    model = node_model("DFT", values(1, 5, 2), number(length), number(1), inverse=1, onesided=1)
    assert abs(reference(model)["loss"] - onnxruntime_run(infer(to_dtype(model, np.float32)))["loss"]) > 1e-3
    with pytest.raises(UnsupportedOperatorsError, match="more or fewer bins"):
        build_training_graph(infer(model), loss="loss", wrt=["p0"])


@pytest.mark.parametrize(("onesided", "width"), [(0, 1), (0, 2), (1, 1)])
@pytest.mark.parametrize(("window", "length"), [(None, 4), (True, None), (True, 4), (True, 5)])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_stft(onesided, width, window, length, step):
    inputs = [values(2, 9, width), number(step), values(length or 4, seed=1) if window else None]
    inputs += [] if length is None else [number(length)]
    check_gradient(node_model("STFT", *inputs, onesided=onesided))


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("zeros", [[], [0], [2], [1, 3], [4], [0, 1, 2, 3, 4]])
def test_cumprod(exclusive, reverse, axis, zeros):
    x = values(3, 5)
    x[0, zeros] = 0
    model = node_model("CumProd", x, number(axis), opset=26, exclusive=exclusive, reverse=reverse)
    check_gradient(model, runtime=not axis)
    check_second_derivatives(model)


@pytest.mark.parametrize(("start", "delta"), [(1.0, 0.5), (4.25, -1.5)])
def test_range(start, delta):
    model = node_model("Range", np.float64(start), np.float64(start + 3.6 * delta), np.float64(delta))
    check_gradient(model, idle=["p1"], torch=False)
