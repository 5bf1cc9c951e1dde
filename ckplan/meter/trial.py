"""A training step of one layer, which tells whether a device runs models at all."""

from __future__ import annotations

from pathlib import Path

from ckplan.isolation.folders import temporary_folder


def trial_step(folder: Path) -> Path:
    """Write the step into a folder; returns its file."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.eye(64, dtype=np.float32), "weight")
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"], "product"),
        helper.make_node("Tanh", ["product"], ["y"], "tanh"),
        helper.make_node("ReduceMean", ["y"], ["loss"], "loss", keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 64])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "trial", [x], [loss], [weight])
    path = folder / "trial.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def check_starts(device: str) -> None:
    """Run the step on a device that may not be there, before work is done whose end needs it.

    Args:
        device: one of `ckplan.meter.running.device.DEVICES`; nothing is run but for ``cuda``.

    Raises:
        EnvironmentUnavailableError: CUDA does not start here.
    """
    if device != "cuda":
        return
    from ckplan.isolation.arrays import save_arrays
    from ckplan.meter.facts import read_model
    from ckplan.meter.inputs import make_inputs
    from ckplan.meter.measurement import request_for
    from ckplan.meter.running.process import run_job

    with temporary_folder() as folder:
        path = trial_step(folder)
        save_arrays(folder / "inputs", make_inputs(read_model(path)).arrays)
        request = request_for(path, folder / "inputs", device, None)
        run_job("ckplan.meter.memory.plain", {**request, "outputs": str(folder / "outputs"), "runs": 1})
