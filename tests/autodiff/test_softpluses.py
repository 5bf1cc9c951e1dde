"""Softpluses with a threshold, as torch's exporter writes them, are the operator alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckplan.autodiff import TrainingGraph
from tests.autodiff.gradcheck import onnxruntime_run, reference, values
from tests.autodiff.written_formulas import between_products, forward_operators

NUMBERS = {
    "limit": np.asarray(20.0),
    "low": np.asarray(2.0),
    "beta": np.asarray(3.0),
    "other": np.asarray(2.0),
    "limits": np.full(4, 20.0),
}
PLAIN = "s = Softplus(h) above = Greater(h, limit) y = Where(above, h, s)"
STEEP = "a = Mul(h, beta) s = Softplus(a) d = Div(s, beta) above = Greater(a, limit) y = Where(above, h, d)"
LEFT_ALONE = {
    "a low threshold": PLAIN.replace("limit", "low"),
    "a threshold for each column": PLAIN.replace("limit", "limits"),
    "something else above": PLAIN.replace("Where(above, h, s)", "Where(above, s, h)"),
    "divided by another number": STEEP.replace("Div(s, beta)", "Div(s, other)"),
    "compared before it is scaled": STEEP.replace("Greater(a, limit)", "Greater(h, limit)"),
    "the mask is read elsewhere": PLAIN.replace("y =", "c =") + " f = Cast <to = 1> (above) y = Add(c, f)",
    "the softplus is read elsewhere": PLAIN.replace("y =", "c =") + " y = Add(c, s)",
}


def graph(nodes: str, dtype: str = "float", **options: Any) -> TrainingGraph:
    return between_products(nodes, (6, 3), 4, NUMBERS, dtype, **{"wrt": ["w", "right"], **options})


@pytest.mark.parametrize(
    ("nodes", "left"),
    [(PLAIN, {"Softplus": 1}), (STEEP, {"Mul": 1, "Softplus": 1, "Div": 1})],
    ids=["plain", "with a factor"],
)
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_nothing_of_the_choice_is_left_and_numbers_are_the_same(nodes, left, scale):
    joined, written = graph(nodes), graph(nodes, "double")
    formula = forward_operators(joined)
    formula.subtract(["MatMul", "MatMul", "Mul", "ReduceSum"])
    assert {name: count for name, count in formula.items() if count} == left
    assert forward_operators(written)["Where"] == 1  # exp(-20) is not lost in double precision
    feeds = scale * values(6, 3, seed=8)
    found = onnxruntime_run(joined.model, {"x": feeds.astype(np.float32)})
    expected = reference(written.model, {"x": feeds})
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5 * np.abs(array).max())


@pytest.mark.parametrize("nodes", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_another_choice_and_what_is_read_inside_are_left_alone(nodes):
    assert forward_operators(graph(nodes))["Where"] == 1


@pytest.mark.parametrize("options", [{"retain_grad": ["d"]}, {"no_grad": ["d"]}, {"wrt": ["w", "beta"]}])
def test_what_somebody_knows_inside_stays(options):
    assert forward_operators(graph(STEEP, **options))["Where"] == 1
