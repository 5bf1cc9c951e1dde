"""Gradients of torch modules that went through ``ckplan.export``, beside torch's."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest


@pytest.fixture(autouse=True)
def quiet_torch():
    """Torch traces all it does for whoever captures logs, which takes longer than the exports."""
    trace = logging.getLogger("torch.__trace")
    before = trace.propagate
    trace.propagate = False
    yield
    trace.propagate = before


def gradients_by(training, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(ir.to_proto(training.model).SerializeToString(), options)
    names = list(training.gradients)
    found = session.run([training.gradients[name] for name in names], feeds)
    return dict(zip(names, found, strict=True))


def assert_like_torch(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert sorted(found) == sorted(expected)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, atol=1e-5 * max(1, np.abs(gradient).max()), err_msg=name)
