"""Bytes and seconds, from and to text."""

from __future__ import annotations

import re

from ckplan.errors import UsageError

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


_MOST = 2**62
"""Above all sizes that can be meant."""


def parse_bytes(text: str) -> int:
    """Read a size such as ``512MiB``, ``1.5 GB`` or ``4096`` (bytes).

    Raises:
        UsageError: the text is not a size.
    """
    return _parse_size(text, "write it like 512MiB, 1.5GB or 4096")


def _parse_size(text: str, hint: str) -> int:
    """The same, with what to write instead of what is no size; a part of a byte is none."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _FACTORS:
        raise UsageError(f"`{text}` is not a size", hint)
    size = float(match[1]) * _FACTORS[match[2].lower()]
    if size >= _MOST:
        raise UsageError(f"a size of {len(text)} digits is too large", hint)
    if 0 < size < 1:
        raise UsageError(f"`{text}` is less than a byte", hint)
    return round(size)


def parse_share(text: str) -> float:
    """Read a percentage: ``parse_share("12.5%") == 0.125``.

    Raises:
        UsageError: the text is not a percentage of zero or more.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*%\s*", text)
    if match is None:
        raise UsageError(f"`{text}` is not a percentage", "write it like 10%")
    share = float(match[1]) / 100
    if share >= _MOST:
        raise UsageError(f"a percentage of {len(text)} digits is too large", "write it like 10%")
    return share


def parse_budget(text: str) -> int | float:
    """Read a budget: bytes (``512MiB``), or a percentage as a ratio (``40%`` is 0.4).

    Raises:
        UsageError: the text is neither.
    """
    if text.rstrip().endswith("%"):
        return parse_share(text)
    return _parse_size(text, "write it like 512MiB, 1.5GB, 4096 or 40%")


def spell_budget(budget: int | float) -> str:
    """The inverse of `parse_budget`: exact bytes, or a percentage."""
    return f"{100 * budget:.10g}%" if isinstance(budget, float) else str(budget)


def format_bytes(count: float) -> str:
    """Write a byte count for people, in binary units: ``format_bytes(1536) == "1.5 KiB"``."""
    # Sizes that a file makes up may be beyond any float.
    size, sign = min(abs(count), 2**1000), "-" if count < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{sign}{size:.0f} {unit}" if unit == "B" else f"{sign}{size:.1f} {unit}"
        size /= 1024
    return f"{sign}{size:.1f} TiB" if size < 1e6 else f"{sign}{size:.1e} TiB"


def format_unlike(*counts: int) -> tuple[str, ...]:
    """Write byte counts that are told beside each other: exactly where two that differ would look alike."""
    texts = [format_bytes(count) for count in counts]
    if len(set(texts)) < len(set(counts)):
        return tuple(f"{count:,} B" for count in counts)
    return tuple(texts)


def format_seconds(seconds: float) -> str:
    """Write a duration for people: ``format_seconds(0.0123) == "12.3 ms"``."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
