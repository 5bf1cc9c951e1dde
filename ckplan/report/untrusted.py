"""Names of nodes, tensors and files come from strangers: text that cannot break out of where it is put.

Whatever leaves the program goes through here, once, where it leaves: lines on stderr and reports on stdout
(`ckplan.cli.terminal`), the values that the page's template is filled with, JSON, Markdown, XML, CSV and GitHub's
workflow commands (docs.github.com/actions/reference/workflow-commands-for-github-actions). What makes reports need not
know: it may put any name into any text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_COMMAND = re.compile(
    r"::(?=(?:error|warning|notice|debug|group|endgroup|echo|(?:add|remove)-|set-|save-|stop-|internal-))",
    re.IGNORECASE,
)
"""What begins a workflow command when it stands at the beginning of a line, as it may where a long text is wrapped."""

_PLAIN = frozenset(" .,;/=+()%'-")


def printable(text: str) -> str:
    r"""Text in one line without control characters: a newline becomes ``\n``, as Python writes it.

    What would begin a command in the log of a CI job is broken up: ``##[`` and ``::error`` and their like.
    """
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "replace").decode("ascii")
        for letter in text
    )
    return _COMMAND.sub(": :", shown.replace("##[", "# #["))


def markdown(text: str) -> str:
    """Text that shows as it is in Markdown, in table cells too: what could mean something is written as an entity."""
    shown = "".join(
        letter if letter.isalnum() or letter in _PLAIN else f"&#{ord(letter)};" for letter in printable(text)
    )
    return re.sub(r"www\.", "www&#46;", shown, flags=re.IGNORECASE)  # would become a link


def code(text: str) -> str:
    """The same in the typeface of code."""
    return f"<code>{markdown(text)}</code>"


def command_data(text: str) -> str:
    """The message of a workflow command; newlines in it are kept."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def command_property(text: str) -> str:
    """The value of a property of a workflow command."""
    return command_data(text).replace(":", "%3A").replace(",", "%2C")


def printable_report(report: RenderableType) -> RenderableType:
    """A report whose texts are `printable`, each in one line; strings in it are no markup of rich's.

    Args:
        report: groups, padding, tables, texts and strings; anything else (a chart) draws itself and holds no names.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    match report:
        case str():
            return Text(printable(report))
        case Text():
            return _printable_text(report)
        case Group():
            return Group(*map(printable_report, report.renderables))
        case Padding():
            return Padding(printable_report(report.renderable), (report.top, report.right, report.bottom, report.left))
        case Table():
            for column in report.columns:
                column.header = printable_report(column.header)
                # rich has no other way to change what stands in a table.
                column._cells = [printable_report(cell) for cell in column.cells]
    return report


def _printable_text(text: Text) -> Text:
    """The same text with its styles; one that has to be changed keeps only the style of the whole."""
    shown = printable(text.plain)
    if shown == text.plain:
        return text
    changed = text.blank_copy(shown)
    changed.overflow, changed.no_wrap = text.overflow, text.no_wrap
    return changed


def json_text(data: Any, **layout: Any) -> str:
    """JSON in ASCII whose strings hold no command for the log of a CI job: `layout` as for ``json.dumps``."""
    import json

    return json.dumps(data, **layout).replace("##[", "#\\u0023[")
