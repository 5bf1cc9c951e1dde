"""The process in which onnxruntime and onnx's converter open foreign graphs.

``python -m ckplan.isolation.evaluator PARENT`` starts it.

A request is a line of JSON with ``job`` and ``memory``; the answer is one with ``result`` or ``error``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ckplan.errors import EnvironmentUnavailableError
from ckplan.isolation.arrays import Array, dtype_named, is_exotic, load_arrays, save_arrays
from ckplan.isolation.folders import take_place_of_parent
from ckplan.isolation.lifetime import end_with, limit_memory
from ckplan.isolation.open_files import make_room
from ckplan.operators.sessions import open_session, use_only


def optimise(request: Mapping[str, Any]) -> None:
    """Write a model as onnxruntime's optimisers leave it for given providers, at some of their levels."""
    for level, target in request["targets"].items():
        _optimise(request, level, target)


def _optimise(request: Mapping[str, Any], level: str, target: str) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    # Packed copies of weights are not in the graph, and take time and memory to make.
    options.add_session_config_entry("session.disable_prepacking", "1")
    # Nor is the memory that a run would take, and planning it compares every tensor with all dead ones: in a planned
    # file, where no two shapes are equal, that takes three quarters of the time.
    options.enable_mem_reuse = False
    # Nothing is run but small constants: further threads would be started, and wait.
    options.intra_op_num_threads = 1
    if request.get("folded") is not None:
        options.add_session_config_entry(
            "optimization.constant_folding_max_output_size_in_bytes", str(request["folded"])
        )
    options.optimized_model_filepath = target
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    open_session(request["source"], options, request["providers"], without=request["without"])


def run(request: Mapping[str, Any]) -> dict[str, str]:
    """Run a model once as it is written, without optimisations; returns the types of its outputs."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    if request["root"]:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", request["root"])
    session = open_session(Path(request["source"]).read_bytes(), options)
    wanted = {value.name for value in session.get_inputs()}
    make_room(len(request["elsewhere"]))
    given = {**load_arrays(Path(request["inputs"]), mapped=True), **dict(map(_elsewhere, request["elsewhere"]))}
    feeds = {name: array for name, array in given.items() if name in wanted}
    names = request["outputs"]
    if any(is_exotic(array.dtype) for array in feeds.values()):
        values = {name: _ort_value(ort, array, request["types"].get(name)) for name, array in feeds.items()}
        results = [value.numpy() for value in session.run_with_ort_values(names, values)]
    else:
        results = session.run(names, {name: _plain(array) for name, array in feeds.items()})
    save_arrays(Path(request["results"]), zip(names, map(np.asarray, results), strict=True))
    return {output.name: output.type for output in session.get_outputs()}


def _elsewhere(entry: Mapping[str, Any]) -> tuple[str, Array]:
    """A weight that lies in a data file, or that is one number everywhere."""
    if "file" not in entry:
        return entry["name"], np.full(entry["shape"], entry["fill"], dtype_named(entry["dtype"]))
    shape, dtype = tuple(entry["shape"]), dtype_named(entry["dtype"])
    mapped = np.memmap(entry["file"], dtype=dtype, mode="r", offset=entry["offset"], shape=shape)
    return entry["name"], np.asarray(mapped)


def _plain(array: Array) -> Array:
    return array.astype(object) if array.dtype.kind == "U" else np.ascontiguousarray(array)


def _ort_value(ort: Any, array: Array, element: int | None) -> Any:
    if is_exotic(array.dtype):
        raw = np.ascontiguousarray(array).view(np.dtype(f"u{array.dtype.itemsize}"))
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, element)
    return ort.OrtValue.ortvalue_from_numpy(_plain(array))


def judge(request: Mapping[str, Any]) -> str:
    """Why onnx's checker or onnxruntime refuses a file; empty if both accept it."""
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    for accept in (
        lambda: onnx.checker.check_model(request["source"], full_check=True),
        lambda: open_session(request["source"], options),
    ):
        try:
            accept()
        except MemoryError:  # says nothing of the file
            raise
        except Exception as error:  # of classes of their own, all of which say the same
            return str(error).strip() or type(error).__name__
    return ""


def convert(request: Mapping[str, Any]) -> None:
    """Write a model with its functions inlined, or in the form of another operator set, or both."""
    import onnx.inliner
    import onnx.version_converter

    proto = onnx.load(request["source"], load_external_data=False)
    if request["inline"]:
        proto = onnx.inliner.inline_local_functions(proto, convert_version=True)
    if request["version"] is not None:
        proto = onnx.version_converter.convert_version(proto, request["version"])
    onnx.save(proto, request["target"])


_JOBS = {"convert": convert, "judge": judge, "optimise": optimise, "run": run}


def main(parent: int) -> None:
    """Answer requests until there are no more."""
    end_with(parent)
    take_place_of_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    # onnxruntime prints: keep the pipe to the parent away from it.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            limit_memory(request["memory"])
            use_only(request["custom_ops"])
            answer: dict[str, Any] = {"result": _JOBS[request["job"]](request)}
        except ImportError as error:
            answer = {"missing": str(error)}
        except EnvironmentUnavailableError as error:
            answer = {"error": error.message, "hint": error.hint}
        except MemoryError:
            answer = {"error": "out of memory"}
        except Exception as error:  # onnxruntime's exceptions have no base class of their own
            answer = {"error": str(error).strip() or type(error).__name__}
        print(json.dumps(answer), file=replies, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
