"""Whether training steps go through in a process that may not take more memory than it was given.

    python -m benchmarks.hard_limit STEP MEMORY [--free | --granted]

The process opens the file, holds parameters and states once, and makes four steps in place with default session options
on one thread. From before the session on its resident memory may grow by MEMORY, pages of onnxruntime's library that
come in with it included. The process is ended as soon as there is more, as a container ends it: it looks once a
millisecond, and in the end, when everything that was ever written to is still there. The exit code is 0 if it went
through, 1 if not; the last line is the most that was seen, counted alike. With ``--free`` nothing is limited. With
``--granted`` it is what the system grants that is limited (``RLIMIT_DATA``): memory that nothing was written to counts
then, too.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
from pathlib import Path

import onnxruntime

from ckplan.meter.inputs import make_inputs
from ckplan.training.buffers import ort_value
from ckplan.training.stepfile import StepFile, read_step
from ckplan.units import parse_bytes

STEPS = 4


def give_back() -> None:
    """Return to the system what is free: what was freed before would be taken again, and would not be seen to grow."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def process_bytes(field: str) -> int:
    """Bytes of the process: ``VmData``, which ``RLIMIT_DATA`` limits, ``VmRSS``, or ``RssAnon``: of no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


class Watch:
    """The most that the resident memory has grown by; ends the process when that is more than it may be."""

    def __init__(self, before: int, limit: int | None) -> None:
        self.most, self._before, self._limit, self._done = 0, before, limit, threading.Event()
        threading.Thread(target=self._look_again_and_again, daemon=True).start()

    def _look_again_and_again(self) -> None:
        while not self._done.wait(0.001):
            self.look()

    def look(self) -> None:
        """Look once."""
        self.most = max(self.most, process_bytes("VmRSS") - self._before)
        if self._limit is not None and self.most > self._limit:
            os.write(1, f"ended\n{self.most}\n".encode())
            os._exit(1)

    def end(self) -> int:
        """Look for the last time; returns the most."""
        self._done.set()
        self.look()
        return self.most


def train(file: StepFile, opened: onnxruntime.InferenceSession, inputs: dict[str, onnxruntime.OrtValue]) -> None:
    """Some steps, in place where the file makes updates."""
    kept = {name: ort_value(file.initial(name)) for name in dict.fromkeys((*file.updates, *file.parameters))}
    for _ in range(STEPS):
        binding = opened.io_binding()
        for name, value in {**inputs, **kept}.items():
            binding.bind_ortvalue_input(name, value)
        for name, output in file.updates.items():
            binding.bind_ortvalue_output(output, kept[name])
        for value in opened.get_outputs():
            if value.name not in file.updates.values():
                binding.bind_output(value.name)
        opened.run_with_iobinding(binding)


def main() -> int:
    """Run the file under the limit."""
    path, memory = Path(sys.argv[1]), parse_bytes(sys.argv[2])
    file = read_step(path)
    inputs = make_inputs(file.model).arrays
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    give_back()
    watch = Watch(process_bytes("VmRSS"), None if "--free" in sys.argv or "--granted" in sys.argv else memory)
    if "--granted" in sys.argv:
        limit = process_bytes("VmData") + memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        opened = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        fed = {name: ort_value(array.copy()) for name, array in inputs.items() if name not in file.updates}
        train(file, opened, fed)
    except (MemoryError, Exception) as error:
        print(f"{type(error).__name__}: {str(error)[:200]}")
        return 1
    print(watch.end())
    return 0


if __name__ == "__main__":
    sys.exit(main())
