"""What training steps take when new values are written over the old ones: bytes of a process, by two meters.

    python -m benchmarks.in_place STEP [--steps 5] [--plain [--folder DIR]]

STEP is a file that `ckplan rewrite` or `ckplan grad` wrote with an optimizer. It runs in a process of its own, which
holds its parameters and states once. *Resident* is the growth of the resident set over the process before parameters,
state and session were made, with default session options; *anonymous* is the part of it that is of no file, since pages
of a library can be dropped. *Heap* is memray's high-water of the steps with arena and memory pattern off, beside what
the C library had given out to the session before, and parameters, states and batch. With ``--plain`` old and new values
have memory of their own each; with ``--folder`` the memory of one set of them is mapped from files there, for models of
which a machine does not hold two. The last line has a checksum of all values after the last step: the same to the bit,
or not.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.hard_limit import give_back, process_bytes
from ckplan.meter.inputs import make_inputs
from ckplan.training.buffers import ort_value
from ckplan.training.stepfile import StepFile, read_step


def measure(step: Path, steps: int, plain: bool, meter: str, folder: Path | None = None) -> dict[str, Any]:
    """One meter's figures of a file, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.in_place", str(step), "--steps", str(steps), "--meter", meter]
    command += [*(["--plain"] * plain), *(["--folder", str(folder)] if folder else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def batch_of(file: StepFile) -> dict[str, Any]:
    """What is fed beside parameters and states.

    It is made before anything is measured: values of those are made up with it, which are as large as they are.
    """
    return {
        name: ort_value(array) for name, array in make_inputs(file.model).arrays.items() if name not in file.updates
    }


def mapped(values: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """Arrays of the same shapes whose memory is mapped from a file each."""
    return {
        name: np.memmap(folder / f"{index}.bin", array.dtype, "w+", shape=array.shape)
        if array.nbytes > 1 << 20
        else np.empty_like(array)
        for index, (name, array) in enumerate(values.items())
    }


def opened(file: StepFile, arena: bool) -> Any:
    """A session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
    return onnxruntime.InferenceSession(str(file.path), options, providers=["CPUExecutionProvider"])


def train(
    session: Any,
    file: StepFile,
    values: dict[str, np.ndarray],
    fed: dict[str, Any],
    steps: int,
    plain: bool,
    folder: Path | None = None,
) -> dict[str, np.ndarray]:
    """The values after some steps on one batch."""
    others = values
    if plain:
        others = mapped(values, folder) if folder else {name: np.empty_like(array) for name, array in values.items()}
    for _ in range(steps):
        binding = session.io_binding()
        for name, value in fed.items():
            binding.bind_ortvalue_input(name, value)
        for name, array in values.items():
            binding.bind_ortvalue_input(name, ort_value(array))
        for name, array in others.items():
            binding.bind_ortvalue_output(file.updates[name], ort_value(array))
        binding.bind_output(file.loss)
        session.run_with_iobinding(binding)
        values, others = others, values
    return values


def resident(file: StepFile, steps: int, plain: bool, folder: Path | None) -> dict[str, Any]:
    """In the child: growth of the resident set, and a checksum."""
    fed = batch_of(file)
    give_back()
    process, done = psutil.Process(), threading.Event()

    def look() -> tuple[int, int]:
        return process.memory_info().rss, process_bytes("RssAnon")

    before = peak = look()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = (max(peak[0], (now := look())[0]), max(peak[1], now[1]))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    values = {name: file.initial(name) for name in file.updates}
    values = train(opened(file, arena=True), file, values, fed, steps, plain, folder)
    done.set()
    thread.join()
    now = look()
    grown, anonymous = (max(one) - first for first, *one in zip(before, peak, now, strict=True))
    digest = hashlib.sha256()
    for name in sorted(values):
        digest.update(name.encode() + np.ascontiguousarray(values[name]).tobytes())
    parameters = sum(values[name].size for name in file.parameters)
    return {"resident": grown, "anonymous": anonymous, "checksum": digest.hexdigest()[:16], "parameters": parameters}


def heap(file: StepFile, steps: int, plain: bool) -> dict[str, Any]:
    """In the child: high-water of the heap. Data files that are mapped are no heap, and are never in it."""
    import memray

    fed = batch_of(file)
    values = {name: file.initial(name) for name in file.updates}
    held = sum(array.nbytes for array in values.values()) + sum(value.numpy().nbytes for value in fed.values())
    before = given_out()
    session = opened(file, arena=False)
    held += given_out() - before
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "capture.bin"
        destination = memray.FileDestination(capture, overwrite=True)
        with memray.Tracker(destination=destination, file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS):
            train(session, file, values, fed, steps, plain)
        return {"heap": held + memray.FileReader(capture).metadata.peak_memory}


class _Given(ctypes.Structure):
    """``struct mallinfo2`` of the C library."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "n", "s", "maps", "mapped", "u", "f", "used", "a", "k")]


def given_out() -> int:
    """Bytes that the C library has given out, those with a mapping of their own included."""
    told = ctypes.CDLL(None).mallinfo2
    told.restype = _Given
    found = told()
    return int(found.used + found.mapped)


def main() -> None:
    """Measure a file, or be the process that does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--meter", choices=["resident", "heap"])
    asked = parser.parse_args()
    if asked.meter is not None:
        import onnxruntime

        file = read_step(asked.step)
        warm_up = onnxruntime.SessionOptions()
        del warm_up
        gc.collect()
        if asked.meter == "resident":
            print(json.dumps(resident(file, asked.steps, asked.plain, asked.folder)))
        else:
            print(json.dumps(heap(file, asked.steps, asked.plain)))
        sys.stdout.flush()
        os._exit(0)
    found = measure(asked.step, asked.steps, asked.plain, "resident", asked.folder)
    if asked.folder is None:
        found.update(measure(asked.step, 3, asked.plain, "heap"))
    each = found["parameters"]
    for meter in (name for name in ("resident", "anonymous", "heap") if name in found):
        print(f"{meter}: {found[meter] / 2**20:,.1f} MiB, {found[meter] / each:.2f} bytes a parameter")
    print(f"{each:,} parameters; values after {asked.steps} steps: {found['checksum']}")


if __name__ == "__main__":
    main()
