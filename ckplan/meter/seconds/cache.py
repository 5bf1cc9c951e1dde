"""Times that were measured on this machine, kept in the user's cache."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ckplan.errors import CkplanError
from ckplan.model.files.saving import write_text


def cache_folder() -> Path:
    """Where measured times are kept: ``$XDG_CACHE_HOME/ckplan``, safe to delete."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ckplan"


def read_kept(kept: Path) -> dict[str, Any] | None:
    """What a file of the cache holds, None where it is no JSON object that can be read."""
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def is_duration(found: object) -> bool:
    """Whether something is a number of seconds."""
    return isinstance(found, float) and 0 <= found < math.inf


def write_kept(kept: Path, found: Mapping[str, float | None]) -> None:
    """Keep it whole or not at all; a cache that cannot be written is no failure."""
    with suppress(OSError, CkplanError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(json.dumps(found), kept, force=True)
