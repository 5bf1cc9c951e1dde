"""What one model takes, in numbers that do not depend on the machine: one side of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, get_origin, get_type_hints

from ckplan.comparison.settings import Settings
from ckplan.display import shortened
from ckplan.meter.types import jsonable
from ckplan.planner import Timeline
from ckplan.runtime.occupancy import Occupancy

WORKSPACE = "workspace"
"""What stands for a shape in the entry of a kernel's workspace, which is no tensor."""


_SHOWN = 3
"""Names that are told of several."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Which model it is: what stays the same while its sizes, its layers and its plan change.

    Attributes:
        name: name of the graph.
        inputs: ``name: type`` of each input that has no default, in order.
        outputs: names of the outputs, in order.
        digest: hash of the nodes of the file; tells whether the graph itself has changed.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    digest: str

    def same_model(self, other: Fingerprint) -> bool:
        """Whether the two may be compared: same name, inputs and outputs."""
        return (self.name, self.inputs, self.outputs) == (other.name, other.inputs, other.outputs)

    def __str__(self) -> str:
        """``'gpt' (input_ids: INT64 -> loss)``."""
        return f"'{self.name}' ({shortened(self.inputs, _SHOWN)} -> {shortened(self.outputs, _SHOWN)})"


@dataclass(frozen=True, slots=True)
class PeakBuffer:
    """A buffer that is alive at the peak.

    Attributes:
        tensor: the tensor that lies in it; for a workspace the node that works in it.
        bytes: its size.
        node: name of the node that makes the tensor.
        op_type: operator of that node.
        shape: sizes as text, such as ``8x3``; `WORKSPACE` for a workspace.
        role: what it is there for, such as ``kept``; see `ckplan.runtime.occupancy.Role`. Empty where it is not known.
    """

    tensor: str
    bytes: int
    node: str = ""
    op_type: str = ""
    shape: str = ""
    role: str = ""

    @property
    def key(self) -> tuple[str, bool]:
        """What tells it from others."""
        return self.tensor, self.shape == WORKSPACE


@dataclass(frozen=True, slots=True)
class Measured:
    """What onnxruntime took when the file ran.

    Attributes:
        peak_activations: in bytes.
        peak_total: in bytes.
        device: where it ran.
    """

    peak_activations: int
    peak_total: int
    device: str


@dataclass(frozen=True)
class Snapshot:
    """What one model takes. What is not known is empty or None.

    Attributes:
        source: the file it is of, or that it was read from.
        fingerprint: which model it is.
        settings: how the model was loaded, differentiated and planned.
        ckplan: version that made the snapshot.
        onnxruntime: version whose optimised graph was simulated.
        peak_activations: bytes of activations at the peak, simulated.
        peak_total: bytes of everything at its peak.
        peak_node: name of the node at the peak.
        peak_op: its operator.
        unplanned: peak of activations without a plan.
        overhead: extra compute of the plan, as a ratio.
        measured: what it took when it ran.
        recomputed: bytes of each forward tensor that is recomputed.
        at_peak: the buffers alive then, largest first; they add up to ``peak_activations``.
        timeline: the simulated step; not kept in files.
        occupancy: what lies in memory at each of its steps; not kept in files.
    """

    source: str
    fingerprint: Fingerprint | None
    settings: Settings | None
    ckplan: str
    onnxruntime: str
    peak_activations: int
    peak_total: int
    peak_node: str = ""
    peak_op: str = ""
    unplanned: int | None = None
    overhead: float | None = None
    measured: Measured | None = None
    recomputed: Mapping[str, int] = field(default_factory=dict)
    at_peak: tuple[PeakBuffer, ...] = ()
    timeline: Timeline | None = None
    occupancy: Occupancy | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form, without the timeline.

        What is recomputed stands under ``recomputed_tensors``: elsewhere ``recomputed`` is a number of nodes.
        """
        kept = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in _NOT_KEPT}
        kept = {_RECOMPUTED if name == "recomputed" else name: value for name, value in kept.items()}
        return {**jsonable(kept), "settings": self.settings and self.settings.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Snapshot:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: the data is of another form.
        """
        fingerprint, settings, measured = data["fingerprint"], data["settings"], data["measured"]
        recomputed = data[_RECOMPUTED] if _RECOMPUTED in data else data["recomputed"]  # as earlier baselines have it
        return cls(
            source=str(data["source"]),
            fingerprint=None if fingerprint is None else _record(Fingerprint, fingerprint),
            settings=None if settings is None else Settings.from_json(settings),
            ckplan=str(data["ckplan"]),
            onnxruntime=str(data["onnxruntime"]),
            peak_activations=int(data["peak_activations"]),
            peak_total=int(data["peak_total"]),
            peak_node=str(data["peak_node"]),
            peak_op=str(data["peak_op"]),
            unplanned=None if data["unplanned"] is None else int(data["unplanned"]),
            overhead=None if data["overhead"] is None else float(data["overhead"]),
            measured=None if measured is None else _record(Measured, measured),
            recomputed={str(name): int(size) for name, size in recomputed.items()},
            at_peak=tuple(_record(PeakBuffer, alive) for alive in data["at_peak"]),
        )


_RECOMPUTED = "recomputed_tensors"
"""Key of the tensors that are recomputed, with their bytes."""

_NOT_KEPT = frozenset({"timeline", "occupancy"})
"""What of a snapshot is not kept in files."""


def _record(kind: type[R], data: Mapping[str, Any]) -> R:
    """A record of texts and numbers out of a file; raises KeyError and TypeError where it does not fit."""
    given = {name: tuple(map(str, value)) if isinstance(value, list) else value for name, value in data.items()}
    for name, expected in get_type_hints(kind).items():
        expected = get_origin(expected) or expected
        if name in given and type(given[name]) is not expected:
            raise TypeError(f"`{name}` is {str(data[name])[:50]!r}, which is no {expected.__name__}")
    for each in fields(kind):  # type: ignore[arg-type]
        if each.default is MISSING and each.name not in given:
            raise KeyError(each.name)
    return kind(**given)
