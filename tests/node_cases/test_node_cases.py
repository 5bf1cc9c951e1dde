"""The onnx package's own test cases as gradient cases; all of them: ``python -m benchmarks.node_tests``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.node_cases.cases import Case, all_cases, holds_float_path
from tests.node_cases.check import FAILED, MISSING, PASSED, SKIPPED, check

_KNOWS_OPSET_28 = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 32)
_NEEDS_OPSET_28 = {
    "test_attention_local_window_gqa_rank4_mask": "onnx cannot tell its shapes, and onnxruntime knows no opset 28"
}
REFUSED = {
    **({} if _KNOWS_OPSET_28 else _NEEDS_OPSET_28),
    **dict.fromkeys(
        ("test_unique_bfloat16_sorted_without_axis", "test_unique_sorted_with_axis", "test_unique_sorted_without_axis"),
        "what is unique is another number with other data",
    ),
}
"""Cases that ckplan refuses in so many words, and why."""

_MOST_NUMBERS = 3000
"""Cases with more numbers in their inputs are left to the benchmark: they check no other rule."""


def _size(case: Case) -> int:
    weights = sum(int(np.prod(tensor.dims)) for tensor in case.model.graph.initializer)
    return weights + sum(np.size(value) for value in case.inputs if not isinstance(value, list))


def _form(case: Case) -> tuple[object, ...]:
    """Cases of one form check one thing: the same operators with the same attributes set."""
    attributes = {attribute.name for node in case.model.graph.node for attribute in node.attribute}
    return (case.kind, case.operators, frozenset(attributes - {"value"}))


def chosen() -> list[Case]:
    """The smallest case of each form among those of single operators, in a fixed order."""
    best: dict[tuple[object, ...], Case] = {}
    for case in all_cases():
        small = _size(case) <= _MOST_NUMBERS and holds_float_path(case)
        if not small or len(case.model.graph.node) > 1:
            continue
        form = _form(case)
        if form not in best or _size(case) < _size(best[form]):
            best[form] = case
    return list(best.values())


@pytest.mark.parametrize("case", chosen(), ids=lambda case: case.name)
def test_case(case: Case) -> None:
    outcome = check(case)
    if case.name in REFUSED:
        assert outcome.reason.startswith("refused")
        return
    if outcome.status == SKIPPED:
        pytest.skip(outcome.reason)
    if outcome.status == MISSING:
        pytest.skip(f"no gradient yet: {outcome.reason}")
    assert outcome.status == PASSED, outcome.reason
    assert outcome.slopes or any(np.size(value) == 0 for value in case.inputs)


def _case(node: onnx.NodeProto, *inputs: np.ndarray, outputs: list[np.ndarray]) -> Case:
    def declared(names: Sequence[str], arrays: Sequence[np.ndarray]) -> list[onnx.ValueInfoProto]:
        pairs = zip(names, arrays, strict=True)
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in pairs]

    graph = helper.make_graph([node], "g", declared(node.input, inputs), declared(node.output, outputs))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return Case("made", "node", model, inputs, outputs)


X = np.asarray([[0.5, -1.5], [2.0, 3.0]], dtype=np.float32)


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case(helper.make_node("Tanh", ["x"], ["y"]), X, outputs=[np.tanh(X)])
    assert check(case).status == PASSED
    from ckplan.operators import gradients

    wrong = gradients.Entry(lambda op, node, dy: [op.Mul(dy[0], 1.001)], "Tanh", "", 1, frozenset(), "apply")
    monkeypatch.setitem(gradients._RULES, ("", "Tanh"), [wrong])
    outcome = check(case)
    assert outcome.status == FAILED
    assert "slope" in outcome.reason


def test_a_lost_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case(helper.make_node("Mul", ["x", "w"], ["y"]), X, X + 1, outputs=[X * (X + 1)])
    assert check(case).status == PASSED
    from ckplan.operators import gradients

    def half(op, node, dy):
        return [op.Mul(dy[0], node.inputs[1]), None]

    entry = gradients.Entry(half, "Mul", "", 1, frozenset(), "apply")
    monkeypatch.setitem(gradients._RULES, ("", "Mul"), [entry])
    assert check(case).status == FAILED


def test_a_function_that_is_not_what_onnx_expects_is_not_trusted() -> None:
    case = _case(helper.make_node("Tanh", ["x"], ["y"]), X, outputs=[X])
    assert check(case).status == SKIPPED


def test_inputs_at_a_kink_are_shifted() -> None:
    x = np.zeros((2, 2), np.float32)
    outcome = check(_case(helper.make_node("Relu", ["x"], ["y"]), x, outputs=[x]))
    assert outcome.status == PASSED
    assert "kink" in outcome.reason


def test_a_step_function_has_no_gradient_and_no_slope() -> None:
    outcome = check(_case(helper.make_node("Floor", ["x"], ["y"]), X, outputs=[np.floor(X)]))
    assert outcome.status == PASSED
    assert "constant" in outcome.reason
