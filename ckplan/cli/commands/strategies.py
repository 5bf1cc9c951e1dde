"""``ckplan strategies``: how a step can be planned."""

from __future__ import annotations

import click

from ckplan.cli.options import json_option, talk_options
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import show, show_json


@click.command("strategies", cls=SectionedCommand)
@json_option
@talk_options
def command(as_json: bool) -> None:
    """List the planning strategies and their options."""
    from ckplan.planner.strategies import strategies

    if as_json:
        from ckplan.report import json

        show_json(json.strategies(strategies()))
    else:
        from ckplan.report import listings

        show(listings.strategies(strategies()))
