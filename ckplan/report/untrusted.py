"""Names of nodes, tensors and files come from strangers: text that cannot break out of where it is put.

Whatever leaves the program goes through here, once, where it leaves: lines on stderr (`ckplan.cli.terminal.streams`),
the values that the page's template is filled with, reports for terminals, JSON, Markdown, XML, CSV and GitHub's
workflow commands (docs.github.com/actions/reference/workflow-commands-for-github-actions). What makes reports need not
know: it may put any name into any text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

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


def json_text(data: Any, **layout: Any) -> str:
    """JSON in ASCII whose strings hold no command for the log of a CI job: `layout` as for ``json.dumps``.

    NaN and infinities, which JSON does not know, become null.
    """
    import json

    try:
        text = json.dumps(data, allow_nan=False, **layout)
    except ValueError:
        text = json.dumps(_finite(data), allow_nan=False, **layout)
    return text.replace("##[", "#\\u0023[")


def _finite(data: Any) -> Any:
    """The same with None in the place of numbers that are not finite."""
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
