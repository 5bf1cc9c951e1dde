"""A measurement for other programs: a Chrome trace and a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ckplan.errors import EnvironmentUnavailableError
from ckplan.report.untrusted import json_text, printable

if TYPE_CHECKING:
    from ckplan.meter import Counters, Measurement

_SERIES = {
    "activations, measured": "activation_bytes",
    "total, measured": "live_bytes",
    "activations, expected": "expected_activation_bytes",
    "total, expected": "expected_live_bytes",
}
"""The counters of a trace, and the columns of the table that hold the same."""


def trace(found: Measurement) -> str:
    """A run as a Chrome trace in JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

    A slice for each node, one after the other with the median time that it took, and a counter for each of measured
    and expected activations and total, in bytes. The format: "Trace Event Format", Google, 2016.

    Raises:
        EnvironmentUnavailableError: nothing was measured by node.
    """
    counters = _counters(found)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"{found.path} ({found.device})"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "nodes"}},
    ]
    clock = 0.0  # microseconds
    for row in _rows(found, counters):
        taken = row["seconds"] * 1e6
        start = round(clock, 3)  # to the nanosecond, which is what trace viewers count in
        slice_ = {"ph": "X", "pid": 1, "tid": 1, "ts": start, "dur": round(taken, 3)}
        facts = {"node": row["node"], "step": row["step"], "phase": row["phase"]}
        facts |= {"activations": row["activation_bytes"], "live": row["live_bytes"]}
        category = "recomputed" if row["recomputed"] else row["phase"]
        events.append({**slice_, "name": row["op"], "cat": category, "args": facts})
        for name, column in _SERIES.items():
            if row[column] is not None:
                events.append({"ph": "C", "pid": 1, "ts": start, "name": name, "args": {"bytes": row[column]}})
        clock += taken
    about = {
        "model": found.path,
        "device": found.device,
        "onnxruntime": found.onnxruntime,
        "peak_activations": counters.peak_activations,
        "peak_total": counters.peak_total,
        "promised_peak_activations": found.prediction.peak_activations,
        "promised_peak_total": found.prediction.peak_total,
        "times": "median of the kernel's time over the runs after the first, laid end to end",
    }
    whole = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    return json_text(whole, separators=(",", ":")) + "\n"


def table(found: Measurement) -> str:
    """A run as comma-separated values, a row for each step; the expected figures are empty where there are none.

    Raises:
        EnvironmentUnavailableError: nothing was measured by node.
    """
    rows = list(_rows(found, _counters(found)))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows[0] if rows else ())
    for row in rows:
        writer.writerow([printable(value) if isinstance(value, str) else value for value in row.values()])
    return file.getvalue()


def _rows(found: Measurement, counters: Counters) -> Iterator[dict[str, Any]]:
    """The steps of a run; bytes and seconds."""
    for index, step in enumerate(counters.timeline.steps):
        expected = found.inside.expected.steps[index] if found.inside is not None else None
        yield {
            "step": index,
            "node": step.op,
            "op": counters.op_types[index],
            "phase": "backward" if step.backward else "forward",
            "recomputed": int(step.recomputed),
            "live_bytes": step.live,
            "activation_bytes": step.activations,
            "seconds": counters.seconds[index],
            "expected_live_bytes": expected and expected.live,
            "expected_activation_bytes": expected and expected.activations,
        }


def _counters(found: Measurement) -> Counters:
    if found.counters is None:
        raise EnvironmentUnavailableError(
            f"onnxruntime {found.onnxruntime} does not report memory by node, so there is nothing to export",
            "install onnxruntime 1.31 or later",
        )
    return found.counters
