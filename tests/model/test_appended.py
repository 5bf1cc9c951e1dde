"""Sequences that a Loop appends to, as scripted programs of torch have them, become scan outputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import UnsupportedOperatorsError
from ckplan.model import normalise
from tests.autodiff.control_flow.models import check
from tests.model.models import normal, parse, run

APPEND = "so = SequenceInsert(s, r)"
STACK = "y = ConcatFromSequence<axis = 1, new_axis = 1>(rows)"


def loop(append: str = APPEND, join: str = STACK) -> onnx.ModelProto:
    """A recurrence whose steps are put in a sequence; it has another scan output and another state."""
    return parse(
        f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (double[2, 4] x) => (double[] y, double[] h, double[] twice) {{
            n = Constant<value_int = 3>()
            go = Constant<value = bool {{1}}>()
            empty = SequenceEmpty<dtype = 11>()
            rows, h, twice = Loop(n, go, empty, x) <body = b
                (int64 i, bool goes, seq(double[2, 4]) s, double[2, 4] before) =>
                (bool on, seq(double[2, 4]) so, double[2, 4] r, double[2, 4] q) {{
                    m = MatMul(before, W)
                    r = Tanh(m)
                    q = Add(r, r)
                    {append}
                    on = Identity(goes)
                }}
            >
            {join}
        }}""",
        {"W": normal(0, 4, 4).astype(np.float64)},
    )


JOINS = {
    **{f"stack {axis}": f"y = ConcatFromSequence<axis = {axis}, new_axis = 1>(rows)" for axis in (0, 1, 2, -1, -3)},
    **{f"join {axis}": f"y = ConcatFromSequence<axis = {axis}>(rows)" for axis in (0, 1, -1)},
    "twice": "a = ConcatFromSequence<axis=0>(rows) b = ConcatFromSequence<axis = 0>(rows) y = Mul(a, b)",
}


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_what_is_appended_is_a_scan_output(join: str) -> None:
    model, given = loop(join=join), {"x": normal(1, 2, 4).astype(np.float64)}
    forward = normalise(ir.from_proto(model)).model
    assert not {"SequenceInsert", "ConcatFromSequence"} & {node.op_type for node in forward.graph.all_nodes()}
    for found, expected in zip(run(forward, given), run(model, given), strict=True):
        np.testing.assert_array_equal(found, expected)
    check(model, given, loss="sum")


@pytest.mark.parametrize(
    ("append", "join"),
    [
        ("k = Constant<value_int = 0>() so = SequenceInsert(s, r, k)", STACK),
        ("so0 = SequenceInsert(s, r) so = SequenceInsert(so0, q)", STACK),
        (APPEND, "k = SequenceLength(rows) f = Cast<to = 11>(k) z = ConcatFromSequence<axis = 0>(rows) y = Mul(z, f)"),
        (
            APPEND,
            "a = ConcatFromSequence<axis=0>(rows) b = ConcatFromSequence<axis=1>(rows) m = ReduceMax(b) y = Mul(a, m)",
        ),
    ],
)
def test_other_sequences_stay(append: str, join: str) -> None:
    model, given = loop(append, join), {"x": normal(1, 2, 4).astype(np.float64)}
    forward = normalise(ir.from_proto(model)).model
    for found, expected in zip(run(forward, given), run(model, given), strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(UnsupportedOperatorsError):
        build_training_graph(forward, loss="sum")
