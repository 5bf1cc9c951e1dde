"""Which device runs the model, and which one really did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ckplan.arguments import check_word
from ckplan.errors import EnvironmentUnavailableError

Device = Literal["auto", "cpu", "cuda"]
DEVICES: tuple[Device, ...] = ("auto", "cpu", "cuda")

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


def check_device(device: str) -> None:
    """See that a device is one of `DEVICES`.

    Raises:
        UsageError: it is not.
    """
    check_word("the device", device, DEVICES)


def wanted_providers(ort: Any, device: str) -> list[str]:
    """Execution providers to ask onnxruntime for; CUDA's libraries are loaded on the way.

    Args:
        ort: the onnxruntime module (only a child process imports it).
        device: one of `DEVICES`.

    Raises:
        EnvironmentUnavailableError: ``cuda`` is asked for and this onnxruntime was built without it.
    """
    if device == "cpu":
        return [CPU]
    if CUDA not in ort.get_available_providers():
        if device == "cuda":
            raise EnvironmentUnavailableError(
                "this onnxruntime has no CUDA support", "install onnxruntime-gpu or use --device cpu"
            )
        return [CPU]
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    return [CUDA, CPU]


def device_that_ran(providers: Sequence[str], device: str) -> str:
    """``cpu`` or ``cuda``, read off the session: onnxruntime falls back to the CPU with no more than a log line.

    Args:
        providers: ``session.get_providers()``.
        device: what was asked for.

    Raises:
        EnvironmentUnavailableError: ``cuda`` was asked for and the session runs without it.
    """
    ran = "cuda" if CUDA in providers else "cpu"
    if device == "cuda" and ran != "cuda":
        raise EnvironmentUnavailableError(
            "onnxruntime could not start CUDA and fell back to the CPU",
            "check the driver, CUDA and cuDNN of this machine, or use --device cpu",
        )
    return ran
