"""``python -m ckplan`` is the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it without a word also while it is still being imported or set up."""
    try:
        from ckplan.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
