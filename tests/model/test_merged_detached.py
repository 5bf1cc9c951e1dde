"""What torch's optimiser merged although the module detaches what one of two terms reads."""

from __future__ import annotations

import onnx
import pytest

from ckplan.model.torch_files.exporter_metadata import LINE
from tests.model.models import normal
from tests.model.torch_files import exported, loaded

NODES = "mm = MatMul(x, a.weight) tanh = Tanh(mm) sub = Sub(tanh, mm) mul = Mul(sub, sub) y = Add(mul, mul)"
MERGED = "merged values that are equal but for what the module detaches ('mul_1' with 'mul')"


def file_with(sub: str, add: str, users: int = 1) -> onnx.ModelProto:
    """A file of a square of a difference, of which the last line reads the square twice.

    Args:
        sub: what the line of the difference reads.
        add: what the last line reads.
        users: how many lines of the program read the difference.
    """
    lines = [
        "aten.mm](args = (%x, %p_a_weight))",
        "aten.tanh](args = (%mm,))",
        f"aten.sub](args = ({sub}))",
        "aten.mul](args = (%sub, %sub))",
        f"aten.add](args = ({add}))",
    ]
    model = exported(NODES, {"a.weight": normal(0, 4, 4)}, {"p_a_weight": ("PARAMETER", "a.weight")}, lines)
    for node in model.graph.node:
        (line,) = [entry for entry in node.metadata_props if entry.key == LINE]
        line.value = line.value.replace("%made", f"%{node.output[0]}")
        if node.output[0] == "sub":
            line.value = line.value.replace("num_users=1", f"num_users={users}")
    return model


def test_terms_that_differ_in_what_is_detached_are_named() -> None:
    _, notes = loaded(file_with("%tanh, %detach", "%mul, %mul_1"))
    assert MERGED in notes
    assert "ckplan.export keeps them apart" in notes


@pytest.mark.parametrize(
    ("sub", "add", "users"),
    [
        pytest.param("%tanh, %mm", "%mul, %mul_1", 1, id="nothing is detached"),
        pytest.param("%tanh, %detach", "%mul, %mul", 1, id="nothing was merged"),
        pytest.param("%tanh, %detach", "%mul, %mul_1", 2, id="merged behind what both share"),
        pytest.param("%tanh, %detach", "%mul, %sin", 1, id="another operation"),
    ],
)
def test_others_are_not(sub: str, add: str, users: int) -> None:
    assert "equal but for what the module detaches" not in loaded(file_with(sub, add, users))[1]
