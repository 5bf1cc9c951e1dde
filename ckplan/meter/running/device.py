"""Which device runs the model, and which one really did."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from ckplan.arguments import check_number, check_word
from ckplan.errors import EnvironmentUnavailableError, UsageError

Device = Literal["auto", "cpu", "cuda"]
DEVICES: tuple[Device, ...] = ("auto", "cpu", "cuda")

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"

_THREADS_A_CORE = 32
"""More threads are refused. With as many a small step takes five times as long as with one a core; they wait spinning,
and with four times as many it takes forty times as long."""


def check_device(device: str) -> None:
    """See that a device is one of `DEVICES`.

    Raises:
        UsageError: it is not.
    """
    check_word("the device", device, DEVICES)


def check_threads(threads: int | None) -> None:
    """See that a number of threads is one that a run comes to an end with here; None is onnxruntime's own choice.

    Raises:
        UsageError: it is no whole number of at least 1, or far more than the cores that may be used.
    """
    if threads is None:
        return
    check_number("`--threads`", threads, 1, whole=True)
    cores = usable_cores()
    if threads > cores * _THREADS_A_CORE:
        raise UsageError(
            f"`--threads` is {threads}, and {cores} core(s) are there to run them: a step would hardly come to an end",
            f"give at most {cores * _THREADS_A_CORE}, or leave it out",
        )


def usable_cores() -> int:
    """How many cores of the machine this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
