"""One case: a file damaged, a command run on it, and what must hold whatever the file is."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import onnx

from benchmarks.fuzz.forked import GIB, Outcome, run_forked
from benchmarks.fuzz.mutations import EVIL, mutant

SECONDS = 60
MEMORY = 2 * GIB

_MODEL_COMMANDS = (
    ("analyze", "M"),
    ("analyze", "M", "--json"),
    ("grad", "M", "-o", "out.onnx", "--force"),
    ("grad", "M", "-o", "out.onnx", "--training", "--optimizer", "adam", "--json"),
    ("plan", "M", "-o", "out.json", "--strategy", "sqrt"),
    ("rewrite", "M", "-o", "out.onnx", "--strategy", "sqrt"),
    ("rewrite", "M", "-o", "out.onnx", "--strategy", "memory", "--budget", "60%", "--html", "out.html"),
    ("rewrite", "M", "-o", "out.onnx", "--inference", "--json"),
    ("pareto", "M", "--strategy", "sqrt", "--strategy", "none"),
    ("explain", "M", "h", "--strategy", "sqrt"),
    ("report", "M", "-o", "out.html", "--strategy", "sqrt"),
    ("measure", "M", "--device", "cpu", "--runs", "1", "--csv", "out.csv"),
    ("verify", "chain.onnx", "M", "--device", "cpu"),
    ("compare", "M", "M", "--markdown", "out.md", "--junit", "out.xml"),
)
_COMMANDS: dict[str, Sequence[Sequence[str]]] = {
    "plan.json": (("rewrite", "chain.onnx", "-o", "out.onnx", "--plan", "M"), ("explain", "chain.onnx", "t1")),
    "baseline.json": (("compare", "M", "chain.onnx"), ("compare", "chain.onnx", "M", "--json"), ("compare", "M", "M")),
    "ckplan.toml": (("compare", "--config", "M"), ("compare", "--config", "M", "--json")),
    "instance.json": (("instance", "M"),),
    "inputs.npz": (("measure", "planned.onnx", "--inputs", "M", "--device", "cpu", "--runs", "1"),),
    "external.data": (
        ("rewrite", "external.onnx", "-o", "out.onnx", "--strategy", "sqrt"),
        ("grad", "external.onnx", "-o", "out.onnx"),
    ),
}
_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]|##\[|^\s*::error file=x", re.MULTILINE)


def run_case(number: int, seeds: Path, folder: Path) -> tuple[Sequence[str], Outcome, list[str]]:
    """Run a case.

    Args:
        number: which; the same number is the same case.
        seeds: the files of `write_seeds`.
        folder: an empty folder to work in.

    Returns:
        The command, how it ended, and which invariants it broke.
    """
    rng = random.Random(number)
    shutil.copytree(seeds, folder, dirs_exist_ok=True)
    files = sorted(file.name for file in seeds.iterdir())
    name = rng.choice([*files, *(file for file in files if file.endswith(".onnx"))])
    (folder / name).write_bytes(mutant(name, (folder / name).read_bytes(), rng))
    template = rng.choice(_COMMANDS.get(name, _MODEL_COMMANDS))
    command = [name if word == "M" else word for word in template]
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    outcome = run_forked(command, folder, seconds=SECONDS + 5)
    return command, outcome, broken(command, outcome, folder, before)


def broken(command: Sequence[str], outcome: Outcome, folder: Path, before: dict[str, bytes]) -> list[str]:
    """The invariants that a command broke."""
    found = []
    if outcome.seconds > SECONDS:
        found.append("hangs")
    elif outcome.code not in range(6):
        found.append(f"ends with {outcome.code}")
    if outcome.memory > MEMORY:
        found.append("memory")
    said = outcome.stdout + outcome.stderr
    if "Traceback" in said:
        found.append("traceback")
    if "this is a bug" in said:
        found.append("bug")
    outputs = [file for file in folder.iterdir() if file.name.startswith("out.")]
    texts = [("stdout", outcome.stdout), ("stderr", outcome.stderr)]
    texts += [(file.name, file.read_text("utf-8")) for file in outputs if file.suffix not in (".onnx", ".data")]
    found += [f"raw name in {where}" for where, text in texts if _RAW.search(text) or EVIL in text]
    if "--json" in command and outcome.code >= 0 and "hangs" not in found:
        try:
            json.loads(outcome.stdout)
        except ValueError:
            found.append("no JSON")
    for file in outputs:
        try:
            if file.suffix == ".onnx":
                onnx.load(file)
            elif file.suffix == ".json":
                json.loads(file.read_text())
        except Exception as error:  # whatever a torn file does to its reader
            found.append(f"partial {file.name}: {error}")
    left = [file.name for file in folder.iterdir() if ".ckplan-" in file.name]
    left += [file.name for file in (folder / "temporary").iterdir()] if (folder / "temporary").exists() else []
    if left:
        found.append(f"left behind: {left}")
    found += [f"changed {name}" for name, content in before.items() if (folder / name).read_bytes() != content]
    return found
