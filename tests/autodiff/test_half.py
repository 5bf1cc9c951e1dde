"""Models in half precision, and in half precision with float32 weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ckplan.api import open_model
from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.errors import ModelError
from ckplan.meter import measure
from ckplan.model.files.saving import save
from ckplan.model.half import half_precision_notes, loading_advice
from ckplan.model.inference.execute import random_inputs
from ckplan.model.loading import normalise
from tests.autodiff.gradcheck import node_model, onnxruntime_run, parse, reference, values
from tests.autodiff.reference_operators import use_reference_operators  # noqa: F401  (a fixture)
from tests.node_cases.retype import retyped

Array = np.ndarray
_SAMPLES = Path(__file__).parents[2] / "sample_models"


def _cast_at_the_borders(name: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A sample model in float16, with float32 inputs and outputs; and in float32 with the same, rounded weights."""
    model = onnx.load(_SAMPLES / f"{name}.onnx")
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:  # the lowest number of float32, in a mask, has no place in float16
            array = np.clip(numpy_helper.to_array(tensor), -6e4, 6e4)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    half = retyped(model, TensorProto.FLOAT16)
    single = retyped(half, TensorProto.FLOAT)
    graph = half.graph
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            _read_as_half(graph, value.name)
    _put_out_as_single(graph)
    return half, single


def _read_as_half(graph: onnx.GraphProto, name: str) -> None:
    for node in graph.node:
        node.input[:] = [f"{name}_half" if read == name else read for read in node.input]
    graph.node.insert(0, helper.make_node("Cast", [name], [f"{name}_half"], to=TensorProto.FLOAT16))


def _put_out_as_single(graph: onnx.GraphProto) -> None:
    for value in graph.output:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            inner = f"{value.name}_half"
            for node in graph.node:
                node.input[:] = [inner if read == value.name else read for read in node.input]
                node.output[:] = [inner if made == value.name else made for made in node.output]
            graph.node.append(helper.make_node("Cast", [inner], [value.name], to=TensorProto.FLOAT))


def _training(proto: onnx.ModelProto, **options: Any) -> TrainingGraph:
    return build_training_graph(normalise(ir.from_proto(proto)).model, **options)


def _feeds(training: TrainingGraph) -> dict[str, Array]:
    made = random_inputs(training.model)
    return {name: array for name, array in made.items() if name not in training.gradients}


def _distance(training: TrainingGraph, other: TrainingGraph, feeds: dict[str, Array]) -> float:
    """Of all gradients together, relative, in L2."""
    found, wanted = onnxruntime_run(training.model, feeds), onnxruntime_run(other.model, feeds)
    assert set(training.gradients) == set(other.gradients)
    pairs = [
        (found[training.gradients[name]].astype(np.float64), wanted[other.gradients[name]].astype(np.float64))
        for name in training.gradients
    ]
    size = sum(float((b**2).sum()) for _, b in pairs)
    return float(np.sqrt(sum(float(((a - b) ** 2).sum()) for a, b in pairs) / size))


@pytest.mark.parametrize("name", ["mlp", "gpt_tiny", "resnet_tiny"])
def test_a_float16_model_trains_in_onnxruntime(name: str) -> None:
    half, single = _cast_at_the_borders(name)
    ours, wanted = _training(half), _training(single)
    initializers = ours.model.graph.initializers
    assert {initializers[parameter].dtype for parameter in ours.gradients} == {ir.DataType.FLOAT16}
    assert _distance(ours, wanted, _feeds(wanted)) < 1e-2


def test_float32_weights_that_are_cast_to_float16_get_float32_gradients() -> None:
    single = onnx.load(_SAMPLES / "mlp.onnx")
    mixed = onnx.ModelProto()
    mixed.CopyFrom(single)
    graph = mixed.graph
    weights = [tensor.name for tensor in graph.initializer]
    fed = [value.name for value in graph.input if value.type.tensor_type.elem_type == TensorProto.FLOAT]
    for name in (*weights, *fed):
        _read_as_half(graph, name)
    for value in graph.output:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    _put_out_as_single(graph)
    del graph.value_info[:]
    ours, wanted = _training(mixed), _training(single)
    feeds = _feeds(wanted)
    found = onnxruntime_run(ours.model, feeds)
    assert all(found[gradient].dtype == np.float32 for gradient in ours.gradients.values())
    assert _distance(ours, wanted, feeds) < 1e-2


