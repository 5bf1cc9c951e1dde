"""Help in sections: what belongs together stands together, under a heading."""

from __future__ import annotations

import click

GENERAL = "Options"
"""The heading of options that belong to no section."""


def section_of(parameter: click.Parameter) -> str:
    """The heading that an option stands under."""
    return str(getattr(parameter, "section", GENERAL))


class SectionedCommand(click.Command):
    """A command whose help lists its options by section; its own come first."""

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
