"""Times of single kernels on one thread, by the processor time of the process.

A kernel is run as often as it takes for a time that can be read (see `ckplan.meter.seconds.kernel_models`), and what
a run takes without it is taken off. What is read comes from where a step finds it: other nodes have run since, so that
weights and all but small tensors are no longer in the core's own cache.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ckplan.isolation.arrays import Array
from ckplan.meter.running.child import Channel
from ckplan.meter.running.device import CPU
from ckplan.operators import sessions

_POOL = 2**23
"""Numbers of which inputs are made."""

_ALIGNED = 16
"""Numbers from one place to the next at which an input may begin: a line of a cache."""

_SWEPT = 2**22
"""Bytes that are read between two runs: in a step, other nodes have run since a kernel read the same weights."""

_TIMED = 8e-3
"""Seconds of runs after which no more are taken."""

_FEWEST, _MOST = 5, 20
_LONG = 0.1
"""Seconds of a run from which two are enough, the first one included."""

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


class _Pool:
    """Numbers between a quarter and one: none that is a special case of a kernel."""

    def __init__(self) -> None:
        self._numbers = np.random.default_rng(0).uniform(0.25, 1, _POOL).astype(np.float32)
        self._place = 0

    def read(self) -> None:
        """Read enough to leave nothing else in the core's own cache."""
        self._numbers[: _SWEPT // 4].sum()

    def array(self, shape: tuple[int, ...], kind: Any, below: int) -> Array:
        """The next numbers, as an array."""
        count = int(np.prod(shape, dtype=np.int64))
        if kind == np.float32 and count <= _POOL:
            if self._place + count > _POOL:
                self._place = 0
            start, self._place = self._place, self._place + -(-count // _ALIGNED) * _ALIGNED
            return self._numbers[start : start + count].reshape(shape)
        if np.issubdtype(kind, np.integer):
            return (np.arange(count, dtype=np.int64) % below).astype(kind).reshape(shape)
        numbers = np.resize(self._numbers, shape)
        return numbers > 0.5 if kind == np.bool_ else numbers.astype(kind)


def job(channel: Channel) -> None:
    """In the child: time one kernel per line of standard input.

    A line is ``model`` (base64), ``copies`` and ``below`` (see `ckplan.meter.seconds.kernel_models.Kernel`) as JSON;
    the answer is seconds, or null where onnxruntime does not run the kernel so. The first model is one without a
    kernel.
    """
    pool = _Pool()
    idle: float | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        channel.progress("a kernel")
        try:
            taken = _timed(base64.b64decode(asked["model"]), asked["below"], pool)
        except Exception:  # whatever onnxruntime has against it: its cost is that of its shapes then
            channel.reply(None)
            continue
        if idle is None:
            idle = taken
        channel.reply(max(taken - idle, 0.0) / asked["copies"])


def _timed(model: bytes, below: Mapping[str, int], pool: _Pool) -> float:
    """The least processor time of a run, in seconds."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # copies are no common subexpressions
    session = sessions.open_session(model, options, [CPU])
    binding = session.io_binding()
    values = []  # OrtValues do not keep their arrays
    for node in session.get_inputs():
        array = pool.array(tuple(node.shape), _TYPES[node.type], below.get(node.name, 1))
        values.append((array, ort.OrtValue.ortvalue_from_numpy(array)))
        binding.bind_ortvalue_input(node.name, values[-1][1])
    binding.bind_output(session.get_outputs()[0].name, "cpu")
    taken: list[float] = []
    while not _enough(taken):
        pool.read()
        start = time.process_time()
        session.run_with_iobinding(binding)
        taken.append(time.process_time() - start)
    return min(taken)


def _enough(taken: list[float]) -> bool:
    if len(taken) >= 2 and taken[-1] >= _LONG:
        return True
    return len(taken) >= _MOST or (len(taken) >= _FEWEST and sum(taken) >= _TIMED)
