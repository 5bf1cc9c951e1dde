"""Programs that run beside each other on this machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

PAUSE = 0.05


def run_together(commands: Sequence[Sequence[str]]) -> int:
    """Run all to their end, or to the first failure, which ends the others; returns the exit code of that."""
    running = [subprocess.Popen(command) for command in commands]
    try:
        while True:
            codes = [process.poll() for process in running]
            failed = [code for code in codes if code]
            if failed or None not in codes:
                return failed[0] if failed else 0
            time.sleep(PAUSE)
    finally:
        for process in running:
            process.kill()
            process.wait()
