"""The table of rules is consistent with ONNX and with itself."""

from __future__ import annotations

import onnx
import pytest

from ckplan.autodiff.registry import NON_DIFFERENTIABLE, ZERO_DERIVATIVE, entries, lookup, rule

OPERATORS = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
WITHOUT_RULE = {
    "GRU",
    "LSTM",
    "RNN",
}
LOWERED = {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.op_type}-{entry.since}")
def test_rules_are_for_operators_that_exist(entry):
    schema = onnx.defs.get_schema(entry.op_type, onnx.defs.onnx_opset_version(), entry.domain)
    assert entry.since <= onnx.defs.onnx_opset_version()
    assert schema.max_input == 2147483647 or all(index < schema.max_input for index in entry.fixed)
    assert entry.function.__doc__


def test_lists_are_disjoint_and_name_operators():
    ruled = {entry.op_type for entry in entries()}
    assert set(NON_DIFFERENTIABLE) <= OPERATORS
    assert set(ZERO_DERIVATIVE) <= OPERATORS
    assert not ruled & set(NON_DIFFERENTIABLE)
    assert not ruled & ZERO_DERIVATIVE
    assert not ZERO_DERIVATIVE & set(NON_DIFFERENTIABLE)
    assert not ruled & LOWERED


def test_lookup_takes_the_newest_rule_that_applies():
    assert lookup("ReduceMax", 17) is None
    found = lookup("ReduceMax", 30)
    assert found is not None
    assert found.since == 18
    assert lookup("Tanh", 21, "com.microsoft") is None


def test_an_operator_has_one_rule_per_version():
    with pytest.raises(ValueError, match="two gradient rules for Tanh since 1"):
        rule("Tanh")(lambda op, node, dy: [])


def differentiable(schema: onnx.defs.OpSchema) -> bool:
    """Floats in and floats out."""
    types = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}

    def floating(item: onnx.defs.OpSchema.FormalParameter) -> bool:
        return any("float" in kind for kind in types.get(item.type_str, [item.type_str]))

    return any(map(floating, schema.inputs)) and any(map(floating, schema.outputs))


def test_operators_without_a_rule_are_known():
    """A lost rule is noticed, and so is a new operator of onnx."""
    latest = onnx.defs.onnx_opset_version()
    known = {entry.op_type for entry in entries()} | set(NON_DIFFERENTIABLE) | ZERO_DERIVATIVE | LOWERED
    missing = set()
    for name in OPERATORS - known:
        schema = onnx.defs.get_schema(name, latest)
        has_body = schema.has_function or schema.has_context_dependent_function
        if not schema.deprecated and differentiable(schema) and not has_body:
            missing.add(name)
    assert missing <= WITHOUT_RULE
