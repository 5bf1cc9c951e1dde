"""Numbers that a user gives, held to what they may be."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from ckplan.errors import UsageError


def check_number(what: str, given: Any, least: float = 0, *, whole: bool = False) -> None:
    """See that a number is finite and not below another.

    Args:
        what: what it is, for the message.
        given: a number, of Python's or of numpy's.
        least: what it may be at the least; minus infinity lets it be any.
        whole: whether it has to be a whole number.

    Raises:
        UsageError: it is of another kind or out of range.
    """
    is_kind = isinstance(given, Integral if whole else Real) and not isinstance(given, bool)
    if not is_kind or not least <= given < math.inf:
        range_ = "" if least == -math.inf else f" of at least {least:g}"
        raise UsageError(f"{what} is {given!r}", f"give a {'whole ' if whole else ''}number{range_}")
