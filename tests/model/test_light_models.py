"""The nine networks of the onnx package: opset 9, IR 3, weights from ConstantOfShape, batch 1 baked in."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from ckplan.model import load
from tests.model.models import assert_normal, operators, run

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
INPUTS = {
    "bvlc_alexnet": "data_0",
    "densenet121": "data_0",
    "inception_v1": "data_0",
    "inception_v2": "data_0",
    "resnet50": "gpu_0/data_0",
    "shufflenet": "gpu_0/data_0",
    "squeezenet": "data_0",
    "vgg19": "data_0",
    "zfnet512": "gpu_0/data_0",
}


def path_of(name: str) -> Path:
    return FOLDER / f"light_{name}.onnx"


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("name", INPUTS)
def test_loads_at_batch(name: str, batch: int) -> None:
    forward = load(path_of(name), shapes={INPUTS[name]: (batch, 3, 224, 224)})
    assert_normal(forward.model)
    assert [value.name for value in forward.model.graph.inputs] == [INPUTS[name]]
    (output,) = forward.model.graph.outputs
    assert output.shape is not None
    assert output.shape.numpy()[:2] == (batch, 1000)
    assert not {"Constant", "ConstantOfShape", "Dropout", "Identity"} & set(operators(forward.model))
    assert any("instead of the file's 1" in note for note in forward.notes) == (batch != 1)


def test_baked_in_batch_is_rebound_and_said_so() -> None:
    forward = load(path_of("resnet50"), shapes={"gpu_0/data_0": (16, 3, 224, 224)})
    (reshape,) = (node for node in forward.model.graph if node.op_type == "Reshape")
    assert reshape.inputs[1] is not None
    assert reshape.inputs[1].const_value is not None
    assert reshape.inputs[1].const_value.numpy().tolist() == [16, 2048]
    assert any("[1, 2048] to [16, 2048]" in note for note in forward.notes)


@pytest.mark.parametrize("name", ["shufflenet", "squeezenet"])
def test_rebatched_computes_what_the_file_does(name: str) -> None:
    proto, weights = with_random_weights(name)
    batch = np.random.default_rng(0).standard_normal((2, 3, 224, 224)).astype(np.float32)
    expected = np.concatenate([run(proto, {INPUTS[name]: image[None]})[0] for image in batch])
    model = load(path_of(name), shapes={INPUTS[name]: batch.shape}).model
    for weight, array in weights.items():
        model.graph.initializers[weight].const_value = ir.Tensor(array, name=weight)
    np.testing.assert_allclose(run(model, {INPUTS[name]: batch})[0], expected, rtol=1e-5, atol=1e-7)


def test_weights_of_constant_of_shape_take_no_memory() -> None:
    model = load(path_of("vgg19")).model
    tensors = [value.const_value for value in model.graph.initializers.values()]
    assert sum(tensor.nbytes for tensor in tensors if tensor is not None) > 500e6
    large = max((tensor for tensor in tensors if tensor is not None), key=lambda tensor: tensor.nbytes)
    assert not any(large.numpy().strides)


def with_random_weights(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The file itself, with seeded weights in place of its ConstantOfShape nodes."""
    proto = onnx.load(path_of(name))
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    weights = {}
    for node in [node for node in proto.graph.node if node.op_type == "ConstantOfShape"]:
        shape = tuple(int(size) for size in shapes[node.input[0]])
        generator = np.random.default_rng(zlib.crc32(node.output[0].encode()))
        array = generator.standard_normal(shape) / math.sqrt(max(1, math.prod(shape[1:])) / 2)
        weights[node.output[0]] = np.abs(array).astype(np.float32) if len(shape) == 1 else array.astype(np.float32)
        proto.graph.node.remove(node)
        proto.graph.initializer.append(numpy_helper.from_array(weights[node.output[0]], node.output[0]))
    inputs = [value for value in proto.graph.input if value.name not in shapes]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.ir_version = 8
    return proto, weights
