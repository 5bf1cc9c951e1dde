"""``ckplan measure``: any file, and all that can go wrong with one."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from ckplan.cli import cli
from ckplan.errors import EnvironmentUnavailableError
from ckplan.meter import measurement
from ckplan.meter.running.errors import RunFailedError
from ckplan.model.files import saving
from tests.cli.conftest import write_model

QUICK = ("--device", "cpu", "--runs", "1", "--threads", "1")


def ckplan(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["measure", *map(str, arguments)], prog_name="ckplan")


def one_node(path: Path, op_type: str, *, domain: str = "", sizes: list[int | str] | None = None) -> Path:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes or [4]) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], "node", domain=domain)], "g", value[:1], value[1:]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("test", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_an_inference_model_is_measured_as_it_is(model: Path, tmp_path: Path) -> None:
    trace, table = tmp_path / "trace.json", tmp_path / "steps.csv"
    before = model.read_bytes()
    result = ckplan(model, *QUICK, "--dim", "batch=64", "--trace", trace, "--csv", table)
    assert result.exit_code == 0, result.stderr
    assert model.read_bytes() == before
    assert max(map(len, result.stdout.splitlines())) <= 80
    for heading in ("activations, peak", "Activations over the run", "Alive at the peak", "Slowest nodes"):
        assert heading in result.stdout
    slices = [event["args"]["node"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert slices == [row["node"] for row in rows]
    assert {"matmul0", "act5"} <= set(slices)
    assert {row["phase"] for row in rows} == {"forward"}


def test_a_training_file_is_measured_beside_its_promise(model: Path, tmp_path: Path) -> None:
    step = tmp_path / "step.onnx"
    made = CliRunner().invoke(
        cli, ["rewrite", str(model), "-o", str(step), "--dim", "batch=64", "--strategy", "sqrt", "-q"]
    )
    assert made.exit_code == 0, made.stderr
    result = ckplan(step, *QUICK, "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    data = json.loads(result.stdout)
    assert data["command"] == "measure"
    assert data["threads"] == 1
    assert data["prediction"]["peak_activations"] == data["peak_activations"]
    assert max(data["inside"]["expected"]["activations"]) == data["peak_activations"]
    assert data["recomputation"]["executed"] == data["recomputation"]["in_file"] > 0
    assert any(data["counters"]["timeline"]["backward"])
    assert sum(tensor["bytes"] for tensor in data["inside"]["alive"]) == pytest.approx(
        data["peak_activations"], rel=0.05
    )


def test_inputs_of_the_users_own(model: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=np.zeros((3, 16), np.float32))
    result = ckplan(model, *QUICK, "--inputs", inputs, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["input_bytes"] == 3 * 16 * 4


def failure(result: Result, code: int) -> str:
    """The one line that a failure may write."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1
    assert lines[0].startswith("ckplan: error: ")
    return lines[0]


def test_inputs_that_are_missing_are_named(model: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, other=np.zeros(3))
    line = failure(ckplan(model, *QUICK, "--inputs", inputs), 2)
    assert "has no array for input `x`" in line


def test_threads_that_no_step_would_end_with_are_refused(model: Path) -> None:
    line = failure(ckplan(model, *QUICK[:-2], "--threads", "999999"), 2)
    assert "`--threads` is 999999, and " in line
    most = int(line.split("give at most ")[1].split(",")[0])
    assert failure(ckplan(model, *QUICK[:-2], "--threads", most + 1), 2)


@pytest.mark.parametrize("content", [None, b"not a model"])
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    line = failure(ckplan(path, *QUICK), 3)
    assert "m.onnx" in line
    assert "; " in line  # what to do about it


