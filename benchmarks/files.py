"""What a written file takes and computes, held against the file without a plan."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime

from ckplan.errors import CkplanError
from ckplan.isolation.arrays import Array, save_arrays
from ckplan.meter.facts import file_facts, read_model
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.meter.memory.counter_timeline import interpret
from ckplan.meter.running.process import run_job
from ckplan.model import save
from ckplan.operators.sessions import open_session

THREADS = (1, 2)
"""Numbers of threads on which outputs are compared."""


def digests(path: Path, arrays: Mapping[str, Array], threads: int) -> dict[str, str]:
    """A digest of each output of a file under default session options.

    Args:
        path: the file.
        arrays: its inputs, and perhaps others.
        threads: on which a kernel may run.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others may use the processor meanwhile
    session = open_session(str(path), options)
    fed = {value.name: arrays[value.name] for value in session.get_inputs() if value.name in arrays}
    names = [value.name for value in session.get_outputs()]
    results = session.run(None, fed)
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in zip(names, results, strict=True)}


class Reference:
    """The file without a plan: its inputs, and what it outputs on each number of threads."""

    def __init__(self, model: ir.Model) -> None:
        self.arrays = make_inputs(model).arrays
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plain.onnx"
            save(model, path)
            self.expected = {threads: digests(path, self.arrays, threads) for threads in THREADS}

    def differing(self, path: Path) -> list[str]:
        """The outputs of another file that are not equal to the bit, on any number of threads; sorted."""
        found: set[str] = set()
        for threads, expected in self.expected.items():
            made = digests(path, self.arrays, threads)
            found |= {name for name, digest in expected.items() if made[name] != digest}
        return sorted(found)


def peaks(path: Path, *, cut: bool = False) -> dict[str, Any]:
    """The peak of a file's activations in bytes: promised in its metadata, by the counters, by the heap meter.

    What onnxruntime keeps for itself beside them, by the heap meter, is told as ``objects``.

    Args:
        path: the file.
        cut: whether the arena cuts its chunks to what a kernel asks for; by default it hands out up to twice as much.

    Raises:
        CkplanError: the file does not run, or there are no counters.
    """
    written = read_model(path)
    inputs, facts = make_inputs(written), file_facts(written)
    with tempfile.TemporaryDirectory() as folder:
        save_arrays(Path(folder) / "inputs", inputs.arrays)
        request = request_for(path, Path(folder) / "inputs", "cpu", None)
        variant = {"order": "default", "pattern": True, "runs": 1, "cut": cut}
        asked = {"variants": [variant], "producers": dict(facts.producers)}
        (raw,) = run_job("ckplan.meter.memory.counters", {**request, **asked})
        heap = run_job("ckplan.meter.memory.heap", request)
    counters = interpret(raw, facts, inputs.nbytes)
    if counters is None:
        raise CkplanError("this onnxruntime reports no memory counters", "install 1.31 or later")
    return {
        "predicted": facts.prediction.peak_activations,
        "counter": counters.peak_activations,
        "heap": heap["activations"],
        "objects": heap["objects"],
        "at": counters.timeline.steps[counters.timeline.peak_step].op,
        "seconds": sum(counters.seconds),
    }
