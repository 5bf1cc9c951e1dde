"""Settings of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

import ckplan  # noqa: F401 -- turns onnxruntime's telemetry off, whichever test loads onnxruntime first

# Machines that run tests are shared and slow at times; how long an example takes says nothing about it. A gate gives
# one state one answer: new examples come by --hypothesis-profile=explore, and from the fuzzers of benchmarks/.
settings.register_profile("ckplan", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False)
settings.load_profile("ckplan")


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The device ``cuda``, where onnxruntime can run on it; tests that ask for it say what is missing otherwise."""
    from onnx import helper

    from ckplan.errors import CkplanError
    from ckplan.meter import measure
    from tests.meter.models import floats, save

    folder: Path = tmp_path_factory.mktemp("cuda")
    path = save(folder / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], [floats("x", 4)], [floats("y", 4)])
    try:
        return measure(path, device="cuda", runs=1).device
    except CkplanError as error:
        pytest.skip(f"no CUDA device to measure on: {error.message}")
