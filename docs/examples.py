"""The examples in README.md and in this folder: found, run, and held against what the page shows.

A page is run from its top to its end in one folder that holds the sample models. Blocks of `sh` and `console` are given
to bash, blocks of `python` to Python; of a `diff` the program after the change is. A comment before a block says what
else is to be done with it:

    <!-- not run: REASON -->    it is only read
    <!-- file: NAME -->         it is written to a file that a later block runs
    <!-- needs: MODULE, ... --> it is run where the modules are installed

Every command has to succeed. What stands after a ``$`` line is its output; a line ``...`` stands for any lines. Sizes
may differ by 5 %, shares by 3 points or 5 %, counts by 5 %, and times by anything.

``python -m docs.examples PAGE...`` runs pages and pastes what was printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
RUN = ("sh", "console", "python", "diff")
"""Languages of blocks that are run."""
LIMIT = 600
"""Seconds that one command may take."""

_BLOCK = re.compile(r"(?:^<!-- ([a-z ]+): ([^\n]*?) -->\n\n?)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?)(?: ?(B|KiB|MiB|GiB|%|ms|us|s)(?![a-zA-Z0-9]))?")
_DRAWN = re.compile(r"[▁▂▃▄▅▆▇█─┄┤│▲●░▒▓╭╮╰╯┼ ]{2,}|─+")
_SCALE = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_ELSEWHERE = re.compile(r"resident|step time|time [-+]")
"""Lines whose figures are those of a machine."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: the word after the fence.
        text: what is in it.
        what: the word of the comment before it, or empty.
        detail: the rest of that comment.
        start: where its text begins in the page.
    """

    language: str
    text: str
    what: str
    detail: str
    start: int

    @property
    def is_run(self) -> bool:
        """Whether it is more than text."""
        return self.what == "file" or (self.language in RUN and self.what != "not run")

    @property
    def program(self) -> str:
        """The Python program that it shows."""
        if self.language != "diff":
            return self.text
        return "".join(line[1:] for line in self.text.splitlines(keepends=True) if not line.startswith("-"))

    def missing(self) -> list[str]:
        """The modules that it needs and that are not installed."""
        needed = self.detail.split(", ") if self.what == "needs" else []
        return [module for module in needed if find_spec(module) is None]


@dataclass(frozen=True)
class Command:
    """A command of a console block, and what is shown of its output."""

    line: str
    shown: tuple[str, ...]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [
        Block(match[3], match[4], match[1] or "", match[2] or "", match.start(4)) for match in _BLOCK.finditer(page)
    ]


def commands(block: Block) -> list[Command]:
    """The commands of a `console` block."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        else:
            found[-1][1].append(line)
    return [Command(line, tuple(shown)) for line, shown in found]


def prepare(folder: Path) -> dict[str, str]:
    """Put the sample models into a folder; returns the environment in which its commands find ckplan and Python."""
    for name in ("sample_models", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    tools = folder / ".tools"
    tools.mkdir()
    for name, words in (("ckplan", "-m ckplan"), ("python", "")):
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n', encoding="utf-8")
        tool.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "CKPLAN_"))}
    paths = os.pathsep.join([str(ROOT), *sys.path[1:]])
    changed = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths, "COLUMNS": "80"}
    return {**kept, **changed, "NO_COLOR": "1", "XDG_CACHE_HOME": str(folder / ".cache")}


