"""Graphs that ask for terabytes or never end cost a message, and not the process that asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from ckplan.isolation import evaluate as evaluation
from ckplan.isolation.evaluate import EvaluationError, evaluate
from ckplan.model.inference.execute import execute
from ckplan.runtime.executing.executed import executed_model
from tests.meter.models import endless_loop, floats

MIB = 1 << 20


def model_of(nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto], inputs: int = 1) -> ir.Model:
    values = [floats("x", 4)][:inputs]
    graph = helper.make_graph(nodes, "g", values, [floats("y", None)], initializers)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def negation() -> ir.Model:
    return model_of([helper.make_node("Neg", ["x"], ["y"])], [])


def bomb() -> ir.Model:
    shape = numpy_helper.from_array(np.array([1 << 20, 1 << 20], np.int64), "shape")
    return model_of([helper.make_node("Expand", ["x1", "shape"], ["y"], "grow")], [shape, floats_of("x1")], inputs=0)


def floats_of(name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(1, np.float32), name)


def endless() -> ir.Model:
    node, trips = endless_loop()
    return model_of([node], trips)


X = {"x": np.ones(4, np.float32)}


def test_memory_is_limited_and_the_next_request_is_served() -> None:
    with pytest.raises(EvaluationError, match=r"alloc|memory|ends onnxruntime"):
        execute(bomb(), {}, ["y"])
    assert np.array_equal(execute(negation(), X, ["y"])[0][0], -X["x"])


def test_folding_constants_is_limited_too() -> None:
    # onnxruntime leaves a node alone that it has no memory to fold.
    assert [node.op_type for node in executed_model(bomb()).graph] == ["Expand"]
    assert [node.op_type for node in executed_model(negation()).graph] == ["Neg"]


def test_time_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckplan.model.inference.execute.SECONDS", 3.0)
    with pytest.raises(EvaluationError, match="it takes more than 3 s"):
        execute(endless(), X, ["y"])
    assert np.array_equal(execute(negation(), X, ["y"])[0][0], -X["x"])


@pytest.mark.parametrize(
    ("work", "is_late"),
    [("time.sleep(1.5)", False), ("while True: pass", True), ("time.sleep(1000)", True)],
    ids=["waits", "computes without end", "waits without end"],
)
def test_only_processor_time_counts_where_a_process_waits_for_its_turn(work: str, is_late: bool) -> None:
    program = f"import sys, time\nsys.stdin.readline()\n{work}\nprint('[12]', flush=True)"
    asked = object.__new__(evaluation._Evaluator)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    asked.popen = subprocess.Popen([sys.executable, "-c", program], **pipes)
    try:
        if is_late:
            with pytest.raises(EvaluationError, match="it takes more than 0 s"):
                asked.ask({}, 0.4)
        else:
            assert asked.ask({}, 0.4) == [12]
    finally:
        asked.end()


def test_an_interruption_while_the_clock_is_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate("nonsense", seconds=600)
    left = [thread for thread in threading.enumerate() if isinstance(thread, Interrupted)]
    for thread in left:
        thread.join(10)
    assert not any(thread.is_alive() for thread in left)


def test_one_process_serves_many_requests_and_may_die() -> None:
    execute(negation(), X, ["y"])
    running = evaluation._running
    assert running is not None
    execute(negation(), X, ["y"])
    assert evaluation._running is running
    os.kill(running.popen.pid, signal.SIGKILL)
    running.popen.wait()
    execute(negation(), X, ["y"])
    assert evaluation._running is not running


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_it_may_die_at_work(number: signal.Signals) -> None:
    execute(negation(), X, ["y"])
    done = threading.Event()

    def kill() -> None:  # until it is hit at work: killed before, it is started anew
        while not done.wait(0.5):
            if (running := evaluation._running) is not None and running.popen.poll() is None:
                os.kill(running.popen.pid, number)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(EvaluationError, match="it ends the process that opens it"):
            execute(endless(), X, ["y"])
    finally:
        done.set()
        killer.join()
    assert np.array_equal(execute(negation(), X, ["y"])[0][0], -X["x"])


def test_types_that_numpy_does_not_know_and_text_come_through() -> None:
    for element in (TensorProto.BFLOAT16, TensorProto.STRING):
        value = [helper.make_tensor_value_info(name, element, [2]) for name in "xy"]
        nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Shape", ["x"], ["s"])]
        shape = helper.make_tensor_value_info("s", TensorProto.INT64, [1])
        graph = helper.make_graph(nodes, "g", value[:1], [*value[1:], shape])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        model = ir.from_proto(proto)
        dtype = ir.DataType(element)
        array = np.array(["a", "b"], object) if dtype == ir.DataType.STRING else np.ones(2).astype(dtype.numpy())
        (got,), types = execute(model, {"x": array}, ["s"])
        assert got.tolist() == [2]
        assert types == {"y": dtype, "s": ir.DataType.INT64}


def test_weights_are_found_where_they_lie(tmp_path: Path) -> None:
    weight = np.arange(4096, dtype=np.float32)
    nodes = [helper.make_node("Add", ["w", "v"], ["s"]), helper.make_node("Mul", ["s", "x"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [floats("x", 4096)], [floats("y", 4096)], [numpy_helper.from_array(weight, "w")]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    model = ir.load(tmp_path / "m.onnx")
    filled = ir.Tensor(np.broadcast_to(np.float32(2), (4096,)), name="v")
    model.graph.register_initializer(
        ir.Value(name="v", shape=ir.Shape([4096]), type=ir.TensorType(ir.DataType.FLOAT), const_value=filled)
    )
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.name == "v":
                node.replace_input_with(index, model.graph.initializers["v"])
    (got,), _ = execute(model, {"x": np.ones(4096, np.float32)}, ["y"])
    assert np.array_equal(got, weight + 2)


def test_an_unknown_job_is_an_error() -> None:
    with pytest.raises(EvaluationError):
        evaluate("nonsense")


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_the_process_ends_with_the_one_that_started_it() -> None:
    code = (
        "import time; from ckplan.isolation import evaluate as e; e._ready(); "
        "print(e._running.popen.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert gone(child)


def gone(pid: int) -> bool:
    """Whether a process ends within a minute."""
    for _ in range(600):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False
