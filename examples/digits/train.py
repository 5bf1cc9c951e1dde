r"""A training loop in plain onnxruntime. Nothing here knows the network or the optimizer; the file does.

Make the file and train::

    ckplan rewrite examples/digits/digits.onnx -o step.onnx --dim batch=60 --loss cross-entropy \
        --training --optimizer adam
    python -m examples.digits.train step.onnx
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from examples.digits.data import Batch, batches, digits

FORWARD = Path(__file__).with_name("digits.onnx")
NUMPY = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


def train(step: Path, data: Iterable[Batch], learning_rate: float) -> tuple[list[float], dict[str, np.ndarray]]:
    """Train for one step per batch; returns the losses, and parameters and state by name."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # onnxruntime warns that parameters are no constants, which is the point
    session = onnxruntime.InferenceSession(step, options, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    updates = json.loads(about["pkg.ckplan.updates"])  # output with the new value, by input that takes it
    loss, rate = about["pkg.ckplan.loss"], about["pkg.ckplan.learning_rate"]

    # Parameters and statistics begin with their values in the file, the optimizer's states with zero. A new value is
    # written over the old one: the file says that it may be (`pkg.ckplan.in_place`).
    kept = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(step).graph.initializer}
    shapes = {value.name: (value.shape, NUMPY[value.type]) for value in session.get_inputs()}
    values = {name: np.array(kept[name]) if name in kept else np.zeros(*shapes[name]) for name in updates}
    shared = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in values.items()}  # no copies
    speed = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(learning_rate, np.float32))
    losses = []
    for images, labels in data:
        binding = session.io_binding()
        binding.bind_cpu_input("image", images)
        binding.bind_cpu_input("labels", labels)
        binding.bind_ortvalue_input(rate, speed)
        for name, value in shared.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(updates[name], value)
        binding.bind_output(loss)
        session.run_with_iobinding(binding)
        losses.append(float(binding.get_outputs()[-1].numpy()))
    return losses, values


def accuracy(values: dict[str, np.ndarray]) -> float:
    """Share of the test images that the forward model gets right with these parameters and running statistics."""
    model = onnx.load(FORWARD)
    for tensor in model.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(onnx.numpy_helper.from_array(values[tensor.name], tensor.name))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    images, labels = digits()[1]
    (scores,) = session.run(["scores"], {"image": images})
    return float((scores.argmax(axis=1) == labels).mean())


if __name__ == "__main__":
    losses, values = train(Path(sys.argv[1]), batches(epochs=20), learning_rate=0.002)
    for epoch, part in enumerate(np.reshape(losses, (20, -1)), start=1):
        print(f"epoch {epoch:2}: loss {part.mean():.4f}")
    print(f"accuracy on images it has not seen: {accuracy(values):.4f}")
