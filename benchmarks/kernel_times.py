"""Which operators take the time of a step, from a profile that onnxruntime wrote."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

_ENDING = "_kernel_time"


def kernel_times(profile: str, runs: int) -> list[tuple[str, float, int]]:
    """Milliseconds and number of the last run's kernels by operator, longest first.

    Args:
        profile: the file, a list of events in JSON.
        runs: how many runs it has, all of them alike.

    Returns:
        Operators, those that CUDA left to the CPU apart from the others.
    """
    kernels = [event for event in json.loads(Path(profile).read_text()) if event["name"].endswith(_ENDING)]
    on_device = {event["args"].get("provider", "").startswith("CUDA") for event in kernels}
    times: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for event in kernels[len(kernels) * (runs - 1) // runs :]:
        left = on_device == {True, False} and not event["args"].get("provider", "").startswith("CUDA")
        name = event["args"]["op_name"] + " (CPU)" * left
        times[name] += event["dur"] / 1e3
        numbers[name] += 1
    return [(name, took, numbers[name]) for name, took in times.most_common()]
