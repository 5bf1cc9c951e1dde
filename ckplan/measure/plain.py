"""One file run as users run it: outputs, step times, and (meter 3) resident memory."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from ckplan.measure.arrays import load_arrays, save_arrays
from ckplan.measure.child import Channel, resident_bytes
from ckplan.measure.session import as_array, open_session, step_of

WARM_UP = 2
"""Untimed runs: the first allocates, the second lays out the memory pattern's block."""

_PERIOD = 0.002


class _Watch(threading.Thread):
    """Samples resident memory until it is told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(_PERIOD):
            self.peak = max(self.peak, resident_bytes())

    def stop(self) -> int:
        """End sampling; returns the largest sample in bytes."""
        self._done.set()
        self.join()
        return max(self.peak, resident_bytes())


def job(channel: Channel) -> dict[str, Any]:
    """In the child: run the file, keep the outputs of the first run, time later ones, and compare the last."""
    import onnxruntime as ort

    request = channel.request
    feed = load_arrays(Path(request["inputs"]))
    before = resident_bytes()
    channel.progress("the loading")
    session, device = open_session(request["path"], request["device"], threads=request["threads"])
    names = [value.name for value in session.get_outputs()]
    step = step_of(session, feed)
    loaded = resident_bytes()
    watch = _Watch()
    watch.start()
    channel.progress("the first run")
    results = step()
    first_run = resident_bytes()
    peak = watch.stop()  # before timing: the sampler takes a core
    folder = Path(request["outputs"])
    pairs = ((name, as_array(result)) for name, result in zip(names, results, strict=True))
    save_arrays(folder, ((name, array) for name, array in pairs if array is not None))
    del results
    for number in range(1, WARM_UP):
        channel.progress(f"warm-up run {number + 1}", first_run=first_run)
        step()
    seconds = []
    for number in range(request["runs"]):
        channel.progress(f"timed run {number + 1} of {request['runs']}")
        start = time.perf_counter()
        results = step()
        seconds.append(time.perf_counter() - start)
        if number < request["runs"] - 1:
            del results
    peak = max(peak, resident_bytes())
    kept = load_arrays(folder, mapped=True)
    repeatable = all(
        (array := as_array(result)) is None or same_bits(array, kept[name])
        for name, result in zip(names, results, strict=True)
    )
    return {
        "device": device,
        "providers": session.get_providers(),
        "version": ort.__version__,
        "seconds": seconds,
        "repeatable": repeatable,
        "resident": {"before": before, "loaded": loaded, "first_run": first_run, "peak": peak},
        "not_tensors": [name for name in names if name not in kept],
    }


def same_bits(left: np.ndarray[Any, np.dtype[Any]], right: np.ndarray[Any, np.dtype[Any]]) -> bool:
    """Whether two arrays are the same in shape, dtype and every bit (so that NaN equals the same NaN)."""
    if left.shape != right.shape or (left.dtype != right.dtype and "U" not in left.dtype.kind + right.dtype.kind):
        return False
    if left.dtype.kind in "OUS":
        return bool(np.array_equal(left.astype("U"), right.astype("U")))
    return bool(np.array_equal(_bits(left), _bits(right)))


def _bits(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
