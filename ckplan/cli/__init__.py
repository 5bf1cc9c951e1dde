"""The command line, one file per command; a thin layer over the library.

No module here imports numpy, onnx or rich at its top: ``ckplan --help`` has to answer at once.
"""

from __future__ import annotations

from ckplan.cli.app import cli
from ckplan.cli.commands import (
    analyze,
    artifacts,
    compare,
    demo,
    doctor,
    explain,
    export_weights,
    fit,
    grad,
    measure,
    ops,
    pareto,
    plan,
    report,
    rewrite,
    strategies,
    train,
    verify,
)

__all__ = ["cli", "main"]

for _module in (
    demo,
    analyze,
    pareto,
    grad,
    plan,
    rewrite,
    fit,
    artifacts,
    train,
    export_weights,
    explain,
    report,
    measure,
    verify,
    compare,
    strategies,
    ops,
    doctor,
):
    cli.add_command(_module.command)


def main() -> None:
    """Run the command line on ``sys.argv`` and exit."""
    cli.main(prog_name="ckplan")
