"""One side of `benchmarks.step_time` and `benchmarks.frontier`: a training step in onnxruntime-training.

    python benchmarks/training_peer.py FOLDER THREADS

onnxruntime-training-cpu 1.19.2 was the last of its line and wants older packages than ckplan, hence an interpreter of
its own; `benchmarks/step_time.py` says how to make its virtual environment. This file imports nothing of ckplan.

The folder holds `forward.onnx` (loss included), `feeds.npz` and `step.json` with the names of the loss and of the
parameters. The gradient graph is built as `onnxruntime.training.artifacts` does, without the nodes that add up
gradients of several steps, which would cost it a copy. Commands on stdin: `step` runs one step and answers with its
seconds by the clock and of processor time, `gradients` writes `peer.npz`, `profile` answers with the name of a profile.
"""

from __future__ import annotations

import json
import sys
import time
import types
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

# The package imports torch for an optimizer that is not used here.
sys.modules.setdefault("onnxruntime.training.optim", types.ModuleType("onnxruntime.training.optim"))


def gradient_graph(path: Path, loss: str, parameters: list[str]) -> onnx.ModelProto:
    """Return the training graph: inputs and parameters in; the loss and `<parameter>_grad` out."""
    from onnxruntime.training.onnxblock import _training_graph_utils

    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    graph: onnx.ModelProto = _training_graph_utils.build_gradient_graph(model, set(parameters), set(), loss)[0]
    return graph


def session_of(model: onnx.ModelProto, threads: int, profile: str = "") -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main() -> None:
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    names = json.loads((folder / "step.json").read_text())
    forward = onnx.load(folder / "forward.onnx")
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in forward.graph.initializer}
    feeds = dict(np.load(folder / "feeds.npz"))
    feeds.update((name, weights[name]) for name in names["parameters"])
    model = gradient_graph(folder / "forward.onnx", names["loss"], names["parameters"])
    session = session_of(model, threads)
    outputs = [output.name for output in session.get_outputs()]
    # What is fed stays the same, so that it is handed over once.
    bound = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()}
    known = {value.name for value in session.get_inputs()}
    bound = {name: value for name, value in bound.items() if name in known}
    print("ready", flush=True)
    for line in sys.stdin:
        command = line.strip()
        if command == "step":
            started, used = time.perf_counter(), time.process_time()
            result = session.run_with_ort_values(outputs, bound)
            print(time.perf_counter() - started, time.process_time() - used, flush=True)
            del result
        elif command == "gradients":
            found = dict(zip(outputs, session.run_with_ort_values(outputs, bound), strict=True))
            arrays = {name: found[f"{name}_grad"].numpy() for name in names["parameters"]}
            np.savez(folder / "peer.npz", loss=found[names["loss"]].numpy(), **arrays)
            print("written", flush=True)
        elif command == "profile":
            profiled = session_of(model, threads, str(folder / "peer"))
            for _ in range(3):
                profiled.run_with_ort_values(outputs, bound)
            print(profiled.end_profiling(), flush=True)


if __name__ == "__main__":
    main()