def test_a_loss_scale_saves_gradients_that_float16_cannot_hold() -> None:
    x = np.full((2, 4), 1e-5, np.float16)
    model = parse(
        """g (float16[2,4] x) => (float16 loss) {
            h = Mul (x, w)
            y = Mul (h, small)
            loss = ReduceMean <keepdims = 0> (y)
        }""",
        w=np.ones(4, np.float16),
        small=np.full(4, 1e-2, np.float16),
    )
    plain = build_training_graph(model, wrt=["w"])
    assert not onnxruntime_run(plain.model, {"x": x})[plain.gradients["w"]].any()
    scaled = build_training_graph(model, wrt=["w"], loss_scale=16384.0)
    found = onnxruntime_run(scaled.model, {"x": x})[scaled.gradients["w"]]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, 2 * 1e-5 * 1e-2 / 8, rtol=3e-2)


_ROWS = 2048


@pytest.mark.parametrize(
    ("node", "opset"),
    [
        ("LayerNormalization <axis = -1> (x, w, b)", 21),
        ("RMSNormalization <axis = -1> (x, w)", 23),
        ("InstanceNormalization (x, w, b)", 21),
        ("GroupNormalization <num_groups = 1> (x, w, b)", 21),
    ],
)
def test_sums_of_normalisations_are_made_in_float32(node: str, opset: int) -> None:
    """The sum of a row, 200,000, and its square have no place in float16."""
    channels = node.startswith(("Instance", "Group"))
    shape = (2, 1, _ROWS) if channels else (2, _ROWS)
    rng = np.random.default_rng(0)
    x = (100 + 4 * rng.standard_normal(shape)).astype(np.float16)
    sizes = 1 if channels else _ROWS

    def gradients(kind: str, dtype: type[np.floating[Any]]) -> Array:
        text = f"""<ir_version: 11, opset_import: ["": {opset}]> g ({kind}[{",".join(map(str, shape))}] other)
            => ({kind} loss) {{
            y = {node}
            z = Mul (y, other)
            loss = ReduceMean <keepdims = 0> (z)
        }}"""
        proto = onnx.parser.parse_model(text)
        arrays = {"x": x, "w": np.ones(sizes), "b": np.zeros(sizes)}
        used = {name for made in proto.graph.node for name in made.input}
        proto.graph.initializer.extend(
            numpy_helper.from_array(array.astype(dtype), name) for name, array in arrays.items() if name in used
        )
        training = build_training_graph(normalise(ir.from_proto(proto)).model, loss="loss", wrt=["x", "w"])
        other = np.random.default_rng(1).standard_normal(shape).astype(np.float16).astype(dtype)
        results = onnxruntime_run(training.model, {"other": other})
        return np.concatenate([results[training.gradients[name]].ravel().astype(np.float64) for name in ("x", "w")])

    found, wanted = gradients("float16", np.float16), gradients("float", np.float32)
    # The smallest step of float16 near zero is 6e-8, and the gradients of x are about 1e-4.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-2 * np.abs(wanted).max())


def test_bfloat16_that_onnxruntime_cannot_run_is_said_so(tmp_path: Path) -> None:
    proto = retyped(onnx.load(_SAMPLES / "mlp.onnx"), TensorProto.BFLOAT16)
    training = _training(proto)
    path = tmp_path / "training.onnx"
    save(training.model, path)
    with pytest.raises(ModelError, match="few CPU kernels and inserts no Casts"):
        measure(path)


def test_operators_that_take_no_bfloat16_are_named_with_what_to_do() -> None:
    text = (
        """<ir_version: 8, opset_import: ["" : 17]> g (bfloat16[1,2,3] x) => (bfloat16[1,2,3] y) { y = Conv(x, w) }"""
    )
    model = onnx.parser.parse_model(text)
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [2, 2, 1], [1.0, 2.0, 3.0, 4.0])
    model.graph.initializer.append(weight)
    with pytest.raises(ModelError, match=r"Conv .* tensor\(bfloat16\).* export the model in float32 or float16"):
        normalise(ir.from_proto(model))


def test_what_onnxruntime_does_not_load_is_told_with_what_to_do() -> None:
    half, single = (
        retyped(onnx.load(_SAMPLES / "mlp.onnx"), kind) for kind in (TensorProto.FLOAT16, TensorProto.FLOAT)
    )
    ended = "it ends the process that opens it, which may take 1.5 GiB"
    assert "export it in float32" in loading_advice(ended, ir.from_proto(half))
    assert not loading_advice(ended, ir.from_proto(single))
    unknown = "Fatal error: ai.onnx:ConstantFill(-1) is not a registered function/op"
    assert "to another opset" in loading_advice(unknown, ir.from_proto(single))
    unknown = 'In Node, ("", Foo, "", -1), Error No Op registered for Foo with domain_version of 21'
    assert "to another opset" in loading_advice(unknown, ir.from_proto(single))
    newer = "Unsupported model IR version: 14, max supported IR version: 13"
    assert "set the model's `ir_version` to 13" in loading_advice(newer, ir.from_proto(single))
    newer = "it knows opsets of ai.onnx up to 26 only"
    assert "export the model with opset 26 or older" in loading_advice(newer, ir.from_proto(single))