def run(words: Sequence[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a program; returns its exit code and what it wrote, to stdout and stderr as it came."""
    done = subprocess.run(
        words, cwd=folder, env=environment, text=True, encoding="utf-8", timeout=LIMIT, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def bash(script: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run lines of a shell; the first that fails ends them."""
    return run(["bash", "-euo", "pipefail", "-c", script], folder, environment)


def run_page(page: str, folder: Path) -> Iterator[tuple[Block, Command | None, int, str]]:
    """Run a page's blocks in order in an empty folder: each with its command, exit code and output."""
    environment = prepare(folder)
    for block in blocks(page):
        if not block.is_run or block.missing():
            continue
        if block.what == "file":
            (folder / block.detail).write_text(block.text, encoding="utf-8")
            continue
        if block.language in ("python", "diff"):
            yield block, None, *run([sys.executable, "-c", block.program], folder, environment)
        elif block.language == "sh":
            yield block, None, *bash(block.text, folder, environment)
        else:
            for command in commands(block):
                yield block, command, *bash(command.line, folder, environment)


def difference(shown: Sequence[str], printed: Sequence[str]) -> str:
    """The first line shown that is not among those printed, in order; empty if there is none."""
    place, skipping = 0, False
    for line in shown:
        if line.strip() == "...":
            skipping = True
            continue
        there = range(place, len(printed)) if skipping else range(place, min(place + 1, len(printed)))
        found = next((index for index in there if alike(line, printed[index])), None)
        if found is None:
            return f"shown: {line}\nprinted: {printed[place] if place < len(printed) else 'nothing more'}"
        place, skipping = found + 1, False
    return "" if skipping or place == len(printed) else f"not shown: {printed[place]}"


def alike(shown: str, printed: str) -> bool:
    """Whether two lines say the same, but for what may differ from machine to machine."""
    if _words(shown) != _words(printed):
        return False
    pairs = list(zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True))
    timed = any(unit in ("ms", "us", "s") for pair in pairs for _, unit in pair) or _ELSEWHERE.search(shown)
    return bool(timed) or all(_near(*pair) for pair in pairs)


def _words(line: str) -> list[str]:
    """A line without its numbers and what is drawn of them."""
    return _DRAWN.sub(" ", _NUMBER.sub(" # ", line)).split()


def _near(shown: tuple[str, str], printed: tuple[str, str]) -> bool:
    (first, unit), (second, other) = shown, printed
    one, two = float(first.replace(",", "")), float(second.replace(",", ""))
    if (unit == "%") != (other == "%") or (unit in _SCALE) != (other in _SCALE):
        return False
    if unit == "%":
        return abs(one - two) <= max(3, 0.05 * abs(one))
    one, two = one * _SCALE.get(unit, 1), two * _SCALE.get(other, 1)
    return abs(one - two) <= max(0.05 * max(abs(one), abs(two)), 2 if unit not in _SCALE else 512)


def refreshed(page: str) -> str:
    """The page with what its console blocks print now; a block that leaves out lines keeps its choice of lines."""
    with tempfile.TemporaryDirectory() as name:
        results = list(run_page(page, Path(name)))
    texts: dict[Block, list[str]] = {}
    for block, command, code, output in results:
        if command is None:
            if code:
                sys.stderr.write(f"{block.text}exit code {code}\n{output}\n")
            continue
        if code:
            sys.stderr.write(f"$ {command.line}\nexit code {code}\n{output}\n")
        lines = [f"$ {command.line}", *_chosen(command, output.splitlines())]
        texts.setdefault(block, []).extend(lines)
    for block, lines in sorted(texts.items(), key=lambda entry: -entry[0].start):
        page = page[: block.start] + "\n".join(lines) + "\n" + page[block.start + len(block.text) :]
    return page


def _chosen(command: Command, printed: Sequence[str]) -> list[str]:
    """Of the lines printed those that stand for the ones shown, or all of them."""
    chosen: list[str] = []
    place = 0
    if "..." not in [line.strip() for line in command.shown]:
        return [*printed]
    for line in command.shown:
        if line.strip() == "...":
            chosen.append(line)
            continue
        found = next((index for index in range(place, len(printed)) if _words(line) == _words(printed[index])), None)
        if found is None:
            sys.stderr.write(f"$ {command.line}\nno longer printed: {line}\n" + "\n".join(printed) + "\n")
            return [*command.shown]
        chosen.append(printed[found])
        place = found + 1
    return chosen


if __name__ == "__main__":
    for given in sys.argv[1:]:
        file = Path(given)
        file.write_text(refreshed(file.read_text(encoding="utf-8")), encoding="utf-8")
