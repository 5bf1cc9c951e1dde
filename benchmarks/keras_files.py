"""Gradients of networks that Keras built and tf2onnx exported, beside TensorFlow's own.

    python -m venv PEER && PEER/bin/pip install tensorflow-cpu==2.15.1 tf2onnx==1.16.1 'onnx<1.17' 'numpy<2'
    python -m benchmarks.keras_files --peer PEER/bin/python [--only lstm unet]

A parameter of the file is told from the variables of the network by its values, whatever order of axes or gates the
exporter put them in; tf2onnx folds normalisations into convolutions, whose parameters are no variables any more and
cannot be compared. *Apart* is the largest distance of a gradient from TensorFlow's, both in float32, over its largest
element, or over a thousandth of the largest element of all where that is more: the gradient of a key's bias in front of
a Softmax is nothing but rounding.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import ckplan.model
from benchmarks.exports import FOLDER
from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.model import save

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        losses: TensorFlow's loss and the file's.
        compared: parameters that are variables of the network.
        others: parameters that are none.
        apart: see the head of this file.
    """

    network: str
    losses: tuple[float, float]
    compared: int
    others: int
    apart: float

    def __str__(self) -> str:
        loss = abs(self.losses[1] - self.losses[0]) / abs(self.losses[0])
        return f"| {self.network} | {loss:.0e} | {self.compared} | {self.others} | {self.apart:.0e} |"


def compare(network: str, folder: Path) -> Row:
    """Differentiate a network's file, run it and hold its gradients against TensorFlow's."""
    told = dict(np.load(folder / f"{network}.npz"))
    forward = ckplan.model.load(folder / f"{network}.onnx")
    training = build_training_graph(forward.model, loss=["mse"])
    values = {name: forward.model.graph.initializers[name].const_value for name in training.gradients}
    own = {name: np.asarray(tensor.numpy()) for name, tensor in values.items() if tensor is not None}
    found = _run(training, told, folder / f"{network}.step.onnx")
    variables = {name.removeprefix("value/"): array for name, array in told.items() if name.startswith("value/")}
    scale = 1e-3 * max(np.abs(told[f"gradient/{name}"]).max() for name in variables)
    apart, compared = 0.0, 0
    for name, gradient in training.gradients.items():
        for variable, weights in variables.items():
            place = _place_of(weights, own[name])
            if place is not None:
                wanted = told[f"gradient/{variable}"].ravel()
                distance = np.abs(found[gradient].ravel()[place] - wanted).max()
                apart = max(apart, float(distance / max(np.abs(wanted).max(), scale)))
                del variables[variable]
                compared += 1
                break
    losses = float(told["loss"]), float(found[training.loss])
    return Row(network, losses, compared, len(training.gradients) - compared, apart)


def _place_of(variable: Array, parameter: Array) -> Array | None:
    """Where a parameter has the elements of a variable, both read in order; None if it does not hold the same numbers.

    Axes may be in another order. So may the gates of a recurrent layer, which has zeros for biases that its network
    does not have.
    """
    numbers = np.arange(parameter.size)
    if variable.size == parameter.size:
        for order in itertools.permutations(range(variable.ndim)):
            if np.allclose(variable.transpose(order).ravel(), parameter.ravel(), rtol=0, atol=1e-7):
                place = np.empty(parameter.size, dtype=np.int64)
                place[np.arange(variable.size).reshape(variable.shape).transpose(order).ravel()] = numbers
                return place
    filled = numbers[parameter.ravel() != 0]
    held = parameter.ravel()[filled]
    if variable.size != held.size or not np.allclose(np.sort(variable, None), np.sort(held), rtol=0, atol=1e-7):
        return None
    place = np.empty(held.size, dtype=np.int64)
    place[np.argsort(variable, None)] = filled[np.argsort(held)]
    return place


def _run(training: TrainingGraph, told: dict[str, Array], path: Path) -> dict[str, Array]:
    """Run a training graph on the inputs of the peer; return its outputs by name."""
    save(training.model, path, force=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feeds = {name: told[name] if name in told else told["target"] for name in names}
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feeds), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="the interpreter that has TensorFlow and tf2onnx")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--folder", type=Path, default=FOLDER.parent / "keras")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("keras_peer.py")
    command = [str(arguments.peer), "-P", str(script), str(arguments.folder), *arguments.only]
    written = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    print("| network | losses apart | compared | not compared | apart |\n" + "|---" * 5 + "|", flush=True)
    for network in written:
        print(compare(network, arguments.folder), flush=True)


if __name__ == "__main__":
    main()
