"""Metadata that anybody may have edited: who depends on an entry refuses a damaged one, a mere remark is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ckplan.errors import ModelError


def listed_names(properties: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Read a JSON list of names from metadata.

    Args:
        properties: the metadata of a model or a node.
        key: of the entry.

    Returns:
        The names; none where there is no such entry.

    Raises:
        ModelError: the entry is no JSON list of texts.
    """
    try:
        names = json.loads(properties.get(key, "[]"))
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(
            f"the metadata entry `{key}` is damaged: it is not a JSON list of names", "write the file again"
        )
    return tuple(names)


def told(properties: Mapping[str, str], key: str) -> dict[str, Any]:
    """Read a JSON object from metadata that nothing but a remark depends on; empty if it is absent or damaged."""
    try:
        found = json.loads(properties.get(key, "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def finite(found: Any) -> float | None:
    """A finite number that metadata tell, as text or in JSON; None where they tell none."""
    try:
        number = float(found)
    except (ValueError, TypeError, OverflowError):
        return None
    return number if math.isfinite(number) else None
