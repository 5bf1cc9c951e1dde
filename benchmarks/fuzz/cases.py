"""One case: a file damaged, a command run on it, and what must hold whatever the file is."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from safetensors.numpy import load_file

from benchmarks.fuzz.forked import GIB, Outcome, run_afresh, run_forked
from benchmarks.fuzz.mutations import EVIL, mutant
from benchmarks.fuzz.seeds import CHECKPOINT, KEPT_AS, KEPT_COSTS

SECONDS = 60
MEMORY = 2 * GIB

_LIMITED = ("--run-limit", "10")
"""What a model that never ends is given up after, rather than after the ten minutes of the default."""
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
    ("measure", "M", "--device", "cpu", *_LIMITED, "--runs", "1", "--csv", "out.csv"),
    ("measure", "M", "--device", "cpu", *_LIMITED, "--runs", "1", "--trace", "out.trace.json", "--json"),
    ("measure", "M", "--device", "cpu", *_LIMITED, "--bisect"),
    ("verify", "chain.onnx", "M", "--device", "cpu", *_LIMITED),
    ("verify", "M", "M", "--device", "cpu", *_LIMITED, "--json"),
    ("compare", "M", "M", "--markdown", "out.md", "--junit", "out.xml"),
    ("compare", "chain.onnx", "M", "--report", "github=out.txt", "--html", "out.html"),
    ("rewrite", "M", "-o", "out.onnx", "--strategy", "sqrt", "--verify", "--device", "cpu", *_LIMITED, "--verbose"),
    ("plan", "M", "-o", "out.json", "--budget", "50%", "--time-limit", "2", "--json"),
    ("grad", "M", "-o", "out.onnx", "--loss", "l2", "--unused", "zero", "--retain-grad", "*"),
)
_SNAPSHOT_COMMANDS = (("compare", "M", "chain.onnx"), ("compare", "chain.onnx", "M", "--json"), ("compare", "M", "M"))
_CONFIGURED_COMMANDS = (("compare", "--config", "M"), ("compare", "--config", "M", "--json"))
_COMMANDS: dict[str, Sequence[Sequence[str]]] = {
    "plan.json": (
        ("rewrite", "chain.onnx", "-o", "out.onnx", "--plan", "M"),
        ("explain", "chain.onnx", "t1", "--plan", "M"),
    ),
    **dict.fromkeys(("baseline.json", "analyzed.json", "rewritten.json", "measured.json"), _SNAPSHOT_COMMANDS),
    **dict.fromkeys(("ckplan.toml", "pyproject.toml"), _CONFIGURED_COMMANDS),
    **dict.fromkeys(("instance.json", "instance.txt", "graph.json"), (("instance", "M"),)),
    **dict.fromkeys(
        ("names.txt", "names.json", "names.safetensors"), (("grad", "chain.onnx", "-o", "out.onnx", "--params", "M"),)
    ),
    "costs.json": (("plan", "chain.onnx", "-o", "out.json", "--strategy", "memory", "--cost", "measured"),),
    "inputs.npz": (("measure", "planned.onnx", "--inputs", "M", "--device", "cpu", "--runs", "1"),),
    "external.data": (
        ("rewrite", "external.onnx", "-o", "out.onnx", "--strategy", "sqrt"),
        ("grad", "external.onnx", "-o", "out.onnx"),
    ),
}
LOOP = 10_000_000
"""From this number on, cases are of what a training loop reads and writes."""
_PLANNED = (("plan", "M", "-o", "out.json"), ("plan", "M", "-o", "out.json", "--strategy", "evict", "--json"))
_TRAINED = (
    (
        "train",
        "step.onnx",
        "--data",
        "data.npz",
        "--checkpoints",
        "trained",
        "--optimizer",
        "sgd",
        "--resume",
        "--epochs",
        "2",
    ),
    ("export-weights", "trained", "chain.onnx", "-o", "out.onnx"),
    ("export-weights", "trained", "chain.onnx", "-o", "out.onnx", "--json"),
)
_LOOP_COMMANDS: dict[str, Sequence[Sequence[str]]] = {
    "chain.onnx": (
        ("artifacts", "M", "-o", "parts", "--strategy", "sqrt"),
        ("artifacts", "M", "-o", "parts", "--strategy", "none", "--json"),
        ("fit", "M", "-o", "out.onnx", "--memory", "2MiB", "--strategy", "sqrt"),
        ("fit", "M", "-o", "out.onnx", "--memory", "1MiB", "--strategy", "none", "--json"),
        ("export-weights", "trained", "M", "-o", "out.onnx"),
        (
            "train",
            "step.onnx",
            "--data",
            "data.npz",
            "--eval-data",
            "data.npz",
            "--model",
            "M",
            "--checkpoints",
            "new",
            "--optimizer",
            "sgd",
        ),
    ),
    "step.onnx": (
        ("train", "M", "--data", "data.npz", "--checkpoints", "new", "--optimizer", "sgd"),
        ("train", "M", "--data", "data.npz", "--checkpoints", "new", "--optimizer", "adam", "--batch", "16", "--json"),
        _TRAINED[0],
    ),
    "data.npz": (
        ("train", "step.onnx", "--data", "M", "--checkpoints", "new", "--optimizer", "sgd"),
        (
            "train",
            "step.onnx",
            "--data",
            "data.npz",
            "--eval-data",
            "M",
            "--model",
            "chain.onnx",
            "--checkpoints",
            "new",
        ),
    ),
    CHECKPOINT: _TRAINED,
    **dict.fromkeys(("graph.json", "instance.json", "instance.txt"), _PLANNED),
}
AFRESH = 100
"""Every so manieth case is run by ``python -m ckplan``, the others in forks."""
_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]|##\[|^\s*::error file=x", re.MULTILINE)


@dataclass(frozen=True)
class Told:
    """What became of a case.

    Attributes:
        file: which file was damaged.
        command: what was run.
        afresh: whether with processes of its own.
        outcome: how it ended.
        broken: which invariants it broke.
    """

    file: str
    command: Sequence[str]
    afresh: bool
    outcome: Outcome
    broken: Sequence[str]


def run_case(number: int, seeds: Path, folder: Path) -> Told:
    """Run a case.

    Args:
        number: which; the same number is the same case.
        seeds: the files of `write_seeds`, for those from `LOOP` on of `write_loop_seeds`.
        folder: an empty folder to work in.
    """
    rng = random.Random(number)
    shutil.copytree(seeds, folder, dirs_exist_ok=True)
    files = sorted(file.name for file in seeds.iterdir() if file.is_file() and file.name != KEPT_AS)
    files = list(_LOOP_COMMANDS) if number >= LOOP else files
    name = rng.choice([*files, *(file for file in files if file.endswith(".onnx"))])
    (folder / name).write_bytes(mutant(name, (folder / name).read_bytes(), rng))
    if name == KEPT_COSTS:
        cache = folder / "cache" / "ckplan"
        cache.mkdir(parents=True)
        shutil.copy(folder / name, cache / (seeds / KEPT_AS).read_text())
    template = rng.choice((_LOOP_COMMANDS if number >= LOOP else _COMMANDS).get(name, _MODEL_COMMANDS))
    command = [name if word == "M" else word for word in template]
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    afresh = number % AFRESH == AFRESH - 1 and command[0] != "instance"
    outcome = (run_afresh if afresh else run_forked)(command, folder, seconds=SECONDS + 5)
    return Told(name, command, afresh, outcome, broken(command, outcome, folder, before))


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
    for file in (*folder.glob("parts/*.onnx"), *folder.glob("new/*.safetensors")):
        try:
            onnx.load(file) if file.suffix == ".onnx" else load_file(file)
        except Exception as error:
            found.append(f"partial {file.name}: {error}")
    left = [file.name for file in folder.rglob("*") if ".ckplan-" in file.name]
    left += [file.name for file in (folder / "temporary").iterdir()] if (folder / "temporary").exists() else []
    if left:
        found.append(f"left behind: {left}")
    found += [f"changed {name}" for name, content in before.items() if (folder / name).read_bytes() != content]
    return found
