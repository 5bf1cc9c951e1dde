"""Operators of com.microsoft in standard operators: the same numbers as onnxruntime's own kernels."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ckplan.errors import ModelError
from ckplan.keys import NOT_EXPANDED
from ckplan.model.contrib import REFUSED, expansion_rules
from ckplan.model.contrib.registry import expansion
from ckplan.model.loading import ForwardModel, normalise
from tests.model.contrib_cases import CASES, Case, case, integers, model_of, numbers


def _run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    return list(session.run(None, {name: array for name, array in feeds.items() if name in names}))


def _load(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> ForwardModel:
    return normalise(ir.from_proto(proto), shapes={name: array.shape for name, array in feeds.items()})


@pytest.mark.parametrize("given", CASES, ids=str)
def test_the_expansion_computes_what_the_operator_does(given: Case) -> None:
    proto, feeds = model_of(given, np.float32)
    if given.formula is None:
        expected = _run(proto, feeds)
    else:
        computed = given.formula(*(array for array in given.inputs if array is not None))
        expected = list(computed) if isinstance(computed, tuple) else [computed]
    loaded = _load(proto, feeds)
    assert {node.domain for node in loaded.model.graph} == {""}
    expanded = ir.to_proto(loaded.model)
    onnx.checker.check_model(expanded, full_check=True)
    assert [output.name for output in expanded.graph.output] == [output.name for output in proto.graph.output]
    for want, found in zip(expected, _run(expanded, feeds), strict=True):
        assert found.shape == want.shape
        assert found.dtype == (want.dtype if given.formula is None else np.float32)
        np.testing.assert_allclose(found, want, rtol=0, atol=2e-6 * (1 + np.abs(want).max(initial=0)))


def test_every_expansion_has_a_case_and_no_operator_is_both_expanded_and_refused() -> None:
    # A Range whose inputs are floating point, as all cases feed them, is refused: see below.
    assert set(expansion_rules()) - {"Range"} <= {given.op_type for given in CASES}
    assert not set(expansion_rules()) & set(REFUSED)


def test_two_expansions_of_one_operator_are_an_error() -> None:
    assert "Gelu" in expansion_rules()
    with pytest.raises(ValueError, match="two expansions of Gelu"):
        expansion("Gelu")(lambda e: [])


def test_what_was_expanded_is_noted() -> None:
    proto, feeds = model_of(case("BiasGelu", numbers(2, 8), numbers(8)), np.float32)
    assert "1 node(s) of com.microsoft written in standard operators: BiasGelu" in _load(proto, feeds).notes


_W = numbers(8, 24), numbers(24)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (case("Attention", numbers(2, 4, 8), *_W, num_heads=2, do_rotary=1), "rotates queries and keys itself"),
        (
            case("Attention", numbers(2, 4, 8), *_W, integers(8, below=4), num_heads=2),
            r"its mask of shape \[8\] has no form",
        ),
        (
            case("MultiHeadAttention", numbers(2, 4, 8), *(numbers(2, 5, 8, seed=s) for s in (1, 2)), num_heads=2,
                 unidirectional=1),
            "causal with more keys than queries",
        ),
        (
            case("GroupQueryAttention", numbers(2, 1, 64), numbers(2, 1, 32), numbers(2, 1, 32),
                 *(numbers(2, 2, 8, 16),) * 2, np.asarray([3, 3], np.int32), np.asarray(4, np.int32), num_heads=4,
                 kv_num_heads=2, outputs=(0, 1, 2)),
            "it has a cache",
        ),
        (case("CDist", numbers(4, 3), numbers(5, 3), metric="chebyshev"), "its metric 'chebyshev'"),
        (case("FusedGemm", numbers(4, 3), numbers(3, 5), activation="Sinc"), "its activation 'Sinc' is unknown"),
    ],
    ids=str,
)  # fmt: skip
def test_forms_that_cannot_be_written_stay_with_a_reason(given: Case, reason: str) -> None:
    proto, feeds = model_of(given, np.float32)
    model = ir.from_proto(proto)
    try:
        (node,) = normalise(model, shapes={name: array.shape for name, array in feeds.items()}).model.graph
        said = node.metadata_props[NOT_EXPANDED]
    except ModelError as error:  # onnxruntime cannot run it either
        said = str(error)
    assert re.search(reason, said)


def test_a_range_that_is_fed_is_refused() -> None:
    proto, feeds = model_of(case("Range", *map(np.asarray, (1.0, 7.0, 2.0))), np.float32)
    with pytest.raises(ModelError, match=r"Range .* fix what decides: --set \w+=VALUE --set \w+=VALUE"):
        _load(proto, feeds)


def test_an_operator_that_nobody_defines_is_named_with_its_domain() -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Swirl", ["x"], ["y"], name="swirl", domain="com.example")],
        "unknown",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [onnx.helper.make_empty_tensor_value_info("y")],
    )
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.example", 1)]
    proto = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    with pytest.raises(ModelError, match=r"Swirl 'swirl' has no shape: .* domain 'com\.example'; export the model"):
        normalise(ir.from_proto(proto))


@pytest.mark.parametrize("body", ["branches", "steps"])
def test_bodies_are_expanded_too(body: str) -> None:
    if body == "branches":
        text = """g (float[2,8] x, bool c) => (float[2,8] y) {
            y = If (c) <
                then_branch = yes () => (float[2,8] a) { h = com.microsoft.BiasGelu (x, w)  a = Tanh (h) },
                else_branch = no () => (float[2,8] b) { b = com.microsoft.QuickGelu <alpha = 1.5> (x) }
            >
        }"""
    else:
        text = """g (float[3,8] x, float[8] s) => (float[8] t, float[3,8] y) {
            t, y = Scan <num_scan_inputs = 1, body = step (float[8] before, float[8] row)
                => (float[8] after, float[8] out) {
                h = com.microsoft.FastGelu (row, w)
                after = Add (before, h)
                out = com.microsoft.Gelu (after)
            }> (s, x)
        }"""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> {text}')
    proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers(8).astype(np.float32), "w"))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2 if body == "branches" else 3, 8)).astype(np.float32)}
    feeds |= {"c": np.asarray(True)} if body == "branches" else {"s": np.zeros(8, np.float32)}
    loaded = normalise(ir.from_proto(proto))
    assert {node.domain for node in ir.traversal.RecursiveGraphIterator(loaded.model.graph)} == {""}
    for want, found in zip(_run(proto, feeds), _run(ir.to_proto(loaded.model), feeds), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
