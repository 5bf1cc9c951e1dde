"""The memory timeline: one type for what was simulated and for what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckplan.units import format_bytes


@dataclass(frozen=True, slots=True)
class Moment:
    """One executed op and the memory in use while it runs.

    Attributes:
        op: the op's name.
        live: all live bytes while the op runs: parameters, inputs, outputs, activations, workspace.
        activations: the part of ``live`` that is neither parameters, inputs nor outputs of the file.
        backward: whether the op belongs to the backward pass.
        recomputed: whether the op ran before in the same schedule.
    """

    op: str
    live: int
    activations: int
    backward: bool = False
    recomputed: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """Memory over the steps of one training step, in execution order."""

    steps: tuple[Moment, ...]

    def __repr__(self) -> str:
        return f"<Timeline: {len(self.steps)} steps, peak {format_bytes(self.peak_activations)} of activations>"

    @property
    def peak_activations(self) -> int:
        """Largest ``activations`` of any step, in bytes."""
        return max((step.activations for step in self.steps), default=0)

    @property
    def peak_total(self) -> int:
        """Largest ``live`` of any step, in bytes."""
        return max((step.live for step in self.steps), default=0)

    @property
    def peak_step(self) -> int:
        """Index of the first step at which ``activations`` peaks (0 for an empty timeline)."""
        return max(range(len(self.steps)), key=lambda index: self.steps[index].activations, default=0)

    def to_json(self) -> dict[str, Any]:
        """Columns rather than rows: a timeline of 10 000 steps stays small as JSON."""
        return {
            "op": [step.op for step in self.steps],
            "live": [step.live for step in self.steps],
            "activations": [step.activations for step in self.steps],
            "backward": [step.backward for step in self.steps],
            "recomputed": [step.recomputed for step in self.steps],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timeline:
        """The inverse of `to_json`."""
        columns = zip(data["op"], data["live"], data["activations"], data["backward"], data["recomputed"], strict=True)
        return cls(tuple(Moment(*row) for row in columns))
