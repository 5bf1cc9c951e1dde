"""Gradients of operators of com.microsoft, through the standard operators they are written in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.reading import shape_of
from ckplan.errors import UnsupportedOperatorsError
from ckplan.model.inference.execute import random_inputs
from ckplan.model.loading import normalise
from tests.autodiff import gradcheck
from tests.autodiff.reference_operators import use_reference_operators
from tests.model.contrib_cases import CASES, Case, case, model_of, numbers

__all__ = ["use_reference_operators"]

_STEPS = {"Range", "QuantizeLinear", "DequantizeLinear"}
#: What only the second output depends on.
_ELSEWHERE = {"GemmaRotaryEmbedding": {"x3", "x4"}, "LinearAttentionGate": {"x3"}}


def _trainable(given: Case) -> onnx.ModelProto:
    """The case in float64 with its floating inputs as parameters."""
    proto, feeds = model_of(given, np.float64)
    del proto.graph.input[:]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in feeds.items())
    return proto


@pytest.mark.usefixtures("use_reference_operators")
@pytest.mark.parametrize("given", [c for c in CASES if c.op_type not in _STEPS and c.label != "clip"], ids=str)
def test_gradients_agree_with_finite_differences(given: Case) -> None:
    loaded = normalise(ir.from_proto(_trainable(given)))
    narrow = {v.name for v in loaded.model.graph.initializers.values() if v.dtype == ir.DataType.FLOAT}
    assert not narrow
    training = build_training_graph(loaded.model, loss="mse:y0", wrt=["x*"])
    floating = {f"x{i}" for i, a in enumerate(given.inputs) if a is not None and a.dtype.kind == "f" and a.size}
    assert floating - set(training.gradients) == _ELSEWHERE.get(given.op_type, set())
    (target,) = (value for value in training.model.graph.inputs if value.name not in training.gradients)
    gradcheck.check_training_graph(training, {str(target.name): numbers(*shape_of(target), seed=7)}, rtol=1e-6)


def test_what_cannot_be_expanded_is_reported_with_its_reason() -> None:
    proto = _trainable(case("CropAndResize", numbers(2, 3, 7, 6), numbers(2, 4), np.asarray([1, 0], np.int32),
                            np.asarray([4, 3], np.int32), mode="nearest"))  # fmt: skip
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.DOUBLE:
            tensor.CopyFrom(onnx.numpy_helper.from_array(
                onnx.numpy_helper.to_array(tensor).astype(np.float32), tensor.name))  # fmt: skip
    loaded = normalise(ir.from_proto(proto))
    with pytest.raises(
        UnsupportedOperatorsError, match=r"com\.microsoft::CropAndResize 'node' \(its mode 'nearest' rounds"
    ):
        build_training_graph(loaded.model, loss="mean:y0", wrt=["x0"])


def test_inverse_has_a_rule() -> None:
    x, weights = numbers(2, 3, 3).astype(np.float32) + 3 * np.eye(3, dtype=np.float32), numbers(2, 3, 3, seed=1)
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g () => (float loss) {
            y = com.microsoft.Inverse (x)
            z = Mul (y, weight)
            loss = ReduceSum <keepdims = 0> (z)
        }"""
    )
    arrays = {"x": x, "weight": weights.astype(np.float32)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    training = build_training_graph(normalise(ir.from_proto(proto)).model, loss="loss", wrt=["x"])
    y = np.linalg.inv(x.astype(np.float64)).swapaxes(-1, -2)
    found = gradcheck.onnxruntime_run(training.model)[training.gradients["x"]]
    np.testing.assert_allclose(found, -y @ weights @ y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bert_tiny", "gpt_tiny", "resnet_tiny"])
def test_what_onnxruntime_optimised_has_the_same_gradients(name: str, tmp_path: Path) -> None:
    source, optimised = Path(__file__).parents[2] / "sample_models" / f"{name}.onnx", tmp_path / "optimised.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(optimised)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    proto = onnx.load(optimised)
    assert any(node.domain == "com.microsoft" for node in proto.graph.node)
    fused = build_training_graph(normalise(ir.from_proto(proto)).model)
    assert not any("constant_0" in note for note in fused.notes)
    plain = build_training_graph(normalise(ir.from_proto(onnx.load(source))).model)
    feeds = {key: array for key, array in random_inputs(plain.model).items() if key not in plain.gradients}
    ours, theirs = gradcheck.onnxruntime_run(fused.model, feeds), gradcheck.onnxruntime_run(plain.model, feeds)
    np.testing.assert_allclose(ours[fused.loss], theirs[plain.loss], rtol=1e-5)
    common = set(fused.gradients) & set(plain.gradients)
    assert len(common) > (1 if name == "resnet_tiny" else 70)  # a Conv takes up the BatchNormalization behind it
    size = max(float(np.abs(theirs[plain.gradients[key]]).max()) for key in common)
    for key in common:
        np.testing.assert_allclose(
            ours[fused.gradients[key]], theirs[plain.gradients[key]], rtol=0, atol=1e-5 * size, err_msg=key
        )


def test_a_decoder_with_a_cache_is_trained_on_prompts() -> None:
    """As exported for generation: the cache is an input with a length of its own."""
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[batch,seq,32] x, float[batch,2,past_len,8] k, float[batch,2,past_len,8] v, int32[batch] lengths,
           int32 total) => (float[batch,seq,32] y) {
            q = MatMul (x, wq)
            a = MatMul (x, wk)
            b = MatMul (x, wv)
            y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
                (q, a, b, k, v, lengths, total)
        }"""
    )
    for name, width in (("wq", 32), ("wk", 16), ("wv", 16)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers(32, width).astype(np.float32), name))
    loaded = normalise(ir.from_proto(proto), dims={"batch": 2, "seq": 5})
    training = build_training_graph(loaded.model, loss="sum")
    assert set(training.gradients) == {"wq", "wk", "wv"}
    feeds = {
        "x": numbers(2, 5, 32).astype(np.float32), "k": np.zeros((2, 2, 0, 8), np.float32),
        "v": np.zeros((2, 2, 0, 8), np.float32), "lengths": np.asarray([4, 4], np.int32),
        "total": np.asarray(5, np.int32),
    }  # fmt: skip
    found = gradcheck.onnxruntime_run(training.model, feeds)
    assert all(np.abs(found[gradient]).max() > 0 for gradient in training.gradients.values())


def test_a_file_in_the_layout_of_one_processor_names_the_way_back(tmp_path: Path) -> None:
    """What follows has no rule only for want of shapes, and is not listed."""
    text = "g (float[1,8,4,4] x) => (float[1,8,4,4] y) { h = Conv(x, w) s = Sigmoid(h) y = Mul(h, s) }"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    model = gradcheck.parse(text, w=numbers(8, 8, 1, 1).astype(np.float32))
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimised = ir.load(tmp_path / "optimised.onnx")
    if all(node.domain != "com.microsoft.nchwc" for node in optimised.graph):
        pytest.skip("onnxruntime knows no such layout on this processor")
    with pytest.raises(UnsupportedOperatorsError, match="ORT_ENABLE_EXTENDED") as error:
        build_training_graph(normalise(optimised).model, loss=["sum"])
    assert {why for _, why in error.value.nodes} == {"in a layout of one processor"}
