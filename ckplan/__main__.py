"""``python -m ckplan`` is the command line."""

from __future__ import annotations

from ckplan.cli import main

if __name__ == "__main__":
    main()
