"""One file run as users run it: outputs, step times, and (meter 3) resident memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ckplan.isolation.arrays import Array, load_arrays, save_arrays
from ckplan.meter.memory import nvml
from ckplan.meter.meter import Figure, Meter
from ckplan.meter.running.child import Channel, resident_bytes
from ckplan.meter.running.device import CPU, wanted_providers
from ckplan.meter.running.session import as_array, open_session, step_of

METER = Meter("resident", (Figure("resident (misleads)", lambda found: found.resident.peak, style="dim"),))

WARM_UP = 2
"""Untimed runs: the first allocates, the second lays out the memory pattern's block."""

_PERIOD = 0.002


class _Watch(threading.Thread):
    """Samples a meter until it is told to stop."""

    def __init__(self, meter: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._meter = meter
        self._peak = 0
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._done.wait(_PERIOD):
            self._peak = max(self._peak, self._meter())

    def stop(self) -> int:
        """End sampling; returns the largest sample in bytes."""
        self._done.set()
        self.join()
        return max(self._peak, self._meter())


def job(channel: Channel) -> dict[str, Any]:
    """In the child: run the file, keep the outputs of the first run, time later ones, and compare the last.

    Where times do not matter, the request may ask for fewer runs before the timed ones than `WARM_UP`, but for one, and
    for the runs to be ``profiled`` as well: their events are then those of the counters' first variant. On a GPU they
    are not, since the profiler takes memory there.
    """
    import onnxruntime as ort

    request = channel.request
    feed = load_arrays(Path(request["inputs"]))
    before = resident_bytes()
    gpu, gpu_note = (None, "") if request["device"] == "cpu" else nvml.meter()
    channel.progress("the loading")
    spin = request.get("spin", True)
    profiled = request.get("profiled", False) and wanted_providers(ort, request["device"]) == [CPU]
    session, device = open_session(
        request["path"],
        request["device"],
        threads=request["threads"],
        profile=channel.folder / "profile" if profiled else None,
        spin=spin,
    )
    names = [value.name for value in session.get_outputs()]
    step = step_of(session, feed)
    loaded = resident_bytes()
    if device == "cpu":
        gpu, gpu_note = None, ""
    gpu = nvml.settled(gpu) if gpu else None
    gpu_loaded = gpu.used() if gpu else 0
    watches = [_Watch(resident_bytes), *([_Watch(gpu.used)] if gpu else [])]
    channel.progress("the first run")
    results = step()
    first_run = resident_bytes()
    gpu_first_run = gpu.used() if gpu else 0
    peaks = [watch.stop() for watch in watches]  # before timing: a sampler takes a core
    folder = Path(request["outputs"])
    save_arrays(folder, _arrays(names, results))
    del results
    for number in range(1, request.get("warm_up", WARM_UP)):
        channel.progress(f"warm-up run {number + 1}", first_run=first_run)
        step()
    seconds, results = _timed(step, request["runs"], channel)
    peak = max(peaks[0], resident_bytes())
    told = None
    if gpu:
        figures = {"loaded": gpu_loaded, "first_run": gpu_first_run, "peak": max(peaks[1], gpu.used())}
        told = {"name": gpu.name, "driver": gpu.driver, "of_process": gpu.of_process, **figures}
    kept = load_arrays(folder, mapped=True)
    last = dict(_arrays(names, results))
    events = None
    if profiled:
        # Imported late: what it needs would be in the resident figures.
        from ckplan.meter.memory.counters import ended

        events = ended(session, device, {name: array.nbytes for name, array in last.items()})
    return {
        "events": events,
        "device": device,
        "providers": session.get_providers(),
        "version": ort.__version__,
        "seconds": seconds,
        "wobble": _wobble(kept, last),
        "resident": {"before": before, "loaded": loaded, "first_run": first_run, "peak": peak},
        "gpu": told,
        "gpu_note": gpu_note,
        "not_tensors": [name for name in names if name not in kept],
    }


def _timed(step: Callable[[], Sequence[Any]], runs: int, channel: Channel) -> tuple[list[float], Sequence[Any]]:
    """Seconds of each run, and what the last one returned; no two results are held at a time."""
    seconds: list[float] = []
    results: Sequence[Any] = ()
    for number in range(runs):
        channel.progress(f"timed run {number + 1} of {runs}")
        results = ()
        start = time.perf_counter()
        results = step()
        seconds.append(time.perf_counter() - start)
    return seconds, results


def _arrays(names: Sequence[str], results: Sequence[Any]) -> Iterator[tuple[str, Array]]:
    """The tensors that a run returned, by name, one array at a time."""
    for name, result in zip(names, results, strict=True):
        if (array := as_array(result)) is not None:
            yield name, array


def _wobble(first: Mapping[str, Array], last: Mapping[str, Array]) -> dict[str, float]:
    """The largest absolute difference between two runs, of the outputs whose bits differ."""
    found = {}
    for name, array in last.items():
        if not same_bits(array, first[name]):
            # Imported late: what it needs would be in the resident figures.
            from ckplan.meter.numbers.numerics import difference

            apart = difference(name, first[name], array)
            found[name] = apart.max_absolute if apart else 0.0
    return found


def same_bits(left: Array, right: Array) -> bool:
    """Whether two arrays are the same in shape, dtype and every bit (so that NaN equals the same NaN)."""
    if left.shape != right.shape or (left.dtype != right.dtype and "U" not in left.dtype.kind + right.dtype.kind):
        return False
    if left.dtype.kind in "OUS":
        return bool(np.array_equal(left.astype("U"), right.astype("U")))
    return bool(np.array_equal(_bits(left), _bits(right)))


def _bits(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
