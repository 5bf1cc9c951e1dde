"""What the user sees when the way from parameters to the loss is cut."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import ModelError
from tests.autodiff.gradcheck import parse

_W = np.ones((4, 3), np.float32)


def test_the_node_that_cuts_all_parameters_off_is_named() -> None:
    model = parse(
        """g (float[2,4] x) => (float[2] y) {
            h = MatMul (x, w)
            best = ArgMax <axis = 1, keepdims = 0> (h)
            y = Cast <to = 1> (best)
        }""",
        w=_W,
    )
    with pytest.raises(ModelError, match=r"no parameter reaches the loss .*ArgMax '.*' \(outputs integers\)"):
        build_training_graph(model, loss="mean:y")


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ("c = Greater (h, x)", "true or false"),
        ("c = Floor (h)", "is constant between its steps"),
        ("c = IsNaN (h)", "true or false"),
    ],
)
def test_the_reason_is_named(node: str, text: str) -> None:
    model = parse(
        f"""g (float[2,3] x) => (float[2,3] y) {{
            h = Mul (x, w)
            {node}
            y = Cast <to = 1> (c)
        }}""",
        w=_W[:1],
    )
    with pytest.raises(ModelError, match=text):
        build_training_graph(model, loss="mean:y")


def test_a_parameter_that_only_such_a_node_reads() -> None:
    model = parse("g (float[4,3] x) => (float[4,3] y) { r = Round (w)  y = Mul (x, r) }", w=_W)
    with pytest.raises(ModelError, match=r"no node of the model reads .* no gradient passes Round '") as refused:
        build_training_graph(model, loss="mean:y")
    assert "ckplan.export" in str(refused.value.hint)


def test_some_parameters_cut_off_are_noted_with_the_node() -> None:
    model = parse(
        """g (float[2,4] x) => (float[2,3] y) {
            h = MatMul (x, w)
            t = Tanh (h)
            r = Round (t)
            y = Mul (r, scale)
        }""",
        w=_W,
        scale=np.ones(3, np.float32),
    )
    training = build_training_graph(model, loss="mean:y")
    assert set(training.gradients) == {"scale"}
    assert any("no gradient passes Round" in note and "'w'" in note for note in training.notes)
