"""Records of operators: each stands for an operator that exists, and others can be added for other domains."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ckplan.errors import UsageError
from ckplan.model.costs import node_cost
from ckplan.model.traits import is_heavy, why_only_once
from ckplan.operators import table
from ckplan.operators.costs import Cost
from ckplan.operators.record import MICROSOFT, Operator
from ckplan.operators.table import STANDARD, operator_of, register_operator
from ckplan.runtime.cpu import CPU
from ckplan.runtime.kernels.memory_use import overwritable, view_source
from ckplan.runtime.kernels.workspace import workspace_of


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_OTHERS", {})


def node(op_type: str, domain: str = "my.ops", **attributes: float) -> ir.Node:
    x = ir.Value(name="x", shape=ir.Shape([4, 8]), type=ir.TensorType(ir.DataType.FLOAT))
    made = ir.node(op_type, [x], attributes, domain=domain, name="node")
    made.outputs[0].name, made.outputs[0].shape, made.outputs[0].type = "y", x.shape, x.type
    return made


def test_records_are_of_operators_that_exist() -> None:
    defined = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    strange = {name for name, operator in STANDARD.items() if not operator.domain and name not in defined}
    assert not strange
    assert {operator.domain for operator in STANDARD.values()} == {"", MICROSOFT}


def test_what_is_not_said_is_the_ordinary() -> None:
    unknown = node("Fancy")
    assert operator_of(unknown) == Operator("Fancy", "my.ops")
    assert node_cost(unknown) == Cost(32, 256)
    assert not is_heavy(unknown)


def test_an_operator_of_another_domain_is_not_its_namesake() -> None:
    for op_type in ("Reshape", "Tanh", "Conv", "RandomNormalLike"):
        namesake = node(op_type)
        assert view_source(namesake) is None
        assert overwritable(namesake) is None
        assert not is_heavy(namesake)
        assert not why_only_once(namesake)
    assert view_source(node("Reshape", "")) is not None
    assert is_heavy(node("Conv", "com.microsoft.nchwc"))


def test_a_record_of_ones_own_is_heeded_everywhere(others: None) -> None:
    register_operator(
        Operator(
            "Fancy",
            domain="my.ops",
            cost=lambda node: Cost(7, 11),
            heavy=True,
            random=True,
            in_place=True,
            workspace=lambda node: 4096,
        )
    )
    fancy = node("Fancy")
    assert node_cost(fancy) == Cost(7, 11)
    assert is_heavy(fancy)
    assert overwritable(fancy) is fancy.inputs[0]
    assert workspace_of(fancy, CPU.threads) == 4096
    assert "Fancy draws random numbers" in why_only_once(fancy)


@pytest.mark.parametrize("operator", [Operator("Tanh"), Operator("New", MICROSOFT), Operator("Fancy", "my.ops")])
def test_no_operator_has_two_records(others: None, operator: Operator) -> None:
    table._OTHERS["my.ops", "Fancy"] = Operator("Fancy", "my.ops")
    with pytest.raises(UsageError, match=f"a record of {operator.name}"):
        register_operator(operator)
