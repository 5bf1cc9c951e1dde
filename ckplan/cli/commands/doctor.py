"""``ckplan doctor``: what works on this machine."""

from __future__ import annotations

import click

from ckplan.cli.options import json_option, talk_options
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import show, show_json, stage
from ckplan.errors import EnvironmentUnavailableError


@click.command("doctor", cls=SectionedCommand, short_help="Say which devices, meters and extras work here.")
@json_option
@talk_options
def command(as_json: bool) -> None:
    """Say which devices, meters and extras work on this machine, and what to do about those that do not.

    Devices and meters are tried, not asked for their names: a small training step runs on each. The exit code is 5 if
    something is broken that ckplan cannot do without.
    """
    from ckplan.meter.checkup import checkup

    with stage("checking") as doing:
        found = checkup(doing)
    if as_json:
        from ckplan.report import json

        show_json(json.checkup(found))
    else:
        from ckplan.report.documents import checkups

        show(checkups.checkup(found))
    broken = [finding for finding in found if finding.required and finding.state != "ok"]
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise EnvironmentUnavailableError(f"{broken[0].name}: {broken[0].found}{more}", broken[0].remedy)
