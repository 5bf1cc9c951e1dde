"""Write the pages that come from the code: ``python -m docs.generate``. A test holds them to it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from ckplan.cli import cli
from ckplan.cli.terminal.help import GENERAL, section_of
from ckplan.planner.strategies import STRATEGIES
from ckplan.report import docs
from ckplan.report.listings import default as written
from docs import operators_page

FOLDER = Path(__file__).parent
_WIDTH = 118


def commands() -> str:
    """The page of commands, a section each; options that several commands share stand once, at its end."""
    lines = ["# Commands", "", *_by("`ckplan COMMAND --help` prints the same"), "", *_prose(str(cli.help)), ""]
    lines += ["| command | what it does |", "|---|---|"]
    for name, command in cli.commands.items():
        lines.append(f"| [`ckplan {name}`](#ckplan-{name}) | {_cell(command.get_short_help_str(limit=200))} |")
    shared: Shared = {}
    for name, command in cli.commands.items():
        lines += ["", *_command(name, command, shared)]
    lines += ["", "# Shared options"]
    for title, options in shared.items():
        all_of_them = dict.fromkeys(command for _, commands in options.values() for command in commands)
        rows = {flags: text + _reach(commands, list(all_of_them)) for flags, (text, commands) in options.items()}
        lines += ["", f"## {title}", "", *_table(rows)]
    return "\n".join(lines) + "\n"


Shared = dict[str, dict[str, tuple[str, list[str]]]]
"""By heading and flags: what an option does, and the commands that take it."""


def _reach(commands: list[str], all_of_them: list[str]) -> str:
    """Which of the commands that have options of a heading take one of them; empty if all do."""
    others = [command for command in all_of_them if command not in commands]
    if not others:
        return ""
    word, named = ("Only", commands) if len(commands) <= len(others) else ("Not", others)
    return f" {word} for {', '.join(f'`{name}`' for name in named)}."


def _command(name: str, command: click.Command, shared: Shared) -> Iterator[str]:
    """The section of a command; options under a heading of their own go to ``shared``, by heading."""
    # A command keeps the help option of the first context that asks for one.
    context = click.Context(command, info_name=f"ckplan {name}", help_option_names=["-h", "--help"])
    yield f"## ckplan {name}"
    yield ""
    yield "```text"
    yield command.get_usage(context).removeprefix("Usage: ")
    yield "```"
    yield ""
    yield from _prose(str(command.help))
    if isinstance(command, click.Group):
        for part, inner in command.commands.items():
            yield ""
            yield from _command(f"{name} {part}", inner, shared)
        return
    own: dict[str, str] = {}
    elsewhere: dict[str, None] = {}
    for option in command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is None:
            continue
        flags, text = record
        title = section_of(option)
        text = " ".join(text.split())
        if title == GENERAL:
            own[flags] = text
        else:
            elsewhere[title] = None
            shared.setdefault(title, {}).setdefault(flags, (text, []))[1].append(name)
    if own:
        yield from ("", *_table(own))
    if elsewhere:
        links = ", ".join(f"[{title.lower()}](#{title.lower().replace(' ', '-')})" for title in elsewhere)
        yield from ("", *_wrapped(f"Shared options: {links}."))


def _table(records: Mapping[str, str]) -> list[str]:
    rows = [f"| `{_cell(flags)}` | {_cell(text)} |" for flags, text in records.items()]
    return ["| option | what it does |", "|---|---|", *rows]


def strategies() -> str:
    """The page of strategies, a section for each strategy."""
    lines = [
        "# Strategies",
        "",
        *_by("`ckplan strategies` prints the same"),
        "",
        *_prose(
            "`--strategy NAME:option=value,...` says how to plan; without it, `auto` does. In a value, `;` "
            "stands for a comma. [How plans are found](planning.md) tells how they work together."
        ),
        "",
        "| strategy | what it does |",
        "|---|---|",
    ]
    lines += [f"| [`{kind.name}`](#{kind.name}) | {_cell(docs.paragraphs(kind)[0])} |" for kind in STRATEGIES]
    for kind in STRATEGIES:
        lines += ["", f"## {kind.name}"]
        for paragraph in docs.paragraphs(kind):
            lines += ["", *_wrapped(paragraph)]
        lines += _options(docs.options(kind))
    return "\n".join(lines) + "\n"


def _options(options: list[docs.Option]) -> Iterator[str]:
    if options:
        yield from ("", "| option | default | what it is |", "|---|---|---|")
    for option in options:
        value = written(option.default)
        yield f"| `{option.name}` | {_cell(f'`{value}`' if value else '')} | {_cell(option.text)} |"


def _by(other: str) -> list[str]:
    return _wrapped(f"Written by `python -m docs.generate`; {other}.")


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a help text."""
    for number, paragraph in enumerate(textwrap.dedent(text).strip().split("\n\n")):
        if number:
            yield ""
        yield from _wrapped(paragraph)


def _wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(" ".join(paragraph.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands,
    "strategies.md": strategies,
    "operators.md": operators_page.current,
}
"""File names in this folder, and what they hold."""

if __name__ == "__main__":
    for file, page in PAGES.items():
        (FOLDER / file).write_text(page(), encoding="utf-8")
