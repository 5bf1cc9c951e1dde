"""Memory of a GPU as its driver reports it (NVML, https://docs.nvidia.com/deploy/nvml-api/).

It is to the GPU what resident memory is to the host: the CUDA context, libraries, what cuDNN took for itself, and all
that onnxruntime's arena holds, in use or not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from ckplan.meter.meter import Figure, Meter

METER = Meter(
    "gpu",
    (
        Figure("GPU, by its driver", lambda found: found.gpu.peak if found.gpu and found.gpu.of_process else None),
        Figure("GPU, all processes", lambda found: found.gpu.peak if found.gpu and not found.gpu.of_process else None),
    ),
    devices=("cuda",),
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """Memory of a GPU, told by its driver (NVML), which sees more than the arena: the context, libraries, other blocks.

    Attributes:
        name: of the device.
        driver: version of its driver.
        of_process: whether the figures are those of the process; else the device's own, above what was in use before.
        loaded: bytes with the session made.
        first_run: bytes after the first run.
        peak: the largest figure seen, sampled every few milliseconds.
    """

    name: str
    driver: str
    of_process: bool
    loaded: int
    first_run: int
    peak: int


@dataclass(frozen=True)
class GpuMeter:
    """Reads the memory in use on one GPU.

    Attributes:
        name: of the device.
        driver: version of its driver.
        of_process: whether the driver tells processes apart; in some containers, and on Windows, it does not.
        before: bytes that were in use on the device when the meter was made.
    """

    name: str
    driver: str
    of_process: bool
    before: int
    _nvml: Any
    _handle: Any

    def used(self) -> int:
        """Bytes that this process has on the device, or that came to the device's use since the meter was made."""
        try:
            if self.of_process:
                return _of_process(self._nvml, self._handle) or 0
            return max(int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used) - self.before, 0)
        except self._nvml.NVMLError:  # a driver that falls silent costs a sample, not the run
            return 0


def meter() -> tuple[GpuMeter | None, str]:
    """A meter of the GPU that onnxruntime takes by default, or None and why there is none.

    To be called before the process uses the GPU, and again through `settled` when it does.
    """
    try:
        import pynvml
    except ImportError:
        return None, "no figure from the GPU's driver: nvidia-ml-py is not installed (pip install 'ckplan[cuda]')"
    try:
        pynvml.nvmlInit()
        handle = _first_visible(pynvml)
        used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        name, driver = _text(pynvml.nvmlDeviceGetName(handle)), _text(pynvml.nvmlSystemGetDriverVersion())
        return GpuMeter(name, driver, False, used, pynvml, handle), ""
    except pynvml.NVMLError as error:
        return None, f"no figure from the GPU's driver: {error}"


def settled(found: GpuMeter) -> GpuMeter:
    """The meter once the process uses the GPU, for only then the driver can be seen to tell processes apart."""
    return replace(found, of_process=_of_process(found._nvml, found._handle) is not None)


def _of_process(nvml: Any, handle: Any) -> int | None:
    """Bytes of this process, None where the driver does not tell."""
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid() and process.usedGpuMemory is not None:
            return int(process.usedGpuMemory)
    return None


def _first_visible(nvml: Any) -> Any:
    """The handle of the first device that CUDA may use; NVML itself heeds no CUDA_VISIBLE_DEVICES."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    if first.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(first))
    return nvml.nvmlDeviceGetHandleByUUID(first)


def _text(value: str | bytes) -> str:
    """NVML's answer as text: older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value
