"""Inputs that are fixed as constants, and branches that fall away with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckplan.errors import ModelError, UsageError
from ckplan.model import load
from tests.model.models import normal, parse, run, write

# Two sample rates in one voice model: each branch is meant for its own length of x.
RATES = """
<ir_version: 8, opset_import: ["" : 17]>
voice (float[1, 32] x, int64 sr) => (float[1, 4] y) <int64 low = {8000}>
{
    is_low = Equal (sr, low)
    y = If (is_low) <
        then_branch = slow () => (float[1, 4] a) { a = MatMul (x, w8) },
        else_branch = fast () => (float[1, 4] b) { b = MatMul (x, w16) }
    >
}
"""
WEIGHTS = {"w8": normal(0, 16, 4), "w16": normal(1, 32, 4)}


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    return write(parse(RATES, WEIGHTS), tmp_path)


def test_the_branch_for_another_size_falls_away(voice: Path) -> None:
    forward = load(voice, fixed={"sr": 16000})
    assert [node.op_type for node in forward.model.graph] == ["MatMul"]
    assert set(forward.model.graph.initializers) == {"w16"}
    assert [value.name for value in forward.model.graph.inputs] == ["x"]
    assert "input 'sr' is set to 16000" in forward.notes
    x = normal(5, 1, 32)
    np.testing.assert_allclose(run(forward.model, {"x": x})[0], x @ WEIGHTS["w16"], rtol=1e-5, atol=1e-5)


def test_a_long_list_of_numbers_is_cut_short_in_the_note(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x, int64[2, 40] edges) => (float[40] y) {
        a, b = Split (edges) c = Squeeze (a) y = Gather (x, c)
    }"""
    forward = load(write(parse(text), tmp_path), fixed={"edges": [index % 4 for index in range(80)]})
    assert "input 'edges' is set to 0, 1, 2, 3, 0 and 75 more" in forward.notes


def test_the_error_names_the_option(voice: Path) -> None:
    with pytest.raises(ModelError, match=r"in a branch does not fit its inputs.*--set sr=VALUE"):
        load(voice)


TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 3] x, float scale, int64[k] axes, bool[n, 3] keep) => (float[n, 1] y)
{
    scaled = Mul (x, scale)
    zero = Sub (scaled, scaled)
    masked = Where (keep, scaled, zero)
    y = ReduceSum <keepdims = 1> (masked, axes)
}
"""


def test_numbers_lists_and_truth(tmp_path: Path) -> None:
    path = write(parse(TEXT), tmp_path)
    forward = load(path, dims={"n": 2}, fixed={"scale": 2.5, "axes": (1,), "keep": True})
    assert [value.name for value in forward.model.graph.inputs] == ["x"]
    x = normal(0, 2, 3)
    np.testing.assert_allclose(run(forward.model, {"x": x})[0], 2.5 * x.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"speed": 1}, "no input 'speed' to set; its inputs are"),
        ({"axis": 1}, "no input 'axis' to set; did you mean `axes`"),
        ({"axes": (1.5,)}, "cannot be 1.5; give whole numbers"),
        ({"keep": 2}, "cannot be 2; give true or false"),
        ({"keep": (True, False)}, "has 6 elements, 2 were given"),
        ({"scale": None}, "input 'scale' cannot be None; give numbers"),
    ],
    ids=["unknown", "nearly known", "fraction", "no truth", "too few", "nothing"],
)
def test_what_does_not_fit(tmp_path: Path, fixed: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(write(parse(TEXT), tmp_path), dims={"n": 2}, fixed=fixed)
