"""Whatever ends a command, it leaves no process, no temporary folder and no half of a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.conftest import write_model

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")


def endless_model(path: Path) -> Path:
    """A model whose run takes hours: a Loop of 2^62 iterations."""
    bool_, int_, float_ = TensorProto.BOOL, TensorProto.INT64, TensorProto.FLOAT
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Neg", ["state"], ["next"])],
        "body",
        [value("i", int_, []), value("go", bool_, []), value("state", float_, [4])],
        [value("go_on", bool_, []), value("next", float_, [4])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "first", "x"], ["y"], "forever", body=body)],
        "g",
        [value("x", float_, [4])],
        [value("y", float_, [4])],
        [numpy_helper.from_array(np.array(1 << 62), "trips"), numpy_helper.from_array(np.array(True), "first")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def running(tmp_path: Path) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """A command whose child runs a model that never ends, and the child."""
    model = endless_model(tmp_path / "endless.onnx")
    process = subprocess.Popen(
        [sys.executable, "-m", "ckplan", "measure", str(model), "--device", "cpu"],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    place = tmp_path / "temporary"
    place.mkdir()
    parent = psutil.Process(process.pid)
    for _ in range(1200):
        told = "".join(file.read_text() for file in place.glob("ckplan-*/progress.jsonl"))
        if "first run" in told and parent.children():
            return process, parent.children()
        assert process.poll() is None
        time.sleep(0.05)
    raise AssertionError("the model does not run")


def all_gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=60)[1]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_signals_leave_no_child_and_no_folder(tmp_path: Path, name: str) -> None:
    number = signal.Signals[name]
    before = signal.signal(number, signal.SIG_DFL)  # a shell may have started the tests with it ignored
    try:
        process, children = running(tmp_path)
    finally:
        signal.signal(number, before)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert all_gone(children)
    assert not list((tmp_path / "temporary").iterdir())


def test_a_kill_leaves_no_child_and_its_folders_go_with_the_next_command(tmp_path: Path) -> None:
    process, children = running(tmp_path)
    process.kill()
    process.wait()
    assert all_gone(children)
    assert list((tmp_path / "temporary").iterdir())
    model = write_model(tmp_path / "model.onnx")
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-m", "ckplan", "analyze", str(model)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert not list((tmp_path / "temporary").iterdir())


def test_nohup_is_respected(tmp_path: Path) -> None:
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "from ckplan.isolation.lifetime import end_cleanly; end_cleanly(); "
        "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, "
        "signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"]


SWALLOWED = """
import os, signal, time
from ckplan.cli import cli

@cli.command("odd")
def odd():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except BaseException as error:
        raise ImportError("a library failed to import") from error

signal.signal(signal.SIGTERM, signal.SIG_DFL)
cli.main(["odd"], prog_name="ckplan")
"""


def test_what_a_library_makes_of_a_signal_is_not_taken_for_a_failure() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == ""


IMPORTING = """
import importlib, signal, sys
from ckplan.cli import cli

@cli.command("odd")
def odd():
    importlib.import_module("slow")
    while True:
        pass

signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.main(["odd"], prog_name="ckplan")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_import_is_not_interrupted(tmp_path: Path, name: str) -> None:
    (tmp_path / "slow.py").write_text(
        f"import os, signal, time\nos.kill(os.getpid(), signal.{name})\n"
        "time.sleep(0.3)\nprint('imported', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", IMPORTING], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "imported\n"
    assert done.returncode == 128 + signal.Signals[name]
    assert done.stderr.strip() == ""  # click ends the line that ^C stands in
