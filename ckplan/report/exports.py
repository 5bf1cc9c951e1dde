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
    from ckplan.planner import Moment

_COLUMNS = (
    "step",
    "node",
    "op",
    "phase",
    "recomputed",
    "live_bytes",
    "activation_bytes",
    "seconds",
    "expected_live_bytes",
    "expected_activation_bytes",
)


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
    for index, (step, op_type, seconds) in enumerate(
        zip(counters.timeline.steps, counters.op_types, counters.seconds, strict=True)
    ):
        phase = _phase(step)
        slice_ = {"ph": "X", "pid": 1, "tid": 1, "ts": _micro(clock), "dur": _micro(seconds * 1e6)}
        facts = {"node": step.op, "step": index, "phase": phase, "activations": step.activations, "live": step.live}
        events.append({**slice_, "name": op_type, "cat": "recomputed" if step.recomputed else phase, "args": facts})
        for name, value in _series(found, counters, index):
            events.append({"ph": "C", "pid": 1, "ts": _micro(clock), "name": name, "args": {"bytes": value}})
        clock += seconds * 1e6
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
    counters = _counters(found)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for index, step in enumerate(counters.timeline.steps):
        expected = found.inside.expected.steps[index] if found.inside is not None else None
        writer.writerow(
            (
                index,
                printable(step.op),
                printable(counters.op_types[index]),
                _phase(step),
                int(step.recomputed),
                step.live,
                step.activations,
                repr(counters.seconds[index]),
                *(("", "") if expected is None else (expected.live, expected.activations)),
            )
        )
    return file.getvalue()


def _counters(found: Measurement) -> Counters:
    if found.counters is None:
        raise EnvironmentUnavailableError(
            f"onnxruntime {found.onnxruntime} tells no memory by node, so there is nothing to export",
            "install onnxruntime 1.31 or later",
        )
    return found.counters


def _phase(step: Moment) -> str:
    return "backward" if step.backward else "forward"


def _micro(value: float) -> float:
    """Microseconds to the nanosecond, which is what trace viewers count in."""
    return round(value, 3)


def _series(found: Measurement, counters: Counters, index: int) -> Iterator[tuple[str, int]]:
    step = counters.timeline.steps[index]
    yield "activations, measured", step.activations
    yield "total, measured", step.live
    if found.inside is not None:
        expected = found.inside.expected.steps[index]
        yield "activations, expected", expected.activations
        yield "total, expected", expected.live
