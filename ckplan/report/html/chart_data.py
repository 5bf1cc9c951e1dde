"""What a chart of the page draws, as compact JSON that may stand in a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from os.path import commonprefix
from typing import Any

from ckplan.planner import Timeline
from ckplan.report.chart import backward_pass
from ckplan.report.untrusted import printable
from ckplan.runtime.occupancy import Buffer, Occupancy, Role
from ckplan.units import format_bytes

MOST_BANDS = 4000
"""Tensors that a chart shows one by one, the largest; all others are summed."""

ROLES = tuple(role.value for role in Role)
"""What the numbers of roles in the data mean."""

_UNSAFE = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Letters that could end the element that holds the data, or the line; JSON knows them by number as well."""


@dataclass
class Strings:
    """Texts, each once, by number: names occur in many places."""

    known: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> int:
        """The number of a text."""
        return self.known.setdefault(text, len(self.known))

    def coded(self) -> list[int | str]:
        """All texts in order, each as the length of what it has in common with the one before it, and the rest.

        Names that follow each other begin alike. Lengths count as JavaScript counts: in units of UTF-16.
        """
        before = ""
        found: list[int | str] = []
        for text in self.known:
            shared = commonprefix((before, text))  # noqa: RUF071 -- letter by letter is what is wanted
            found += [len(shared.encode("utf-16-le", "surrogatepass")) // 2, text[len(shared) :]]
            before = text
        return found


@dataclass(frozen=True)
class Panel:
    """What one chart shows.

    Attributes:
        title: what it is called.
        timeline: memory over the steps.
        occupancy: the buffers behind it, if they are known.
        measured: what onnxruntime reported, if it ran.
        levels: ``(name, bytes)`` of lines across, such as a budget.
    """

    title: str
    timeline: Timeline
    occupancy: Occupancy | None = None
    measured: Timeline | None = None
    levels: tuple[tuple[str, int], ...] = ()

    @property
    def peak(self) -> str:
        """The figure beside the title."""
        return format_bytes(self.timeline.peak_activations)

    @property
    def summary(self) -> str:
        """The same in words, for those who do not see it."""
        steps = self.timeline.steps
        where = steps[self.timeline.peak_step].op if steps else ""
        return f"{self.title}: bytes of activations over {len(steps):,} steps; the peak of {self.peak} is in {where}."

    @property
    def early(self) -> bool:
        """Whether some of the backward pass runs before most of it begins."""
        steps = self.timeline.steps
        return any(step.backward for step in steps[: backward_pass(steps)])


def band_numbers(occupancy: Occupancy) -> dict[int, int]:
    """For each buffer that has a band of its own, by position, the number of the band."""
    buffers = enumerate(occupancy.buffers)
    order = sorted(buffers, key=lambda entry: (-entry[1].bytes, entry[1].born - entry[1].dies))  # the longest first
    return {index: number for number, index in enumerate(sorted(index for index, _ in order[:MOST_BANDS]))}


def chart_data(curves: Sequence[Panel]) -> str:
    """The data of all charts of a page as JSON, safe in a ``script`` element."""
    strings = Strings()
    charts = [_chart(curve, strings) for curve in curves]
    whole = {"roles": ROLES, "charts": charts, "strings": strings.coded()}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).translate(_UNSAFE)


def _chart(curve: Panel, strings: Strings) -> dict[str, Any]:
    steps, occupancy, measured = curve.timeline.steps, curve.occupancy, curve.measured
    shown = band_numbers(occupancy) if occupancy is not None else {}
    return {
        "title": curve.title,
        "ops": [strings(printable(step.op)) for step in steps],
        "bytes": [step.activations for step in steps],
        "again": "".join("1" if step.recomputed else "0" for step in steps),
        "turn": backward_pass(steps) if any(step.backward for step in steps) else len(steps),
        "peak": curve.timeline.peak_step,
        "levels": [{"name": name, "bytes": count, "text": format_bytes(count)} for name, count in curve.levels],
        "types": [strings(printable(op_type)) for op_type in occupancy.op_types] if occupancy else [],
        "bands": [_band(occupancy.buffers[index], strings) for index in shown] if occupancy else [],
        "rest": _sparse(_rest(occupancy, shown)) if occupancy else [],
        "work": _sparse(occupancy.workspace) if occupancy else [],
        "measured": measured and {"bytes": [step.activations for step in measured.steps], "peak": measured.peak_step},
    }


def _band(buffer: Buffer, strings: Strings) -> list[Any]:
    """``[bytes, born, dies, step, role, name, remark, step, role, ...]``: four entries for each span."""
    spans: list[int] = []
    for span in buffer.spans:
        shape = "?" if span.shape is None else "×".join(map(str, span.shape)) or "scalar"
        about = strings("\n".join(map(printable, (span.op_type, shape, span.dtype))))
        spans += [span.step, ROLES.index(span.role.value), strings(printable(span.tensor)), about]
    return [buffer.bytes, buffer.born, buffer.dies, *spans]


def _rest(occupancy: Occupancy, shown: dict[int, int]) -> list[int]:
    """Bytes at each step of the buffers that have no band of their own."""
    change = [0] * (len(occupancy.op_types) + 1)
    for index, buffer in enumerate(occupancy.buffers):
        if index not in shown:
            change[buffer.born] += buffer.bytes
            change[buffer.dies + 1] -= buffer.bytes
    return list(accumulate(change[:-1]))


def _sparse(values: Sequence[int]) -> list[int]:
    """``[step, value, step, value, ...]`` where the value changes; it is 0 at first."""
    before, found = 0, []
    for step, value in enumerate(values):
        if value != before:
            found += [step, value]
            before = value
    return found
