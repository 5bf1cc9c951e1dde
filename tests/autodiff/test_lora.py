"""Low-rank adapters in the graph: their gradients, and what is no longer computed and kept because of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ckplan
from ckplan import keys
from ckplan.autodiff.lora import Lora
from ckplan.errors import ModelError, UsageError

BATCH, INPUTS, OUTPUTS, RANK, BLOCK = 4, 40, 24, 3, 16
A, B = "layer.lora_A.weight", "layer.lora_B.weight"
RNG = np.random.default_rng(0)


def model_of(nodes: list[onnx.NodeProto], held: dict[str, np.ndarray], element: int) -> onnx.ModelProto:
    """x -> the layer -> Tanh -> z."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*nodes, helper.make_node("Tanh", ["y"], ["z"])], "net",
        [info("x", element, ["batch", INPUTS])], [info("z", element, ["batch", OUTPUTS])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def quiet(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def matmul() -> tuple[onnx.ModelProto, np.ndarray]:
    weight = RNG.normal(size=(INPUTS, OUTPUTS)) / 6
    return model_of(
        [helper.make_node("MatMul", ["x", "layer.weight"], ["y"])], {"layer.weight": weight}, TensorProto.DOUBLE
    ), weight.T


def gemm() -> tuple[onnx.ModelProto, np.ndarray]:
    weight = RNG.normal(size=(OUTPUTS, INPUTS)) / 6
    node = helper.make_node("Gemm", ["x", "layer.weight"], ["y"], transB=1)
    return model_of([node], {"layer.weight": weight}, TensorProto.DOUBLE), weight


def transposed() -> tuple[onnx.ModelProto, np.ndarray]:
    weight = RNG.normal(size=(OUTPUTS, INPUTS)) / 6
    nodes = [
        helper.make_node("Transpose", ["layer.weight"], ["w"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return model_of(nodes, {"layer.weight": weight}, TensorProto.DOUBLE), weight


def dequantised() -> tuple[onnx.ModelProto, np.ndarray]:
    stored = RNG.integers(-127, 128, size=(INPUTS, OUTPUTS)).astype(np.int8)
    scale = RNG.uniform(0.001, 0.004, size=OUTPUTS).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["layer.weight_quantized", "scale"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    held = {"layer.weight_quantized": stored, "scale": scale}
    return model_of(nodes, held, TensorProto.FLOAT), (stored * scale.astype(np.float64)).T


def in_blocks(bits: int, points: bool) -> tuple[onnx.ModelProto, np.ndarray]:
    blocks = -(-INPUTS // BLOCK)

    def packed(array: np.ndarray) -> np.ndarray:
        return array if bits == 8 else (array[..., 0::2] | (array[..., 1::2] << 4)).astype(np.uint8)

    stored = RNG.integers(0, 1 << bits, size=(OUTPUTS, blocks, BLOCK)).astype(np.uint8)
    scale = RNG.uniform(0.1, 0.4, size=OUTPUTS * blocks).astype(np.float32) / (1 << bits)
    held = {"layer.weight_Q4": packed(stored), "scale": scale}
    zero = np.full((OUTPUTS, blocks), 1 << (bits - 1), np.uint8)
    if points:
        even = RNG.integers(0, 1 << bits, size=(OUTPUTS, blocks + (blocks % 2 if bits == 4 else 0))).astype(np.uint8)
        held["points"], zero = packed(even), even[:, :blocks]
    sizes = {"K": INPUTS, "N": OUTPUTS, "bits": bits, "block_size": BLOCK}
    node = helper.make_node("MatMulNBits", ["x", *held], ["y"], domain="com.microsoft", **sizes)
    whole = (stored.astype(np.float64) - zero[..., None]) * scale.reshape(OUTPUTS, blocks, 1)
    return model_of([node], held, TensorProto.FLOAT), whole.reshape(OUTPUTS, -1)[:, :INPUTS]


BASES = {
    "MatMul": matmul,
    "Gemm": gemm,
    "Transpose": transposed,
    "int8": dequantised,
    "4 bits": lambda: in_blocks(4, False),
    "4 bits, zero points": lambda: in_blocks(4, True),
    "8 bits": lambda: in_blocks(8, False),
    "8 bits, zero points": lambda: in_blocks(8, True),
}


@pytest.mark.parametrize("base", BASES)
def test_gradients_of_adapters_beside_any_base(base: str, tmp_path: Path) -> None:
    model, weight = BASES[base]()
    dtype = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    step = ckplan.open_model(
        model, dims={"batch": BATCH}, loss="sum-of-squares", lora=f"rank={RANK},alpha=6", retain_grad=["x"]
    )
    ckplan.save(step.model, tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    first = next(numpy_helper.to_array(t) for t in onnx.load(tmp_path / "step.onnx").graph.initializer if t.name == A)
    x = (RNG.normal(size=(BATCH, INPUTS)) * 0.2).astype(dtype)
    second = (RNG.normal(size=(OUTPUTS, RANK)) * 0.1).astype(dtype)
    names = ["loss", f"{A}_grad", f"{B}_grad", "x_grad"]
    found = session.run(names, {"x": x, B: second})
    whole = weight + 2 * second.astype(np.float64) @ first
    z = np.tanh(x @ whole.T)
    g = 2 * z * (1 - z * z)
    wanted = [(z * z).sum(), 2 * second.T @ g.T @ x, 2 * g.T @ (x @ first.T), g @ whole]
    for name, one, other in zip(names, found, wanted, strict=True):
        limit = (1e-12 if dtype == np.float64 else 2e-6) * np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=limit, err_msg=name)


def test_a_quantised_table_is_looked_up_before_adapters() -> None:
    """As in models of onnxruntime-genai whose head is the table; one node of onnxruntime's adds the bias of a layer."""
    model, weight = in_blocks(4, False)
    rng = np.random.default_rng(1)
    table = rng.integers(0, 256, size=(5, INPUTS // 2)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.04, size=(5, -(-INPUTS // BLOCK))).astype(np.float32)
    held = {"table": table, "scales": scales, "layer.bias": rng.normal(size=OUTPUTS).astype(np.float32)}
    for name, array in held.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("ids", TensorProto.INT64, [BATCH]))
    sizes = {"bits": 4, "block_size": BLOCK, "quantize_axis": 1}
    read = ["table", "ids", "scales"]
    model.graph.node.insert(0, helper.make_node("GatherBlockQuantized", read, ["x"], domain="com.microsoft", **sizes))
    product = model.graph.node[1]
    product.output[0] = "product"
    model.graph.node.insert(2, helper.make_node("Add", ["product", "layer.bias"], ["y"]))
    step = ckplan.open_model(model, loss="sum-of-squares")
    assert set(step.training.gradients) == {"layer.bias"}
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    ids = np.arange(BATCH) % 5
    (found,) = session.run(["layer.bias_grad"], {"ids": ids})
    numbers = np.stack([table & 15, table >> 4], -1).reshape(5, INPUTS) - 8.0
    x = (numbers * np.repeat(scales, BLOCK, 1)[:, :INPUTS])[ids]
    z = np.tanh(x @ weight.T + held["layer.bias"])
    np.testing.assert_allclose(found, (2 * z * (1 - z * z)).sum(0), rtol=0, atol=1e-5)
    assert step.ordered is not None


@pytest.mark.parametrize("strategy", [None, "memory"])
def test_onnxruntime_makes_no_floats_of_a_quantised_base_when_it_loads_the_step(
    strategy: str | None, tmp_path: Path
) -> None:
    """Of a constant it would: four times the bytes, held for good, and all of them at once."""
    model, _ = dequantised()
    step = ckplan.open_model(model, dims={"batch": BATCH}, lora=f"rank={RANK}", retain_grad=["x"])
    file = step.ordered if strategy is None else ckplan.rewrite(step, strategy=strategy).model
    ckplan.save(file, tmp_path / "step.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    onnxruntime.InferenceSession(tmp_path / "step.onnx", options, providers=["CPUExecutionProvider"])
    loaded = onnx.load(tmp_path / "loaded.onnx").graph
    assert "DequantizeLinear" in {node.op_type for node in loaded.node}
    held = {tuple(tensor.dims): tensor.data_type for tensor in loaded.initializer if len(tensor.dims) == 2}
    assert held[INPUTS, OUTPUTS] == TensorProto.INT8
    assert "layer.weight_quantized" in {value.name for value in loaded.input}


def test_adapters_begin_as_nothing_and_the_rest_is_frozen(tmp_path: Path) -> None:
    step = ckplan.open_model("sample_models/gpt_tiny.onnx", lora="rank=2,targets=c_attn;*.mlp.*")
    plain = ckplan.open_model("sample_models/gpt_tiny.onnx")
    assert step.training is not None
    assert step.training.gradients
    assert all(".lora_" in name for name in step.training.gradients)
    losses = []
    for number, one in enumerate((step, plain)):
        path = tmp_path / f"{number}.onnx"
        ckplan.save(one.model, path)
        session = quiet(path)
        rng = np.random.default_rng(0)
        feeds = {i.name: rng.integers(0, 8, i.shape).astype(np.int64) for i in session.get_inputs()}
        losses.append(session.run(["loss"], feeds)[0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_nothing_is_computed_or_kept_for_frozen_layers_before_the_first_adapter() -> None:
    info, node = helper.make_tensor_value_info, helper.make_node
    graph = helper.make_graph(
        [
            node("MatMul", ["x", "first.weight"], ["a"]),
            node("Tanh", ["a"], ["b"]),
            node("MatMul", ["b", "second.weight"], ["y"]),
        ],
        "net", [info("x", TensorProto.FLOAT, [4, 8])], [info("y", TensorProto.FLOAT, [4, 8])],
        [numpy_helper.from_array(np.eye(8, dtype=np.float32), f"{name}.weight") for name in ("first", "second")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    step = ckplan.open_model(model, loss="sum-of-squares", lora="rank=2,targets=second")
    later = [node for node in step.model.graph if node.metadata_props[keys.PHASE] == "backward"]
    read = {value.name for node in later for value in node.inputs if value is not None}
    assert later
    assert not read & {"x", "a", "first.weight", "second.weight"}


def test_other_parameters_can_be_trained_besides() -> None:
    model, _ = gemm()
    step = ckplan.open_model(model, dims={"batch": 2}, loss="mean", lora="rank=2", wrt=["layer.weight"])
    assert step.training is not None
    assert set(step.training.gradients) == {A, B, "layer.weight"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rank=0", "option `rank` of `--lora` is 0; give a whole number of at least 1"),
        ("rank=25", "more than layer 'layer' of 40 inputs and 24 outputs has"),
        ("targets=q_proj", "`--lora targets=q_proj` matches no linear layer; there are, for example, `layer`"),
        ("ranks=2", "has no option `ranks`; its options: rank=…"),
        ("alpha=-1", "option `alpha` of `--lora` is -1.0; give a number of at least 0"),
        ("alpha=1e60", "option `alpha` of `--lora` is 1e+60; give at most 3.40282e+38"),
        ("rank=two", "`two` does not fit option `rank` of adapter `lora`; give a whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        ckplan.open_model(gemm()[0], dims={"batch": 2}, loss="mean", lora=text)
    assert said in str(error.value)


def test_a_model_without_a_linear_layer_is_refused() -> None:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factors"], ["y"])], "net",
        [info("x", TensorProto.FLOAT, [4])], [info("y", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.arange(4, dtype=np.float32), "factors")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(ModelError, match="no node of the model multiplies by a matrix of the file"):
        ckplan.open_model(model, lora="rank=2")


def test_targets_are_names_ends_of_names_or_patterns() -> None:
    def wanted(targets: tuple[str, ...]) -> list[str]:
        lora: Any = Lora(targets=targets)
        modules = ("layers.0.q_proj", "layers.0.k_proj", "head")
        return [module for module in modules if lora.wants(module, f"{module}.weight")]

    assert wanted(()) == ["layers.0.q_proj", "layers.0.k_proj", "head"]
    assert wanted(("q_proj", "head")) == ["layers.0.q_proj", "head"]
    assert wanted(("0.k_proj",)) == ["layers.0.k_proj"]
    assert wanted(("*_proj",)) == ["layers.0.q_proj", "layers.0.k_proj"]
    assert wanted(("proj",)) == []
    assert Lora.of(Lora(rank=3, targets=("a", "b")).to_json()) == Lora(rank=3, targets=("a", "b"))
