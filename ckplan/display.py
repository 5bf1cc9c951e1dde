"""Small pieces of text for people: lists cut short, near names, and tables of names and values for notebooks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from html import escape


def shortened(names: Sequence[str], most: int = 5) -> str:
    """List things for people: the first few of them, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


_PART = 3
"""Letters that a name has to have in order to be taken for a part of another one."""


def did_you_mean(name: str, known: Iterable[str], most: int = 1, ending: str = "") -> str:
    """A question that names what a name that does not exist is a part of, or spelt nearly like; empty if there is none.

    Args:
        name: what the user wrote.
        known: the names that there are.
        most: how many of them are named at the most.
        ending: what all of them end with, which neither ``name`` nor ``known`` have: by it all would be alike.
    """
    names = sorted(set(known))
    longer = sorted((one for one in names if name.lower() in one.lower()), key=len) if len(name) >= _PART else []
    near = longer[:most] or difflib.get_close_matches(name, names, n=most, cutoff=0.5)
    return f"did you mean {' or '.join(f'`{candidate}{ending}`' for candidate in near)}?" if near else ""


def reason_of(error: Exception) -> str:
    """What is wrong with data by the error that reading them raised: of a key that is missing Python tells the key."""
    return f"it lacks {error}" if isinstance(error, KeyError) else one_line(error)


def one_line(text: object, most: int = 200) -> str:
    """Text of others, such as an exception's, on one line and cut short: some hold a whole graph."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[:most]}..."


_LONGEST = 50
"""Letters of a file's name that a model's name becomes: in UTF-8 they take at most 200 of the 255 bytes that it has."""


def file_name(called: str) -> str:
    """What a model is called, as the beginning of a file's name that every file system and onnxruntime take."""
    return re.sub(r"[^\w .-]", "_", called)[:_LONGEST].strip() or "model"


def table_html(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values as HTML; all text is escaped.

    Args:
        title: its heading.
        rows: a name and a value each.
    """
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<b>{escape(title)}</b><table>{cells}</table>"
