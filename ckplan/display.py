"""Small pictures of results for notebooks: a heading and a table of names and values."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def table_html(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values as HTML; all text is escaped.

    Args:
        title: its heading.
        rows: a name and a value each.
    """
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<b>{escape(title)}</b><table>{cells}</table>"