def test_sizes_that_the_model_does_not_work_with(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[batch,4] x, float[4,4] w) => (float[rows,4] y) { h = Flatten <axis = 0> (x) y = MatMul (h, w) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    line = failure(ckplan(tmp_path / "m.onnx", *QUICK), 3)
    assert "in the first run" in line
    assert "give the sizes that it works with (--dim" in line
    assert ckplan(tmp_path / "m.onnx", *QUICK, "--dim", "batch=1").exit_code == 0


def test_an_operator_that_onnxruntime_lacks(tmp_path: Path) -> None:
    line = failure(ckplan(one_node(tmp_path / "m.onnx", "Bar", domain="test"), *QUICK), 3)
    assert "onnxruntime failed in the loading" in line
    assert "Bar" in line


def test_out_of_memory_tells_how_much_it_was_to_be(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["huge"], "grow"),
        helper.make_node("ReduceSum", ["huge"], ["y"], "sum", keepdims=0),
    ]
    shape = numpy_helper.from_array(np.array([1 << 20, 1 << 20], np.int64), "shape")
    graph = helper.make_graph(nodes, "g", [x], [y], [shape])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    line = failure(ckplan(path, *QUICK), 5)
    assert "out of memory in the first run" in line
    assert "it was expected to take 4.0 TiB, of that 4.0 TiB of activations at 'grow'" in line


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_dies_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    # A file of Python's own that every process imports at its start: the first run ends in the signal.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if any(word.endswith('ckplan.meter.running.child') for word in sys.orig_argv):\n"
        "    import os\n"
        "    import ckplan.meter.running.session as session\n"
        f"    session.step_of = lambda *arguments: lambda: os.kill(os.getpid(), {int(number)})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = write_model(tmp_path / "m.onnx")
    line = failure(ckplan(path, *QUICK, "--dim", "batch=64"), 5)
    assert f"was killed by {number.name} in the first run with " in line
    assert "; it was expected to take " in line
    assert "8.0 KiB of activations at " in line


def test_an_output_that_cannot_be_written_is_found_out_before_the_run(model: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("precious")
    assert "exists; pass --force to overwrite it" in failure(ckplan(model, "--csv", there), 2)
    assert there.read_text() == "precious"
    assert "does not exist; create it first" in failure(ckplan(model, "--trace", tmp_path / "no" / "t.json"), 2)
    assert "is a file that this command reads" in failure(ckplan(model, "--trace", model, "--force"), 2)
    np.savez(tmp_path / "feeds.npz", x=np.zeros(1))
    told = ckplan(model, "--inputs", tmp_path / "feeds.npz", "--report", f"text={tmp_path / 'feeds.npz'}", "--force")
    assert "is a file that this command reads" in failure(told, 2)
    assert "two outputs are" in failure(ckplan(model, "--trace", tmp_path / "a", "--csv", tmp_path / "a"), 2)
    report = f"text={tmp_path / 'a'}"
    assert "two outputs are" in failure(ckplan(model, "--trace", tmp_path / "a", "--report", report, "--force"), 2)


def test_a_disk_that_fills_up_costs_the_file_and_not_the_figures(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(text: str, path: Path, *, force: bool) -> None:
        raise EnvironmentUnavailableError(f"no space left to write {path}")

    monkeypatch.setattr(saving, "write_text", full)
    result = ckplan(model, *QUICK, "--trace", tmp_path / "t.json", "--json")
    assert result.exit_code == 5
    assert json.loads(result.stdout)["peak_activations"] > 0
    assert "no space left to write" in result.stderr.splitlines()[-1]


def test_a_failed_run_leaves_no_output(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*arguments: object) -> None:
        raise RunFailedError("the process was killed by SIGKILL")

    monkeypatch.setattr(measurement, "run_job", dead)
    table = tmp_path / "steps.csv"
    failure(ckplan(model, *QUICK, "--csv", table), 5)
    assert not table.exists()


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    path = one_node(tmp_path / "m.onnx", "Exp")
    arguments = [sys.executable, "-m", "ckplan", "measure", str(path), *QUICK, "-q", "--json"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(300) == 141


# Runs the command line, and says on stdout when the first run of the model begins.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with it ignored
from ckplan.meter.running import process
from ckplan.cli import main

finish = process.Process.finish

def announced(self):
    print(self.pid, flush=True)
    finish(self)

process.Process.finish = announced
sys.argv[0] = "ckplan"
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_is_quiet_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path, table = write_model(tmp_path / "m.onnx"), tmp_path / "steps.csv"
    arguments = [sys.executable, "-c", PROGRAM, "measure", str(path), "--csv", str(table)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert (process.returncode, stdout, stderr.strip()) == (130, "", "")
    assert not table.exists()
    # onnxruntime leaves the number of its telemetry session there as soon as it is imported.
    assert {file.name for file in (tmp_path / "tmp").iterdir()} <= {".ses"}
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
