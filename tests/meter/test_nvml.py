"""The driver's figure of a GPU, read from a driver made for the purpose."""

# ruff: noqa: N802 (the names are those of the driver's bindings)

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ckplan.meter.memory import nvml


class NVMLError(Exception):
    """As in pynvml."""


class Driver:
    """One GPU, as pynvml tells of it; what a test changes, the driver tells."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.device = 1000
        self.processes: list[Any] = []
        self.broken = False

    def nvmlInit(self) -> None:
        if self.broken:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        self.asked.append(index)
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetName(self, handle: object) -> bytes:
        return b"NVIDIA H200"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> Any:
        if self.broken:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=self.device)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[Any]:
        if self.broken:
            raise NVMLError("GPU is lost")
        return self.processes


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


def test_without_the_bindings_there_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found, note = nvml.meter()
    assert found is None
    assert "pip install 'ckplan[cuda]'" in note


def test_without_a_driver_there_is_a_note(driver: Driver) -> None:
    driver.broken = True
    assert nvml.meter() == (None, "no figure from the GPU's driver: Driver Not Loaded")


def test_the_memory_of_the_process_is_told_where_the_driver_knows_it(driver: Driver) -> None:
    found, note = nvml.meter()
    assert found is not None
    assert not note
    assert (found.name, found.driver) == ("NVIDIA H200", "570.1")
    driver.processes = [
        SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=5),
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=700),
    ]
    found = nvml.settled(found)
    assert found.of_process
    assert found.used() == 700


@pytest.mark.parametrize("known", [[], [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)]])
def test_else_it_is_what_the_device_has_more_than_before(driver: Driver, known: list[Any]) -> None:
    found, _ = nvml.meter()
    assert found is not None
    driver.processes, driver.device = known, 4000
    found = nvml.settled(found)
    assert not found.of_process
    assert found.used() == 3000
    driver.device = 10  # somebody else gave back more
    assert found.used() == 0


def test_a_driver_that_falls_silent_ends_nothing(driver: Driver) -> None:
    found, _ = nvml.meter()
    assert found is not None
    driver.broken = True
    assert found.used() == 0


@pytest.mark.parametrize(
    ("visible", "asked"), [(None, 0), ("2,0", 2), ("GPU-8a1b,GPU-2", "GPU-8a1b"), ("MIG-77", "MIG-77"), ("", 0)]
)
def test_the_device_is_the_first_that_is_visible(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str | None, asked: object
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml.meter()
    assert driver.asked == [asked]
