"""The table of rules is consistent with ONNX and with itself."""

from __future__ import annotations

import onnx
import pytest

from ckplan.autodiff.losses.crossentropy import LOSS_OPERATORS
from ckplan.autodiff.registry import NON_DIFFERENTIABLE, ZERO_DERIVATIVE, entries, lookup, rule
from ckplan.errors import UsageError
from ckplan.model.normal_form.opset import MINIMUM_OPSET

OPERATORS = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}


STANDARD = [entry for entry in entries() if not entry.domain]


@pytest.mark.parametrize("entry", STANDARD, ids=lambda entry: f"{entry.op_type}-{entry.since}")
def test_rules_are_for_operators_that_exist(entry):
    schema = onnx.defs.get_schema(entry.op_type, onnx.defs.onnx_opset_version())
    assert entry.since <= onnx.defs.onnx_opset_version()
    named = entry.fixed | entry.settings
    assert schema.max_input == 2147483647 or all(index < schema.max_input for index in named)
    assert entry.function.__doc__


def test_lists_are_disjoint_and_name_operators():
    ruled = {entry.op_type for entry in entries()}
    assert set(NON_DIFFERENTIABLE) <= OPERATORS
    assert set(ZERO_DERIVATIVE) <= OPERATORS
    assert not ruled & set(NON_DIFFERENTIABLE)
    assert not ruled & ZERO_DERIVATIVE
    assert not ZERO_DERIVATIVE & set(NON_DIFFERENTIABLE)
    assert ruled.isdisjoint(LOSS_OPERATORS)


def test_lookup_takes_the_newest_rule_that_applies():
    assert lookup("ReduceMax", 17) is None
    found = lookup("ReduceMax", 30)
    assert found is not None
    assert found.since == 18
    assert lookup("Tanh", 21, "com.microsoft") is None


def test_an_operator_has_one_rule_per_version():
    with pytest.raises(UsageError, match="two gradient rules for Tanh since 1"):
        rule("Tanh")(lambda op, node, dy: [])


def puts_out_floats(schema: onnx.defs.OpSchema) -> bool:
    types = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    return any("float" in kind for item in schema.outputs for kind in types.get(item.type_str, [item.type_str]))


def test_every_operator_of_every_version_is_in_one_class():
    """Whatever outputs floats has a rule, a function body, a zero derivative or a reason; nothing has two of them."""
    latest = onnx.defs.onnx_opset_version()
    ruled = {entry.op_type for entry in STANDARD}
    classes = [ruled, set(NON_DIFFERENTIABLE), ZERO_DERIVATIVE, LOSS_OPERATORS]
    unclassified = []
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or not puts_out_floats(schema):
            continue
        newest = onnx.defs.get_schema(schema.name, latest)
        # Files that hold a deprecated operator are lifted, and constants become initializers.
        if newest.deprecated or schema.name == "Constant":
            continue
        found = sum(schema.name in names for names in classes)
        assert found <= 1, schema.name
        has_body = newest.has_function or newest.has_context_dependent_function
        if not found and not has_body:
            unclassified.append(schema.name)
    assert unclassified == []


@pytest.mark.parametrize("op_type", sorted({name for name in OPERATORS if lookup(name, 10**6) is not None}))
def test_rules_hold_from_the_oldest_operator_set_that_is_left_after_loading(op_type):
    """Files are lifted to at least that version; what is older has no rule of its own."""
    first = min(s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type and not s.domain)
    assert lookup(op_type, max(first, MINIMUM_OPSET)) is not None
