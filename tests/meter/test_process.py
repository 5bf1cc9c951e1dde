"""Failures of the processes that run models become typed errors with the right exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ckplan.errors import CkplanError, EnvironmentUnavailableError, ModelError
from ckplan.isolation.arrays import save_arrays
from ckplan.meter import RunFailedError, measure
from ckplan.meter.measurement import request_for
from ckplan.meter.running.device import CPU, CUDA, device_that_ran, wanted_providers
from ckplan.meter.running.process import run_job, started
from ckplan.operators.sessions import clean
from tests.meter.models import floats, save


@pytest.fixture
def negation(tmp_path: Path) -> Path:
    return save(tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], [floats("x", 4)], [floats("y", 4)])


def failure(path: Path, **options: str) -> CkplanError:
    with pytest.raises(CkplanError) as error:
        measure(path, runs=1, threads=1, heap=False, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert "Traceback" not in str(error.value)
    return error.value


def test_out_of_memory_names_the_node_and_the_stage(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([1 << 20, 1 << 20], np.int64), "shape")
    node = helper.make_node("Expand", ["x", "shape"], ["y"], name="grow")
    path = save(tmp_path / "m.onnx", [node], [floats("x", 1)], [floats("y", None, None)], [shape])
    error = failure(path, device="cpu")
    assert isinstance(error, RunFailedError)
    assert error.exit_code == 5
    assert "out of memory" in error.message
    assert "Expand 'grow'" in error.message
    assert error.stage == "the first run"
    assert error.learnt["resident"] > 0
    assert error.stderr


@pytest.mark.parametrize(
    ("operator", "domain", "element"),
    [("Bar", "test", TensorProto.FLOAT), ("Tanh", "", TensorProto.BFLOAT16)],
    ids=["unknown operator", "no kernel for the type"],
)
def test_what_onnxruntime_cannot_run_is_an_error_of_the_model(
    tmp_path: Path, operator: str, domain: str, element: int
) -> None:
    x = helper.make_tensor_value_info("x", element, [4])
    y = helper.make_tensor_value_info("y", element, [4])
    error = failure(save(tmp_path / "m.onnx", [helper.make_node(operator, ["x"], ["y"], domain=domain)], [x], [y]))
    assert isinstance(error, ModelError)
    assert error.exit_code == 3
    assert operator in error.message


def test_a_failing_node_is_named(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [helper.make_node("MatMul", ["a", "b"], ["y"], name="product")],
        [floats("a", 4, "k"), floats("b", "l", 4)],
        [floats("y", 4, 4)],
    )
    inputs = tmp_path / "in.npz"
    np.savez(inputs, a=np.ones((4, 3), np.float32), b=np.ones((2, 4), np.float32))
    with pytest.raises(ModelError, match=r"MatMul 'product': .*dimension mismatch"):
        measure(path, inputs=inputs, runs=1, heap=False)


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_files_that_are_no_models(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    assert failure(path).exit_code == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_dies_is_reported_with_what_it_had_told(
    negation: Path, tmp_path: Path, number: signal.Signals
) -> None:
    save_arrays(tmp_path / "inputs", {"x": np.ones(4, np.float32)})
    with started("ckplan.meter.seconds.timing", request_for(negation, tmp_path / "inputs", "cpu", 1)) as process:
        assert process.ask("step") > 0
        os.kill(process.pid, number)
        with pytest.raises(RunFailedError, match=f"killed by {number.name} in a timed run") as error:
            process.ask("step")
    assert error.value.exit_code == 5
    assert error.value.learnt["resident"] > 0
    assert error.value.stage == "a timed run"


def test_no_process_outlives_its_block(negation: Path, tmp_path: Path) -> None:
    save_arrays(tmp_path / "inputs", {"x": np.ones(4, np.float32)})
    with started("ckplan.meter.seconds.timing", request_for(negation, tmp_path / "inputs", "cpu", 1)) as process:
        pid = process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_cuda_that_is_not_there_ends_with_exit_code_5(negation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    error = failure(negation, device="cuda")
    assert isinstance(error, EnvironmentUnavailableError)
    assert error.exit_code == 5
    assert "--device cpu" in error.hint


def test_auto_falls_back_to_the_cpu_and_says_so(
    negation: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = measure(negation, device="auto", runs=1, threads=1)
    assert found.device == "cpu"
    assert found.providers == (CPU,)
    assert capfd.readouterr() == ("", "")  # onnxruntime's complaints about missing libraries stay inside


def test_the_session_tells_the_device() -> None:
    assert device_that_ran([CUDA, CPU], "auto") == "cuda"
    assert device_that_ran([CUDA, CPU], "cuda") == "cuda"
    assert device_that_ran([CPU], "auto") == "cpu"
    with pytest.raises(EnvironmentUnavailableError):
        device_that_ran([CPU], "cuda")


def test_cuda_libraries_are_loaded_before_a_session_that_wants_them() -> None:
    loaded = []
    ort = SimpleNamespace(get_available_providers=lambda: [CUDA, CPU], preload_dlls=lambda: loaded.append(1))
    assert wanted_providers(ort, "cpu") == [CPU]
    assert not loaded
    assert wanted_providers(ort, "auto") == [CUDA, CPU]
    assert loaded == [1]
    plain = SimpleNamespace(get_available_providers=lambda: [CPU])
    assert wanted_providers(plain, "auto") == [CPU]
    with pytest.raises(EnvironmentUnavailableError, match="no CUDA support"):
        wanted_providers(plain, "cuda")


def test_an_unknown_job_is_reported_not_raised(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="No module named 'nonsense'"):
        run_job("nonsense", {"path": "m.onnx"})


def test_messages_lose_codes_and_source_paths_and_the_path_of_a_copy() -> None:
    text = (
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Expand node. Name:'grow' Status "
        "Message: /src/onnxruntime/core/framework/bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal("
        "size_t, bool, onnxruntime::Stream*) Failed to allocate memory\n"
    )
    assert clean(text) == "Expand 'grow': Failed to allocate memory"
    text = (
        "[ONNXRuntimeError] : 1 : FAIL : Load model from /tmp/a folder/file.onnx failed:/src/onnxruntime/core/graph/"
        "model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::PathString&) "
        "Unsupported model IR version: 14, max supported IR version: 13"
    )
    assert clean(text) == "Unsupported model IR version: 14, max supported IR version: 13"
    text = (
        "[ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:/src/onnxruntime/core/graph/model_load.h:56 "
        "void onnxruntime::ValidateOpset(const int&) ONNX Runtime only *guarantees* support for models stamped with "
        "official released onnx opset versions. Opset 28 is under development and support for this is limited. Current "
        "official support for domain ai.onnx is till opset 26.\n"
    )
    assert clean(text) == "it knows opsets of ai.onnx up to 26 only"


def test_the_callers_process_never_loads_onnxruntime(negation: Path) -> None:
    code = (
        "import sys; from ckplan.meter import measure; "
        f"print(measure({str(negation)!r}, device='cpu', runs=1, heap=False).device, 'onnxruntime' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.split() == ["cpu", "False"]
    assert done.stderr == ""


@pytest.mark.parametrize("job", ["memory.plain", "memory.counters", "memory.heap", "seconds.timing"])
def test_what_runs_a_model_imports_nothing_that_reads_models(job: str) -> None:
    code = f"import sys, ckplan.meter.running.child, ckplan.meter.{job}; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()

    assert f"ckplan.meter.{job}" in told
    assert not {"onnx", "onnx_ir", "sympy"} & set(told)
