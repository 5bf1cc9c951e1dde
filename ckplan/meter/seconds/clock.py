"""Two models in memory, timed in turns."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.isolation.arrays import save_arrays
from ckplan.meter.compared import Timing
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.meter.seconds.timing import alternate
from ckplan.model import save
from ckplan.model.files.weights import scratch_folder

_PROCESSES, _PAIRS = 3, 6
"""Processes of each file, and pairs of steps in each, for a figure that a plan is chosen by."""


def timed_in_turns(base: ir.Model, new: ir.Model, device: str = "cpu") -> Timing:
    """Time a step of two models of the same inputs in turns; see `ckplan.meter.seconds.timing`.

    Args:
        base: the one to compare with.
        new: the one in question.
        device: ``cpu``, for processor time on one thread, or ``cuda``, for the wall clock.

    Raises:
        CkplanError: one of them does not run, or not beside the other.
    """
    with scratch_folder(base) as folder:
        paths = [folder / "base.onnx", folder / "new.onnx"]
        for model, path in zip((base, new), paths, strict=True):
            save(model, path)
        save_arrays(folder / "inputs", make_inputs(base).arrays)
        requests = [request_for(path, folder / "inputs", device, None) for path in paths]
        return alternate(requests[0], requests[1], _PAIRS, _PROCESSES)
