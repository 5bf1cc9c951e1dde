"""What comparing two files finds: plain frozen records, all sizes in bytes and all times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckplan.meter.types import Measurement, NonFinite, Origin, jsonable

if TYPE_CHECKING:
    from ckplan.meter.numbers.in_place import InPlace

_NOISE = 1e-6
"""Ratio to the largest element of all gradients: what is below it is rounding, of some units of float32."""

_ROUNDING = {"cpu": 1e-5, "cuda": 1e-3}
"""Ratio to the largest element of an output: what is below it is rounding. On CUDA products are in TF32, whose unit is
2^-11 where that of float32 is 2^-24."""

_RUNS = 4
"""How many times as far as two runs of one file may two files be apart."""


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """How one output differs between two files; base against new.

    Attributes:
        output: its name.
        problem: set if the outputs cannot be compared (shape, dtype, not a tensor); the figures are 0 then.
        elements: number of elements that differ bitwise.
        first: index of the first of them.
        base: that element in the base file, as text.
        new: and in the new one.
        max_ulp: largest distance in units in the last place, over elements finite in both.
        max_absolute: largest absolute difference, over the same.
        max_relative: largest difference relative to the larger of the two elements.
        relative_to_scale: largest difference relative to the largest element of the base's output.
        relative_to_gradients: of a gradient: largest difference relative to the largest element of all the base's
            gradients; of a moment that an optimizer keeps: of all such moments.
        nonfinite: elements that are finite in one file only, or are NaN or infinities of another kind.
        is_floating: whether it holds floating-point numbers; of nothing else a difference is rounding.
        device: ``cpu`` or ``cuda``: where both ran.
        wobble: largest absolute difference between two runs of one of the files, on CUDA and without random operators.
    """

    output: str
    problem: str = ""
    elements: int = 0
    first: tuple[int, ...] = ()
    base: str = ""
    new: str = ""
    max_ulp: int = 0
    max_absolute: float = 0.0
    max_relative: float = 0.0
    relative_to_scale: float = 0.0
    relative_to_gradients: float | None = None
    nonfinite: int = 0
    is_floating: bool = True
    device: str = "cpu"
    wobble: float = 0.0

    @property
    def is_rounding(self) -> bool:
        """Whether the difference is no more than a change in rounding.

        Integers, truth values and text are not rounded: where they differ, something else is computed.

        Where a plan makes a node wait, onnxruntime may not fuse it with its neighbour; a fused kernel rounds less. On
        CUDA sums over threads are not the same from run to run, and two files need not be closer than two runs are.
        """
        close = self.max_ulp <= 4 or 0 < self.relative_to_scale <= _ROUNDING[self.device] or self._is_noise
        close = close or 0 < self.max_absolute <= _RUNS * self.wobble
        return self.is_floating and not self.problem and not self.nonfinite and close

    @property
    def _is_noise(self) -> bool:
        """Whether this is a gradient that is nothing but rounding, in both files.

        A gradient that is zero by theory, such as that of the bias of an attention's keys, comes out as the rounding of
        its terms, and differs by as much as it is large: all gradients together say what is large.
        """
        overall = self.relative_to_gradients
        if overall is None or overall > _NOISE:
            return False
        return self.relative_to_scale == 0 or overall <= _NOISE * self.relative_to_scale


@dataclass(frozen=True)
class Numerics:
    """Outputs of two files on the same inputs.

    Attributes:
        compared: names of the common outputs, in the base file's order.
        only_base: outputs that only the base file has.
        only_new: outputs that only the new file has.
        differences: the common outputs that are not bitwise equal, in order.
        base_nonfinite: outputs of the base file with NaN or infinity.
        new_nonfinite: and of the new one.
        base_origin: where the base file's NaN or infinity comes from; None if it has none.
        new_origin: and the new one's.
    """

    compared: tuple[str, ...]
    only_base: tuple[str, ...]
    only_new: tuple[str, ...]
    differences: tuple[OutputDifference, ...]
    base_nonfinite: tuple[NonFinite, ...] = ()
    new_nonfinite: tuple[NonFinite, ...] = ()
    base_origin: Origin | None = None
    new_origin: Origin | None = None

    @property
    def bitwise_equal(self) -> bool:
        """Whether every common output is the same to the bit (and there is at least one)."""
        return bool(self.compared) and not self.differences


@dataclass(frozen=True)
class Timing:
    """Step times of two files, taken in turns: base, new, base, new.

    What else a machine does makes a step slower and never faster, so that the least of several is what the step itself
    takes (Chen and Revels, arXiv:1608.04295).

    Attributes:
        base_seconds: of the base file.
        new_seconds: of the new one.
        clock: what was read: ``processor``, the processor time of the process on one thread, or ``wall``.
    """

    base_seconds: tuple[float, ...]
    new_seconds: tuple[float, ...]
    clock: str = "wall"

    @property
    def ratio(self) -> float:
        """The least of the new file over the least of the base: 1.2 means that a step takes a fifth longer."""
        return min(self.new_seconds) / min(self.base_seconds)

    @property
    def spread(self) -> float | None:
        """How far the ratios of the first and the second half of the pairs lie apart; None for a single pair."""
        half = len(self.base_seconds) // 2
        if not half:
            return None
        first, second = (
            Timing(self.base_seconds[part], self.new_seconds[part]).ratio for part in (slice(half), slice(half, None))
        )
        return abs(first - second)

    def to_json(self) -> dict[str, Any]:
        """The times and what follows from them."""
        return {
            **jsonable(self),
            "base_least": min(self.base_seconds),
            "new_least": min(self.new_seconds),
            "ratio": self.ratio,
            "spread": self.spread,
        }


@dataclass(frozen=True)
class Verification:
    """A new file against a base file, on the same inputs.

    Attributes:
        base: the base file.
        new: the new one.
        numerics: their outputs compared.
        timing: their step times, taken in turns; None if that could not be done (see ``notes``).
        notes: what could not be done, and why.
        in_place: what became of the new file's values when they were updated in place; None if it does not promise it.
    """

    base: Measurement
    new: Measurement
    numerics: Numerics
    timing: Timing | None
    notes: tuple[str, ...]
    in_place: InPlace | None = None

    def __repr__(self) -> str:
        told = f"{len(self.problems)} problem(s)" if self.problems else "no problems"
        return f"<Verification: {self.base!r} beside {self.new!r}, {told}>"

    @property
    def activation_ratio(self) -> float | None:
        """Peak activations of the new file over the base's."""
        return _ratio(self.new.peak_activations, self.base.peak_activations)

    @property
    def total_ratio(self) -> float | None:
        """Peak of all live bytes of the new file over the base's."""
        return _ratio(self.new.peak_total, self.base.peak_total)

    @property
    def time_ratio(self) -> float | None:
        """Step time of the new file over the base's."""
        return self.timing.ratio if self.timing is not None else None

    @property
    def overhead(self) -> float | None:
        """Extra step time of the new file, as a ratio of the base's (0.25: a quarter more)."""
        return self.timing.ratio - 1 if self.timing is not None else None

    @property
    def problems(self) -> tuple[str, ...]:
        """What a user must know before trusting the new file, a sentence each; empty if all is well."""
        from ckplan.meter.problems import problems_of

        return problems_of(self)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form, with all that follows from the fields."""
        return {
            "base": self.base.to_json(),
            "new": self.new.to_json(),
            "numerics": {**jsonable(self.numerics), "bitwise_equal": self.numerics.bitwise_equal},
            "timing": self.timing.to_json() if self.timing is not None else None,
            "notes": list(self.notes),
            "in_place": jsonable(self.in_place),
            "activation_ratio": self.activation_ratio,
            "total_ratio": self.total_ratio,
            "time_ratio": self.time_ratio,
            "overhead": self.overhead,
            "problems": list(self.problems),
        }


def _ratio(new: int | None, base: int | None) -> float | None:
    return new / base if new is not None and base else None
