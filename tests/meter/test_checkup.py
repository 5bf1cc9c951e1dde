"""``ckplan doctor``: what works is found by trying it, and a check that fails is a row."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ckplan.errors import EnvironmentUnavailableError
from ckplan.meter import checkup
from ckplan.meter.checkup import Bench, Missing, judged
from tests.cli.test_commands import run


def fine(bench: Bench) -> str:
    return "version 1"


def absent(bench: Bench) -> str:
    raise Missing("it is not installed", "pip install it")


def refused(bench: Bench) -> str:
    raise EnvironmentUnavailableError("no such device", "use another")


def crashing(bench: Bench) -> str:
    raise ZeroDivisionError("of\nall things")


@pytest.mark.parametrize(
    ("check", "required", "state", "found", "remedy"),
    [
        (fine, True, "ok", "version 1", ""),
        (absent, False, "missing", "it is not installed", "pip install it"),
        (absent, True, "broken", "it is not installed", "pip install it"),
        (refused, False, "missing", "no such device", "use another"),
        (crashing, False, "broken", "ZeroDivisionError: of all things", "install ckplan again in a new environment"),
    ],
)
def test_a_check_is_a_finding_whatever_happens(
    check: checkup.Check, required: bool, state: str, found: str, remedy: str, tmp_path: Path
) -> None:
    finding = judged("it", required, check, Bench(tmp_path))
    assert (finding.state, finding.found, finding.remedy) == (state, found, remedy)


def test_what_is_required_works_here() -> None:
    """Runs a step on the CPU with every meter; what is optional may be missing and says what to do."""
    result = run("doctor", "--json")
    assert result.exit_code == 0, result.stderr
    found = {finding["name"]: finding for finding in json.loads(result.stdout)["checks"]}
    assert {name for name, finding in found.items() if finding["state"] == "broken"} == set()
    assert found["CPU"]["found"].endswith("in CPUExecutionProvider")
    assert found["allocator counters"]["found"].startswith("64.0 KiB of activations")
    assert all(finding["remedy"] for finding in found.values() if finding["state"] == "missing")


def test_what_is_broken_and_required_is_exit_code_5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "CHECKS", (("one", False, crashing), ("two", True, absent), ("three", True, fine)))
    result = run("doctor")
    assert result.exit_code == 5
    assert result.stderr == "ckplan: error: two: it is not installed; pip install it\n"
    assert [line.split()[:2] for line in result.stdout.splitlines()[2:] if not line.startswith(" ")] == [
        ["one", "broken"],
        ["two", "broken"],
        ["three", "ok"],
    ]
    monkeypatch.setattr(checkup, "CHECKS", (("one", False, crashing), ("three", True, fine)))
    assert run("doctor").exit_code == 0


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    finding = judged(
        "cost cache", False, {name: check for name, _, check in checkup.CHECKS}["cost cache"], Bench(tmp_path)
    )
    assert finding.state == "missing"
    assert "cannot be written" in finding.found


def test_an_old_python_and_an_import_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {name: check for name, _, check in checkup.CHECKS}
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    assert judged("Python", True, checks["Python"], Bench(tmp_path)).remedy == "use Python 3.11 or later"
    monkeypatch.undo()
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libmissing.so: no such file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = judged("onnxruntime", True, checks["onnxruntime"], Bench(tmp_path))
    assert (finding.state, finding.found) == (
        "broken",
        "import onnxruntime fails: ImportError: libmissing.so: no such file",
    )
