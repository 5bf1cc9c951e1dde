"""The memory gate: what a model takes, held against what it took before and against limits."""

from __future__ import annotations

from ckplan.comparison.configuration import Configuration, find_configuration, read_configuration
from ckplan.comparison.files import is_json, read_snapshots, write_baseline
from ckplan.comparison.judging import Check, Comparison, Finding, Growth, Level, Limits, judge
from ckplan.comparison.running import How, Target, compare_files, compare_targets
from ckplan.comparison.settings import Settings
from ckplan.comparison.snapshot import Fingerprint, Measured, PeakBuffer, Snapshot
from ckplan.comparison.taking import take

__all__ = [
    "Check",
    "Comparison",
    "Configuration",
    "Finding",
    "Fingerprint",
    "Growth",
    "How",
    "Level",
    "Limits",
    "Measured",
    "PeakBuffer",
    "Settings",
    "Snapshot",
    "Target",
    "compare_files",
    "compare_targets",
    "find_configuration",
    "is_json",
    "judge",
    "read_configuration",
    "read_snapshots",
    "take",
    "write_baseline",
]
