"""``ckplan ops``: what can be differentiated."""

from __future__ import annotations

import click

from ckplan.cli.options import json_option, talk_options
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import show, show_json


@click.command("ops", cls=SectionedCommand, short_help="List the operators that can be differentiated.")
@json_option
@talk_options
def command(as_json: bool) -> None:
    """List the operators that can be differentiated and how, and those that cannot, with the reason."""
    from ckplan.autodiff.coverage import microsoft_operators, standard_operators

    if as_json:
        from ckplan.report import json

        show_json(json.operators(standard_operators(), microsoft_operators()))
    else:
        from ckplan.report import listings

        show(listings.operators(standard_operators(), microsoft_operators()))
