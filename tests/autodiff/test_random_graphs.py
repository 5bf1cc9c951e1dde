"""Random models of 5 to 40 nodes; thousands of them: ``python -m benchmarks.random_graphs``."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.autodiff import random_graphs
from tests.autodiff.growing import Seeded
from tests.autodiff.random_check import check_model
from tests.autodiff.random_graphs import grow

SETTINGS = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck), "database": None}


class Drawn:
    """Decisions from hypothesis, which shrinks a model that fails."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def integer(self, low, high):
        return self.draw(st.integers(low, high))

    def pick(self, items):
        return items[self.draw(st.integers(0, len(items) - 1))]


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    return grow(Drawn(draw))


@settings(max_examples=60, **SETTINGS)
@given(models())
def test_gradients_are_slopes(model: onnx.ModelProto) -> None:
    assert not check_model(model, runtime=False).problem


@pytest.mark.parametrize("seed", range(140))
def test_gradients_of_seeded_models(seed: int) -> None:
    """Hypothesis likes small models; these are of all sizes, and run in onnxruntime too."""
    found = check_model(grow(Seeded(seed)), runtime=seed % 4 == 0)
    assert not found.problem


@pytest.mark.parametrize("seed", [*range(1000, 1015), 4800422])
def test_recomputed_gradients_are_the_same_bits(seed: int) -> None:
    assert not check_model(grow(Seeded(seed)), recompute=True).problem


def test_the_models_cover_what_they_should():
    kinds, sizes, twice = set(), [], 0
    for seed in range(120):
        model = grow(Seeded(seed))
        kinds |= {node.op_type for node in model.graph.node}
        sizes.append(len(model.graph.node))
        twice += any(len(set(node.input)) < len(node.input) for node in model.graph.node)
    assert {"Conv", "ConvTranspose", "MaxPool", "Attention", "Gather", "ScatterND", "TopK", "Split", "Pad"} <= kinds
    assert len(kinds) > 70
    assert min(sizes) >= 5
    assert np.percentile(sizes, 90) > 30
    assert twice > 30


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from ckplan.autodiff.registry import collect
    from ckplan.operators import gradients

    collect()  # else the rule would be registered a second time

    def wrong(op, node, dy):
        return [op.Mul(dy[0], op.Mul(node.outputs[0], 0.999))]

    monkeypatch.setitem(gradients._RULES, ("", "Tanh"), [gradients.Entry(wrong, "Tanh", "", 1, frozenset(), "apply")])
    monkeypatch.setattr(random_graphs, "STEPS", [random_graphs.unary, random_graphs.matmul])
    assert check_model(grow(Seeded(3)), runtime=False).problem
