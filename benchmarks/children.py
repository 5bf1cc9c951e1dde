"""Exports measured one by one, each in a process of its own, results kept in a file of JSON lines as they come."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.exports import EXPORTS
from ckplan.errors import CkplanError

ROOT = Path(__file__).resolve().parent.parent

Cases = Callable[[str, int, Collection[str]], Iterable[dict[str, Any]]]
"""Measures an export of a batch size, but for the cases that are named; each result says its ``network``."""


def run_exports(
    module: str, about: str | None, file: str, keys: Sequence[str], key: Callable[[dict[str, Any]], str], cases: Cases,
    table: Callable[[list[dict[str, Any]]], list[str]], seconds: int,
) -> None:  # fmt: skip
    """The command line of a benchmark over `benchmarks.exports`; what stands in its file is not measured again.

    Args:
        module: the benchmark, which runs once more for each export.
        about: what the benchmark says of itself.
        file: where results are kept, in the folder ``build``.
        keys: the cases of an export.
        key: of a result the case.
        cases: see `Cases`.
        table: results as lines.
        seconds: the limit of one export.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(EXPORTS), default=list(EXPORTS), metavar="EXPORT")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / file)
    parser.add_argument("--table", action="store_true", help="print the table of the results only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--done", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        try:
            for case in cases(arguments.only[0], arguments.batch, arguments.done.split(",")):
                print(json.dumps(case), flush=True)
        except CkplanError as error:
            raise SystemExit(str(error)) from error
        return
    lines = arguments.results.read_text(encoding="utf-8").splitlines() if arguments.results.exists() else []
    results = [json.loads(line) for line in lines]
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    for name in [] if arguments.table else arguments.only:
        done = [key(result) for result in results if result["network"] == name]
        if len(done) < len(keys):
            words = ["--child", "--only", name, "--batch", str(arguments.batch), f"--done={','.join(done)}"]
            command = ["timeout", str(seconds), sys.executable, "-m", module, *words]
            results += _collected(name, command, arguments.results)
    print("\n".join(table([result for result in results if result["network"] in arguments.only])))


def _collected(name: str, command: list[str], path: Path) -> list[dict[str, Any]]:
    """The results that a process prints, line by line; each is appended to a file."""
    found = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            found.append(json.loads(line))
            with path.open("a", encoding="utf-8") as file:
                file.write(line)
    if child.returncode:
        print(f"{name}: ended with {child.returncode}", file=sys.stderr)
    return found
