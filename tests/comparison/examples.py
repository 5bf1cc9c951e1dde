"""Snapshots made by hand."""

from __future__ import annotations

from typing import Any

from ckplan.comparison import Fingerprint, Measured, PeakBuffer, Settings, Snapshot

KIB = 1024
MARK = Fingerprint("net", ("x: FLOAT",), ("y",), "0123")


def snapshot(*alive: tuple[str, int], **other: Any) -> Snapshot:
    """A model with these buffers, in KiB, alive at its peak."""
    buffers = tuple(PeakBuffer(name, size * KIB, f"{name}/node", "Conv", "8x3", "kept") for name, size in alive)
    peak = sum(buffer.bytes for buffer in buffers)
    fields: dict[str, Any] = {
        "source": "net.onnx",
        "fingerprint": MARK,
        "settings": Settings.of(dims={"batch": 8}),
        "ckplan": "0.1.0",
        "onnxruntime": "1.31.1",
        "peak_activations": peak,
        "peak_total": peak + 100,
        "peak_node": "peak/node",
        "peak_op": "Mul",
        "at_peak": buffers,
        "recomputed": {},
        "unplanned": 4 * peak,
        "overhead": 0.1,
    }
    return Snapshot(**{**fields, **other})


def measured(kib: int) -> Measured:
    return Measured(kib * KIB, kib * KIB + 100, "cpu")
