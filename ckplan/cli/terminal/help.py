"""Help in sections: what belongs together stands together, under a heading, and is given to commands as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ckplan.cli.terminal.streams import answer

Decorator = Callable[[Any], Any]

GENERAL = "Options"
"""The heading of options that belong to no section."""


def stack(*decorators: Decorator) -> Decorator:
    """One decorator out of several; they appear in the help in the order given."""

    def apply(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def section(title: str, *decorators: Decorator) -> Decorator:
    """Options that stand under a heading of their own in the help."""

    def apply(function: Any) -> Any:
        before = len(getattr(function, "__click_params__", ()))
        function = stack(*decorators)(function)
        for option in function.__click_params__[before:]:
            option.section = title
        return function

    return apply


def section_of(parameter: click.Parameter) -> str:
    """The heading that an option stands under."""
    return str(getattr(parameter, "section", GENERAL))


class SectionedCommand(click.Command):
    """A command whose help lists its options by section; its own come first."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """The option that shows the help, as any other answer is shown."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a definition list for each section."""
        sections: dict[str, list[tuple[str, str]]] = {GENERAL: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(section_of(parameter), []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _show_help(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    """Show the help of a command, and end it, where it was asked for."""
    if asked and not ctx.resilient_parsing:
        answer(ctx.get_help())
        ctx.exit()
