"""The command line: ``main`` runs it, one file per command."""

from __future__ import annotations

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ckplan")
def main() -> None:
    """Train ONNX models in a fraction of the memory."""
