"""onnxruntime's CPU execution provider under default session options."""

from __future__ import annotations

from ckplan.operators.sessions import CPU_ONLY
from ckplan.runtime.kernels.memory_use import overwritable, view_source
from ckplan.runtime.kernels.workspace import outside_of, pieces_of, workspace_of
from ckplan.runtime.runtime import Runtime

THREADS = 2
"""onnxruntime's default is the number of physical cores, by which a figure that is to be the same on every machine
cannot go; two are what usual CI machines have."""

CPU = Runtime(
    name="cpu",
    providers=CPU_ONLY,
    threads=THREADS,
    without=(),
    view=view_source,
    overwritten=overwritable,
    workspace=workspace_of,
    pieces=pieces_of,
    outside=outside_of,
)
"""The runtime that plans are made for by default."""
