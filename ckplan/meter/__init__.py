"""Run models in onnxruntime and tell memory, time and numerics.

`measure` looks at one file, `verify` holds a new file against a base file. Models run in child processes only.
Names are loaded when they are first used: the child processes import this package too, and need little of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckplan.meter.bisect import Bisection, Smallest, smallest_arena
    from ckplan.meter.compared import Numerics, OutputDifference, Timing, Verification
    from ckplan.meter.executed.alive import Gap, Inside, LiveTensor
    from ckplan.meter.inputs import Inputs, make_inputs
    from ckplan.meter.measurement import measure
    from ckplan.meter.memory.nvml import Gpu
    from ckplan.meter.running.errors import RunFailedError, RunTooLongError
    from ckplan.meter.running.time_limit import run_limit
    from ckplan.meter.types import (
        Counters,
        Heap,
        Measurement,
        NonFinite,
        Origin,
        Prediction,
        Recomputation,
        Resident,
        Steady,
        Workspace,
    )
    from ckplan.meter.verification import verify

__all__ = [
    "Bisection",
    "Counters",
    "Gap",
    "Gpu",
    "Heap",
    "Inputs",
    "Inside",
    "LiveTensor",
    "Measurement",
    "NonFinite",
    "Numerics",
    "Origin",
    "OutputDifference",
    "Prediction",
    "Recomputation",
    "Resident",
    "RunFailedError",
    "RunTooLongError",
    "Smallest",
    "Steady",
    "Timing",
    "Verification",
    "Workspace",
    "make_inputs",
    "measure",
    "run_limit",
    "smallest_arena",
    "verify",
]

_HOMES = {
    "LiveTensor": "executed.alive",
    "Bisection": "bisect",
    "Gap": "executed.alive",
    "Gpu": "memory.nvml",
    "Inside": "executed.alive",
    "Inputs": "inputs",
    "Numerics": "compared",
    "OutputDifference": "compared",
    "RunFailedError": "running.errors",
    "RunTooLongError": "running.errors",
    "Smallest": "bisect",
    "Timing": "compared",
    "Verification": "compared",
    "make_inputs": "inputs",
    "measure": "measurement",
    "run_limit": "running.time_limit",
    "smallest_arena": "bisect",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'types')}"), name)
