"""The other two sides of `benchmarks.step_time`: ckplan's file in stock onnxruntime, and torch eager.

    python -m benchmarks.step_worker ckplan|torch FOLDER THREADS

Reads the folder and obeys the commands that `benchmarks/training_peer.py` describes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]


def _ckplan(folder: Path, threads: int, names: Mapping[str, object], feeds: Arrays) -> tuple[Callable[[], object], ...]:
    import onnxruntime

    def session(profile: str = "") -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = profile
        file = str(folder / "training.onnx")
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    stepping = session()
    outputs = [output.name for output in stepping.get_outputs()]
    bound = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()}

    def gradients() -> Arrays:
        found = dict(zip(outputs, stepping.run_with_ort_values(outputs, bound), strict=True))
        named = names["gradients"]
        assert isinstance(named, dict)
        return {"loss": found[str(names["loss"])].numpy()} | {p: found[g].numpy() for p, g in named.items()}

    def profile() -> str:
        profiled = session(str(folder / "ckplan"))
        for _ in range(3):
            profiled.run_with_ort_values(outputs, bound)
        return str(profiled.end_profiling())

    return lambda: stepping.run_with_ort_values(outputs, bound), gradients, profile


def _torch(folder: Path, threads: int, names: Mapping[str, object], feeds: Arrays) -> tuple[Callable[[], object], ...]:
    import onnx
    import torch

    from benchmarks.torch_kernels import gpt_step, graph_step

    torch.set_num_threads(threads)
    forward = onnx.load(folder / "forward.onnx")
    parameters = names["parameters"]
    assert isinstance(parameters, list)
    if names["heads"]:
        step = gpt_step(forward, feeds, int(str(names["heads"])), parameters)
    else:
        step = graph_step(forward, feeds, str(names["loss"]), parameters)

    def gradients() -> Arrays:
        loss, found = step()
        arrays = {name: gradient.numpy() for name, gradient in zip(parameters, found, strict=True)}
        return {"loss": loss.detach().numpy()} | arrays

    def profile() -> str:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            step()
        events = [(item.key, item.self_cpu_time_total * 1e-6, item.count) for item in profiler.key_averages()]
        path = folder / "torch_profile.json"
        path.write_text(json.dumps(sorted(events, key=lambda event: -event[1])))
        return str(path)

    return step, gradients, profile


def main() -> None:
    side, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    names = json.loads((folder / "step.json").read_text())
    feeds = dict(np.load(folder / "feeds.npz"))
    step, gradients, profile = (_ckplan if side == "ckplan" else _torch)(folder, threads, names, feeds)
    print("ready", flush=True)
    for line in sys.stdin:
        match line.strip():
            case "step":
                started, used = time.perf_counter(), time.process_time()
                result = step()
                print(time.perf_counter() - started, time.process_time() - used, flush=True)
                del result
            case "gradients":
                np.savez(folder / f"{side}.npz", **gradients())  # type: ignore[arg-type]
                print("written", flush=True)
            case "profile":
                print(profile(), flush=True)


if __name__ == "__main__":
    main()
