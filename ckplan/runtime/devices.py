"""The runtimes by the device that they run on."""

from __future__ import annotations

from collections.abc import Mapping

from ckplan.runtime.cpu import CPU
from ckplan.runtime.cuda import CUDA
from ckplan.runtime.runtime import Runtime

RUNTIMES: Mapping[str, Runtime] = {"cpu": CPU, "cuda": CUDA}
"""What runs a graph on a device, by the device's name."""
