"""The nine ``light_*`` networks of the onnx package with weights to train: ``python -m sample_models.light_models``.

The onnx package carries famous networks of 2014 to 2017 as its backend tests, without their weights: ConstantOfShape
nodes stand for them. Here each of these becomes an initializer of seeded random numbers that suit the part it plays,
so that activations stay of order one through the whole depth. All else stays as it is in those files, which is what
makes them worth having: opset 9, initializers that are graph inputs too, fixed batch sizes, Caffe's pairs of
BatchNormalization and a scale by Mul and Add, a softmax at the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import prod, sqrt
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sample_models.generate import write
from sample_models.random_weights import generator, uniform

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = (
    "light_bvlc_alexnet",
    "light_densenet121",
    "light_inception_v1",
    "light_inception_v2",
    "light_resnet50",
    "light_shufflenet",
    "light_squeezenet",
    "light_vgg19",
    "light_zfnet512",
)
RESIDUAL_GAIN = 0.4
"""Scale of a normalisation whose output is added to another branch, so that the sums do not grow with depth."""

Shape = tuple[int, ...]


def light_model(name: str, *, seed: int = 0) -> onnx.ModelProto:
    """Load a ``light_*`` model of the installed onnx package and give it random weights.

    Args:
        name: one of `NAMES`.
        seed: of the weights.

    Raises:
        FileNotFoundError: the installed onnx package does not carry the file.
        ValueError: a weight plays a part for which there is no distribution.
    """
    model = onnx.load(FOLDER / f"{name}.onnx")
    graph, random = model.graph, generator(seed)
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    shapes: dict[str, Shape] = {
        tensor.name: tuple(tensor.dims) for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT
    }
    placeholders = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    for node in placeholders:
        shapes[node.output[0]] = tuple(map(int, numpy_helper.to_array(initializers.pop(node.input[0]))))
    declared = {value.name: value for value in graph.input}
    for weight, shape in shapes.items():
        reader = _reader(graph, weight)
        if reader is not None:
            initializers[weight] = numpy_helper.from_array(_draw(graph, random, *reader, shape), weight)
            declared[weight] = helper.make_tensor_value_info(weight, TensorProto.FLOAT, shape)
    for node in placeholders:
        declared.pop(node.input[0])
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(kept)
    graph.initializer.extend(initializers.values())
    graph.input.extend(declared.values())
    return model


def _reader(graph: onnx.GraphProto, weight: str) -> tuple[onnx.NodeProto, int] | None:
    """The node that a weight is for and its input there, looking through Unsqueeze and Reshape; None if unread."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == weight:
                passes_on = node.op_type in ("Unsqueeze", "Reshape") and index == 0
                return _reader(graph, node.output[0]) if passes_on else (node, index)
    return None


def _draw(
    graph: onnx.GraphProto, random: np.random.Generator, node: onnx.NodeProto, index: int, shape: Shape
) -> NDArray[np.float32]:
    """Random numbers for input ``index`` of ``node``."""
    match node.op_type, index:
        case "Conv", 1:
            linear = any(
                writer.op_type == "BatchNormalization" and node.input[0] in writer.output for writer in graph.node
            )
            return uniform(random, shape, (1.0 if linear else sqrt(2)) / sqrt(prod(shape[1:])))
        case "Gemm", 1:
            transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
            gain = sqrt(2) if _read_by(graph, node, "Relu") else 1.0
            return uniform(random, shape, gain / sqrt(shape[-1 if transposed else -2]))
        case "BatchNormalization", 1:
            gain = RESIDUAL_GAIN if _read_by(graph, node, "Sum") else 1.0
            return uniform(random, shape, 0.05 * gain, mean=gain)
        case ("BatchNormalization", 4) | ("Mul", _):
            return uniform(random, shape, 0.05, mean=1.0)
        case ("Conv" | "Gemm" | "BatchNormalization", 2) | ("BatchNormalization", 3) | ("Add", _):
            return uniform(random, shape, 0.05)
    raise ValueError(f"input {index} of {node.op_type} `{node.name}` is no weight that this knows")


def _read_by(graph: onnx.GraphProto, node: onnx.NodeProto, op_type: str) -> bool:
    """Whether a node of this type reads the node's output."""
    return any(reader.op_type == op_type and node.output[0] in reader.input for reader in graph.node)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m sample_models.light_models", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("-o", "--output", type=Path, help="file to write (default NAME.onnx)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    options = parser.parse_args(arguments)
    write(light_model(options.name, seed=options.seed), options.output or Path(f"{options.name}.onnx"))


if __name__ == "__main__":
    main()
