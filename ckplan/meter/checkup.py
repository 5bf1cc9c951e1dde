"""What works on this machine: devices, meters, extras. Each check stands by itself; one that fails is a finding."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ckplan.display import one_line
from ckplan.errors import CkplanError
from ckplan.isolation.folders import temporary_folder
from ckplan.meter.running.device import usable_cores
from ckplan.meter.trial import trial_step
from ckplan.operators.sessions import PACKAGES
from ckplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ckplan.meter.types import Measurement

State = Literal["ok", "missing", "broken"]

_PYTHON = (3, 11)
_PATIENCE = 120
"""Seconds for an import in a process of its own."""
_ROOM = 2**30
"""Bytes for temporary files below which large models may not be measured."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check came to.

    Attributes:
        name: what was looked at.
        state: ``ok``; ``missing``: not there, and ckplan does without; ``broken``: there, but it does not work, or not
            there although it is required.
        found: versions and figures, or what is wrong.
        remedy: what to do about it; empty if nothing is to be done.
        required: whether ckplan cannot do its work without.
    """

    name: str
    state: State
    found: str
    remedy: str
    required: bool


class Missing(Exception):
    """Raised by a check for what is not there.

    Args:
        reason: what is missing.
        remedy: what to do about it.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


class Bench:
    """What several checks share: a small training step, run once on each device."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def model(self) -> Path:
        """A training step of one layer, as a file."""
        return trial_step(self.folder)

    @cached_property
    def on_cpu(self) -> Measurement:
        """What onnxruntime and the meters make of it on the CPU."""
        from ckplan.meter.measurement import measure

        return measure(self.model, device="cpu", runs=1)

    @cached_property
    def on_cuda(self) -> Measurement:
        """The same on a GPU."""
        from ckplan.meter.measurement import measure

        return measure(self.model, device="cuda", runs=1, heap=False)


def checkup(progress: Callable[[str], None] = lambda doing: None) -> tuple[Finding, ...]:
    """Try what ckplan can use on this machine.

    Models run in child processes, and packages that are not needed otherwise are imported in others.

    Args:
        progress: is told what is being looked at.
    """
    found = []
    with temporary_folder() as folder:
        bench = Bench(folder)
        for name, required, check in CHECKS:
            progress(f"checking {name}")
            found.append(judged(name, required, check, bench))
    return tuple(found)


def judged(name: str, required: bool, check: Check, bench: Bench) -> Finding:
    """The finding of one check, whatever happens in it.

    Args:
        name: what is checked, as the table says it.
        required: whether ckplan cannot do without it.
        check: says what was found, or raises `Missing` with a remedy.
        bench: what checks share.
    """
    try:
        return Finding(name, "ok", check(bench), "", required)
    except Missing as error:
        return Finding(name, "broken" if required else "missing", str(error), error.remedy, required)
    except CkplanError as error:
        return Finding(name, "broken" if required else "missing", error.message, error.hint, required)
    except Exception as error:  # a check of what others have installed: anything can happen
        reason = one_line(f"{type(error).__name__}: {error}")
        return Finding(name, "broken", reason, "install ckplan again in a new environment", required)


def _python(bench: Bench) -> str:
    if sys.version_info < _PYTHON:
        raise Missing(f"Python {platform.python_version()}", "use Python 3.11 or later")
    return f"{platform.python_version()} ({sys.executable})"


def _machine(bench: Bench) -> str:
    import psutil  # type: ignore[import-untyped,unused-ignore]

    memory = psutil.virtual_memory()
    return (
        f"{platform.system()} {platform.machine()}, {usable_cores()} of {os.cpu_count()} cores, "
        f"{format_bytes(memory.total)} of memory, {format_bytes(memory.available)} free"
    )


def _onnx(bench: Bench) -> str:
    import onnx
    import onnx_ir

    return f"onnx {onnx.__version__} (operator set {onnx.defs.onnx_opset_version()}), onnx-ir {onnx_ir.__version__}"


def _onnxruntime(bench: Bench) -> str:
    installed = [f"{name} {found}" for name in PACKAGES if (found := _version(name))]
    if not installed:
        raise Missing("onnxruntime is not installed", "pip install onnxruntime-gpu, or onnxruntime without a GPU")
    _import("onnxruntime")
    if len(installed) > 1:
        raise Missing(
            f"{' and '.join(installed)} overwrite each other's files",
            "pip uninstall onnxruntime onnxruntime-gpu, then install one of them",
        )
    return installed[0]


def _cpu(bench: Bench) -> str:
    ran = bench.on_cpu
    return f"a step took {format_seconds(min(ran.step_seconds))} in {ran.providers[0]}"


def _counters(bench: Bench) -> str:
    counters = bench.on_cpu.counters
    if counters is None:
        raise Missing("this onnxruntime has no allocator counters", "pip install 'onnxruntime>=1.31'")
    return f"{format_bytes(counters.peak_activations)} of activations in the step that was tried"


def _heap(bench: Bench) -> str:
    heap = bench.on_cpu.heap
    if heap is None:
        if _version("memray") is None:
            raise Missing("memray is not installed", "pip install memray (Linux and macOS)")
        notes = [note for note in bench.on_cpu.notes if "heap" in note or "memray" in note]
        raise Missing(notes[0] if notes else "memray told nothing", "pip install --upgrade memray")
    return f"memray {_version('memray')}, {format_bytes(heap.activations)} in the step that was tried"


def _cuda(bench: Bench) -> str:
    import onnxruntime

    from ckplan.meter.running.device import CUDA

    if CUDA not in onnxruntime.get_available_providers():
        raise Missing("this onnxruntime is built without CUDA", "pip install onnxruntime-gpu, if there is a GPU")
    ran = bench.on_cuda
    return f"a step took {format_seconds(min(ran.step_seconds))} in {ran.providers[0]}"


def _nvml(bench: Bench) -> str:
    from ckplan.meter.memory import nvml

    found, reason = nvml.meter()
    if found is None:
        told, _, advice = reason.rstrip(")").partition(" (")
        raise Missing(told, advice or "install NVIDIA's driver, if there is a GPU")
    return f"{found.name}, driver {found.driver}, {format_bytes(found.before)} in use"


def _solver(bench: Bench) -> str:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    x = model.new_int_var(0, 9, "x")
    model.maximize(x)
    solver = cp_model.CpSolver()
    if solver.solve(model) != cp_model.OPTIMAL or solver.value(x) != 9:
        raise Missing("OR-Tools does not solve", "pip install --force-reinstall ortools")
    return f"OR-Tools {_version('ortools')}"


def _cache(bench: Bench) -> str:
    from ckplan.meter.seconds.cache import cache_folder

    folder = cache_folder()
    kept = [file.stat().st_size for file in folder.glob("*") if file.is_file()] if folder.is_dir() else []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Missing(
            f"{folder} cannot be written: {error.strerror}", "name another with XDG_CACHE_HOME; costs are measured anew"
        ) from error
    return f"{folder}, {len(kept)} file{'' if len(kept) == 1 else 's'}, {format_bytes(sum(kept))}"


def _temporary(bench: Bench) -> str:
    free = shutil.disk_usage(bench.folder).free
    if free < _ROOM:
        raise Missing(f"{format_bytes(free)} free in {bench.folder.parent}", "name another folder with TMPDIR")
    return f"{bench.folder.parent}, {format_bytes(free)} free"


def _torch(bench: Bench) -> str:
    return _extra("torch", "torch")


def _onnx_ad(bench: Bench) -> str:
    return _extra("onnx-ad", "onnx_ad")


def _extra(package: str, module: str) -> str:
    if (found := _version(package)) is None:
        raise Missing(
            f"{package} is not installed; only ckplan's own tests compare with it", "pip install 'ckplan[oracle]'"
        )
    _import(module)
    return f"{package} {found}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _import(module: str) -> None:
    """Import a module in a process of its own: it may crash, print, or take its time.

    Raises:
        Missing: it cannot be imported.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"import {module} did not end in {_PATIENCE} s", f"install {module} again") from None
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise Missing(f"import {module} fails: {' '.join(last) or done.returncode}", f"install {module} again")


Check = Callable[[Bench], str]
"""Returns what was found; raises `Missing` or anything else where it does not work."""

CHECKS: tuple[tuple[str, bool, Check], ...] = (
    ("Python", True, _python),
    ("machine", False, _machine),
    ("ONNX", True, _onnx),
    ("onnxruntime", True, _onnxruntime),
    ("CPU", True, _cpu),
    ("CUDA", False, _cuda),
    ("allocator counters", False, _counters),
    ("heap meter", False, _heap),
    ("GPU's driver (NVML)", False, _nvml),
    ("solver", True, _solver),
    ("cost cache", False, _cache),
    ("temporary files", False, _temporary),
    ("oracle: torch", False, _torch),
    ("oracle: onnx-ad", False, _onnx_ad),
)
"""What is looked at, whether it is required, and how."""
