"""Hold one snapshot against another and against limits; name what grew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ckplan.arguments import check_budget, check_ratio
from ckplan.comparison.snapshot import WORKSPACE, PeakBuffer, Snapshot
from ckplan.errors import CheckFailedError, CkplanError, ModelError, UsageError
from ckplan.units import format_bytes

OWN = "ckplan/"
"""Names of what ckplan itself puts into a file, small copies and shapes, begin with this."""


class Level(Enum):
    """What became of a check, from best to worst."""

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"
    ERROR = "error"
    """It could not be made."""


_CHECKS = {check_budget: ("budget", "warn_budget"), check_ratio: ("max_regression", "warn_regression", "tolerance")}
"""What limits are held to, by the functions that do it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the newer side must keep to. A budget that is a float is a ratio of the peak without a plan.

    Attributes:
        max_regression: how much larger than the base's its peak may be, as a ratio (0.03: three percent); None: any.
        warn_regression: from where on to warn.
        budget: peak of activations not to exceed.
        warn_budget: from where on to warn.
        measured: whether the measured peak decides, not the simulated one.
        tolerance: what a measured peak may exceed a limit by, as a ratio.
    """

    max_regression: float | None = 0.0
    warn_regression: float | None = None
    budget: int | float | None = None
    warn_budget: int | float | None = None
    measured: bool = False
    tolerance: float = 0.02

    def __post_init__(self) -> None:
        for check, names in _CHECKS.items():
            for name in names:
                if (given := getattr(self, name)) is not None:
                    check(f"limit `{name}`", given)


@dataclass(frozen=True, slots=True)
class Finding:
    """A limit that was not kept.

    Attributes:
        level: `Level.WARNED` or `Level.FAILED`.
        rule: ``regression`` or ``budget``.
        message: what is wrong, in one line.
        peak: the peak that exceeds the limit, in bytes.
        limit: bytes that it may have.
    """

    level: Level
    rule: str
    message: str
    peak: int
    limit: int


@dataclass(frozen=True, slots=True)
class Growth:
    """A buffer whose part in the peak changed.

    Attributes:
        alive: the buffer: the newer side's, or the base's if it is gone.
        before: bytes at the base's peak, 0 if it was not alive then.
        after: bytes at the newer side's peak.
    """

    alive: PeakBuffer
    before: int
    after: int

    @property
    def change(self) -> int:
        """Bytes more than before."""
        return self.after - self.before


@dataclass(frozen=True)
class Check:
    """One model, held against its base and its limits.

    Attributes:
        name: what the model is called in the comparison.
        source: its file, as it was given.
        base: the older side, if there is one.
        head: the newer side; None if it could not be made.
        limits: what it had to keep to.
        findings: the limits that it does not keep.
        growth: buffers whose part in the peak changed, the one that grew most first.
        dropped: bytes of each forward tensor that is recomputed now, and was not before: it was kept, or is new.
        limit: bytes that its peak may have, the lowest of its limits; None if it has none.
        error: why the check could not be made.
    """

    name: str
    source: str
    base: Snapshot | None
    head: Snapshot | None
    limits: Limits
    findings: tuple[Finding, ...] = ()
    growth: tuple[Growth, ...] = ()
    dropped: Mapping[str, int] | None = None
    limit: int | None = None
    error: CkplanError | None = None

    @property
    def level(self) -> Level:
        """What became of it."""
        if self.error is not None:
            return Level.ERROR
        levels = {finding.level for finding in self.findings}
        return next((level for level in (Level.FAILED, Level.WARNED) if level in levels), Level.PASSED)

    @property
    def grown(self) -> tuple[Growth, ...]:
        """The buffers that take more of the peak than before."""
        return tuple(growth for growth in self.growth if growth.change > 0)


@dataclass(frozen=True)
class Comparison:
    """The whole answer of a comparison.

    Attributes:
        checks: one for each model.
        notes: what was chosen, and what could not be compared.
        accept: how to accept what grew, as a clause.
        others: what the base holds of models that were not compared.
    """

    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    accept: str = ""
    others: Mapping[str, Snapshot] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.checks)} model(s): {self.level.value}>"

    @property
    def level(self) -> Level:
        """The worst level of any check."""
        order = list(Level)
        return max((check.level for check in self.checks), key=order.index, default=Level.PASSED)

    @property
    def failure(self) -> CkplanError | None:
        """What to fail with: the first error, or else the first limit that was not kept; None if all is well."""
        errors = [check for check in self.checks if check.error is not None]
        if errors and (error := errors[0].error) is not None:
            named = f"{errors[0].name}: " if len(self.checks) > 1 else ""
            made = CkplanError(f"{named}{error.message}{_more(len(errors))}", error.hint)
            made.exit_code = error.exit_code  # type: ignore[misc]
            return made
        failed = [check for check in self.checks if check.level is Level.FAILED]
        if not failed:
            return None
        first = next(finding for finding in failed[0].findings if finding.level is Level.FAILED)
        return CheckFailedError(
            f"{failed[0].name}: {first.message}{culprit(failed[0])}{_more(len(failed))}", self.remedy(failed[0])
        )

    def remedy(self, check: Check) -> str:
        """What to do about the limits that a check does not keep."""
        if any(finding.rule == "budget" for finding in check.findings if finding.level is Level.FAILED):
            return "save memory, or raise the budget"
        return self.accept


def culprit(check: Check) -> str:
    """What grew most, as the end of a sentence; empty if that is not known."""
    parts = []
    named = [growth for growth in check.grown if not growth.alive.tensor.startswith(OWN)] or check.grown
    if named:
        growth, alive = named[0], named[0].alive
        work = alive.shape == WORKSPACE
        maker = f" of {alive.op_type} '{alive.node}'" if alive.node and not work else ""
        told = f"({format_bytes(growth.after)}) is new in it"
        more = f"takes {format_bytes(growth.change)} more of it" if growth.before else told
        parts.append(f"{'the workspace of ' * work}'{alive.tensor}'{maker} {more}")
    if check.dropped:
        first = next(iter(check.dropped))
        parts.append(
            f"'{first}' is {'not kept any more' if _was_there(check.base, check.head, first) else 'recomputed now'}"
        )
    return f": {', '.join(parts)}" if parts else ""


def _was_there(base: Snapshot | None, head: Snapshot | None, tensor: str) -> bool:
    """Whether the base is known to have a tensor: of what was not alive at its peak only the whole graph tells."""
    sides = [side.fingerprint.digest for side in (base, head) if side is not None and side.fingerprint is not None]
    same = len(sides) == 2 and sides[0] == sides[1]
    return same or (base is not None and any(alive.tensor == tensor for alive in base.at_peak))


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""


def judge(name: str, source: str, base: Snapshot | None, head: Snapshot, limits: Limits = Limits()) -> Check:
    """Hold a snapshot against its base and its limits.

    Args:
        name: what the model is called.
        source: its file.
        base: what to compare with; None judges by the budget alone.
        head: the snapshot.
        limits: what to keep to.

    Raises:
        UsageError: a budget is a ratio of a peak that is not known.
        ModelError: the measured peak decides and a side has none.
    """
    peaks = [_peak(side, limits.measured) for side in (base, head) if side is not None]
    peak, slack = peaks[-1], 1 + limits.tolerance if limits.measured else 1.0
    what = f"{'measured ' * limits.measured}peak of activations"
    regressions = [(Level.FAILED, limits.max_regression), (Level.WARNED, limits.warn_regression)]
    budgets = [(Level.FAILED, limits.budget), (Level.WARNED, limits.warn_budget)]
    findings = []
    for level, allowed in regressions if base is not None else []:
        if allowed is not None:
            limit = _whole(peaks[0] * (1 + allowed) * slack)
            told = f"{change(peaks[0], peak)} exceeds the limit of {100 * allowed:+g} %"
            findings.append(Finding(level, "regression", f"{what} {told}", peak, limit))
    for level, budget in budgets:
        if budget is not None:
            most, told = _budget(budget, head)
            limit = _whole(most * slack)
            told = f"{format_bytes(peak)} exceeds the budget of {told} by {peak - limit:,} B"
            findings.append(Finding(level, "budget", f"{what} {told}", peak, limit))
    hard = [finding.limit for finding in findings if finding.level is Level.FAILED]
    broken = [finding for finding in findings if peak > finding.limit]
    failed = {finding.rule for finding in broken if finding.level is Level.FAILED}
    return Check(
        name=name,
        source=source,
        base=base,
        head=head,
        limits=limits,
        # Where a rule fails, its warning says nothing new.
        findings=tuple(entry for entry in broken if entry.level is Level.FAILED or entry.rule not in failed),
        growth=grown_buffers(base, head) if base is not None else (),
        dropped=dropped_tensors(base, head),
        limit=min(hard, default=None),
    )


def change(before: int, after: int) -> str:
    """``9.1 MiB -> 10.6 MiB (+16.5 %, +1,572,864 B)``."""
    ratio = f"{100 * (after / before - 1):+.1f} %, " if before else ""
    return f"{format_bytes(before)} -> {format_bytes(after)} ({ratio}{after - before:+,} B)"


def grown_buffers(base: Snapshot, head: Snapshot) -> tuple[Growth, ...]:
    """The buffers whose part in the peak differs, the one that grew most first."""
    if not base.at_peak or not head.at_peak:
        return ()
    found: dict[tuple[str, bool], Growth] = {}
    for side, before in ((base, True), (head, False)):
        for alive in side.at_peak:  # a name may stand twice: dead, in a buffer that is held, and recomputed
            known = found.get(alive.key)
            sizes = (known.before, known.after) if known else (0, 0)
            size = alive.bytes
            found[alive.key] = Growth(alive, sizes[0] + size * before, sizes[1] + size * (not before))
    changed = (growth for growth in found.values() if growth.change)
    return tuple(sorted(changed, key=lambda growth: (-growth.change, growth.alive.tensor)))


def dropped_tensors(base: Snapshot | None, head: Snapshot) -> dict[str, int]:
    """Bytes of each forward tensor that the newer plan recomputes, and the base's does not.

    Those that were there at the base's peak come first, then the largest.
    """
    if base is None or base.overhead is None or head.overhead is None:
        return {}
    names = set(head.recomputed) - set(base.recomputed)
    there = {alive.tensor for alive in base.at_peak}
    order = sorted(names, key=lambda name: (name not in there, -head.recomputed[name], name))
    return {name: head.recomputed[name] for name in order}


def _peak(side: Snapshot, measured: bool) -> int:
    if not measured:
        return side.peak_activations
    if side.measured is None:
        raise ModelError(f"'{side.source}' holds no measured peak", "save the baseline again with --measured")
    return side.measured.peak_activations


def _budget(budget: int | float, head: Snapshot) -> tuple[int, str]:
    """A budget in bytes, and as it is told."""
    if isinstance(budget, int):
        return budget, format_bytes(budget)
    if head.unplanned is None:
        raise UsageError(
            f"a budget of {100 * budget:g} % is a share of the peak without a plan, which '{head.source}' lacks",
            "give it in bytes, such as 512MiB",
        )
    most = int(budget * head.unplanned)
    return most, f"{format_bytes(most)} ({100 * budget:g} % of {format_bytes(head.unplanned)})"


def _whole(limit: float) -> int:
    """Bytes of a limit; what is a whole number but for rounding stays it."""
    return math.floor(limit + 1e-6)
