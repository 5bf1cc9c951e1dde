"""A bounded share of the fuzzer: every known damage, and some mutants. All of it: ``python -m benchmarks.fuzz``."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and limits memory as Linux does")


def found(*options: str) -> dict[str, Any]:
    # In a process of its own: it forks, which one that has run onnxruntime must not do.
    command = [sys.executable, "-m", "benchmarks.fuzz", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode in (0, 1), done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_damaged_models_are_refused_with_a_reason() -> None:
    told = found("--damaged")
    assert told["broken"] == []
    assert told["cases"] > 100
    assert told["codes"]["3"] > 80


def test_mutants_break_nothing() -> None:
    told = found("--cases", "80", "--first", "1000000")
    assert told["broken"] == []
    assert told["cases"] == 80
    assert told["codes"]["3"] > 30


def test_a_killed_writer_leaves_the_old_model_or_the_new_one() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz.kills", "--kills", "20"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout)
    assert told["torn"] == []
    assert told["found"].get("old", 0) + told["found"].get("new", 0) == 20
    assert len(told["files"]) == 2  # the model and its data