def test_what_a_cpu_makes_of_float16_is_noted(tmp_path: Path) -> None:
    half, single = _cast_at_the_borders("mlp")
    ours, wanted = _training(half), _training(single)
    assert half_precision_notes(wanted.model) == ()
    path = tmp_path / "training.onnx"
    save(ours.model, path)
    assert any("does in float32 between Casts" in note for note in measure(path, heap=False).notes)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_weights_that_only_lie_in_half_precision_are_not_said_to_be_calculated_with(kind: int) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[4,2] x) => (float[4,3] y)
    { single = Cast<to=1>(w) y = MatMul(x, single) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(helper.make_tensor("w", kind, [2, 3], [0.5, 0.25, -1, 2, 0.75, 1.5]))
    step = open_model(model, loss="mse")
    assert set(step.training.gradients) == {"w"}
    assert not any("calculates in" in note for note in step.notes)


def test_a_weight_of_another_type_than_what_it_multiplies_is_to_be_cast() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 22]> g (float[4,1] x) => (float[4,1] y) { y = MatMul(x, w) }"""
    )
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.BFLOAT16, [1, 1], [1.0]))
    with pytest.raises(ModelError, match=r"inconsistent type tensor\(bfloat16\); cast what it reads to one type"):
        normalise(ir.from_proto(model))


def test_bfloat16_by_the_reference() -> None:
    model = parse(
        """g (bfloat16[3,4] x) => (bfloat16 loss) {
            h = MatMul (x, w)
            y = Softmax (h)
            z = Mul (y, y)
            loss = ReduceMean <keepdims = 0> (z)
        }""",
        w=np.zeros((4, 5), np.float32).astype(ir.DataType.BFLOAT16.numpy()),
    )
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(ir.DataType.BFLOAT16.numpy())
    training = build_training_graph(model, loss="loss", wrt=["w"])
    found = reference(training.model, {"x": x})[training.gradients["w"]]
    assert found.dtype == x.dtype
    assert np.isfinite(found.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("GlobalLpPool", [values(1, 2, 8, 8, low=10.0, high=60.0)], {"p": 4}),
        ("LpPool", [values(1, 2, 8, 8, low=1e-3, high=2e-2)], {"p": 4, "kernel_shape": [3, 3]}),
        ("Acosh", [values(50, low=2.0, high=6e4)], {}),
        ("Asinh", [values(50, low=-6e4, high=6e4)], {}),
        ("Sinh", [values(50, low=-10.0, high=10.0)], {}),
        ("Gelu", [values(50, low=-300.0, high=300.0)], {"approximate": "tanh"}),
        ("LRN", [values(1, 4, 6, low=-900.0, high=900.0)], {"size": 3}),
        ("MeanVarianceNormalization", [values(2, 2, 3, 3, low=-900.0, high=900.0)], {}),
        ("GridSample", [values(1, 1, 2, 400), values(1, 3, 3, 2, low=-0.9, high=0.9)], {}),
        ("DeformConv", [values(1, 1, 2, 200), values(1, 1, 1, 1, seed=1), values(1, 2, 2, 200, seed=2)], {}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
@pytest.mark.usefixtures("use_reference_operators")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_half_precision_has_no_place_for_is_computed_in_float32(
    op_type: str, inputs: list[Array], attributes: dict[str, Any]
) -> None:
    """Powers of small and large numbers, and positions between elements of which there are hundreds."""
    half = retyped(node_model(op_type, *inputs, opset=22, **attributes), TensorProto.FLOAT16)
    single = retyped(half, TensorProto.FLOAT)
    loaded = (normalise(ir.from_proto(model)).model for model in (half, single))
    trainings = [build_training_graph(model, loss="loss", wrt=["p*"]) for model in loaded]
    found, wanted = (reference(training.model) for training in trainings)
    for name in trainings[0].gradients.values():
        assert found[name].dtype == np.float16
        np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=2e-2 * np.abs(wanted[name]).max())
