"""Results for people (`text`) and for programs (`json`); both consume results and compute nothing."""

from __future__ import annotations

SCHEMA = 1
"""Of what commands print with ``--json``; raised when a reader of the old form would misunderstand the new one."""
