"""Whether training steps go through in a process that may not take more memory than it was given.

    python -m benchmarks.hard_limit STEP MEMORY [--resident]

The process opens the file, holds parameters and states once, and makes four steps in place with default session options
on one thread. Once the session is open, its private memory (``RLIMIT_DATA``) may grow by MEMORY, less what the session
holds of values that lie in the file, and by 6 MiB for what a run takes beside tensors. The exit code is 0 if it
went through, 1 if memory ran out. With ``--resident`` nothing is limited, and the last line is what its resident memory
has grown by in the end, counted alike, pages of files left out: a container that has less ends the process.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import onnxruntime

from ckplan.meter.inputs import make_inputs
from ckplan.model.weights import lies_outside
from ckplan.runtime.sizes import bytes_of
from ckplan.training.buffers import ort_value
from ckplan.training.stepfile import read_step
from ckplan.units import parse_bytes

RUN = 6 << 20
"""Bytes for what a run takes beside tensors and kernels' scratch: some 4 MB were seen."""


def process_bytes(field: str) -> int:
    """Bytes of the process: what ``RLIMIT_DATA`` limits (``VmData``), or what is there of no file (``RssAnon``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def main() -> int:
    """Run the file under the limit."""
    path, memory, free = Path(sys.argv[1]), parse_bytes(sys.argv[2]), "--resident" in sys.argv
    file = read_step(path)
    inputs = make_inputs(file.model).arrays
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    opened = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    outside = lies_outside(file.model)
    held = sum(bytes_of(value) for value in file.model.graph.initializers.values() if not outside(value))
    before = process_bytes("RssAnon") - held
    if not free:
        limit = process_bytes("VmData") + memory - held + RUN
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        values = {name: file.initial(name) for name in file.updates}
        fed = {name: ort_value(array.copy()) for name, array in inputs.items() if name not in values}
        kept = {name: ort_value(array) for name, array in values.items()}
        for _ in range(4):
            binding = opened.io_binding()
            for name, value in {**fed, **kept}.items():
                binding.bind_ortvalue_input(name, value)
            for name, value in kept.items():
                binding.bind_ortvalue_output(file.updates[name], value)
            binding.bind_output(file.loss)
            opened.run_with_iobinding(binding)
            print(binding.get_outputs()[-1].numpy())
    except (MemoryError, Exception) as error:
        print(f"{type(error).__name__}: {str(error)[:200]}")
        return 1
    if free:
        print(process_bytes("RssAnon") - before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
