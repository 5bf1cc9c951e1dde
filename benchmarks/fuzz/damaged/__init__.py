"""Models that are invalid in one way each: what a damaged file or a hostile one looks like after parsing."""

from __future__ import annotations

from benchmarks.fuzz.damaged import structures, tensors  # noqa: F401 - they register their cases
from benchmarks.fuzz.damaged.parts import CASES as CASES
from benchmarks.fuzz.damaged.parts import written as written
