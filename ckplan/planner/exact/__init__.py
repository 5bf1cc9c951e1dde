"""Exact planning: a search over states for tiny problems, constraint programming for small ones."""

from __future__ import annotations

from ckplan.planner.exact.states import TINY, TooLargeError, optimum, optimum_of_lowest_peak

__all__ = ["TINY", "TooLargeError", "optimum", "optimum_of_lowest_peak"]
