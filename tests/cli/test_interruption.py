"""Ctrl-C while a plan is searched for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from ckplan.__main__ import main
from tests.cli.conftest import write_model

# Runs the command line, and says on stdout when the search begins: only then is an interruption one of the search.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with it ignored
from ckplan.planner import frontier
from ckplan.cli import main

improve = frontier.improve

def announced(*arguments, **options):
    print("searching", flush=True)
    return improve(*arguments, **options)

frontier.improve = announced
sys.argv[0] = "ckplan"
main()
"""


def test_no_socket_is_left_open_at_the_end() -> None:
    program = """
import atexit, gc, signal, socket
opened = lambda: [one for one in gc.get_objects() if isinstance(one, socket.socket) and one.fileno() >= 0]
atexit.register(lambda: print(len(opened())))  # runs behind what is registered later
signal.signal(signal.SIGINT, signal.default_int_handler)
from ckplan.cli.terminal.interruption import end_when_stuck
end_when_stuck()
print(len(opened()))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["2", "0"]


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_keeps_the_best_plan_so_far(tmp_path: Path) -> None:
    model, output = write_model(tmp_path / "model.onnx", layers=40), tmp_path / "out.onnx"
    strategy = "search:steps=100000000"
    arguments = ["rewrite", model, "-o", output, "--strategy", strategy, "--budget", "50%", "--dim", "batch=256"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "searching\n", process.communicate()[1]
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert "note: the search was interrupted; this is the best plan until then" in stderr
    data = json.loads(stdout[stdout.index("{") :])
    assert "the search was interrupted; this is the best plan until then" in data["notes"]
    assert data["planned"]["peak_activations"] <= data["base"]["peak_activations"] // 2
    assert data["plan"]["overhead"] > 0
    onnx.checker.check_model(output)


# A call that takes minutes outside of Python, which hears of no signal meanwhile.
STUCK = """
import hashlib, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from ckplan.cli.terminal import interruption
interruption.GRACE = 0.5
interruption.end_when_stuck()
print("computing", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_ends_a_call_that_does_not_hear_of_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "computing\n", process.communicate()[1]
    time.sleep(1)  # from the line to the call
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert stderr == "ckplan: interrupted\n"


# Says when a plan is about to be written into the graph.
WRITING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ckplan.pipeline import plan_files
from ckplan.cli import main

write = plan_files.write

def announced(*arguments, **options):
    print("writing", flush=True)
    while True:
        write(*arguments, **options)

plan_files.write = announced
sys.argv[0] = "ckplan"
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_while_the_plan_is_written_leaves_nothing(tmp_path: Path) -> None:
    model, output = write_model(tmp_path / "model.onnx"), tmp_path / "out.onnx"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING, "rewrite", str(model), "-o", str(output), "--strategy", "memory"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n", process.communicate()[1]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_ctrl_c_while_the_command_is_set_up_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ckplan.cli.main", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
