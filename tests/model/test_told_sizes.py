"""Open sizes that the weight of a layer tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckplan.errors import ModelError
from ckplan.meter.facts import read_model
from ckplan.meter.inputs import make_inputs
from ckplan.model import load
from tests.model.models import normal, parse, write

W = normal(0, 5, 3)
TELLING = {
    "product": ("y = MatMul (x, w)", {"w": W}, "w"),
    "Gemm": ("y = Gemm (x, w)", {"w": W}, "w"),
    "transposed Gemm": ("y = Gemm <transB = 1> (x, w)", {"w": normal(0, 3, 5)}, "w"),
    "behind a scale": ("h = Mul (x, s) y = MatMul (h, w)", {"s": normal(0, 5), "w": W}, "w"),
    "a scale alone": ("h = Mul (x, s) y = Softmax (h)", {"s": normal(0, 5)}, "s"),
    "behind one number": ("h = Sub (x, s) y = MatMul (h, w)", {"s": normal(0, 1), "w": W}, "w"),
    "cast twice": ("d = Cast <to = 11> (x) h = Cast <to = 1> (d) y = MatMul (h, w)", {"w": W}, "w"),
}


@pytest.mark.parametrize("kind", TELLING)
@pytest.mark.parametrize("name", ["?", "features", "2*d + 1"])
def test_a_weight_tells_how_many_features_there_are(kind: str, name: str, tmp_path: Path) -> None:
    body, weights, telling = TELLING[kind]
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[batch, F] x) => (float[batch, k] y) {{ {body} }}'
    model = parse(text, weights)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = name
    path = write(model, tmp_path)
    forward = load(path)
    assert [list(value.shape or ()) for value in forward.model.graph.inputs] == [[8, 5]]
    what = "input 'x': dimension 1" if name == "?" else f"dimension '{name}'"
    assert f"{what} is 5, as '{telling}' tells" in forward.notes
    inputs = make_inputs(read_model(path))
    assert inputs.arrays["x"].shape == (8, 5), "and what is measured is fed as many"


def test_a_filter_tells_how_many_channels_there_are(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, C, H, W] x) => (float[N, k, h, v] y) { y = Conv <group = 2> (x, w) }
    """
    forward = load(write(parse(text, {"w": normal(0, 4, 3, 3, 3)}), tmp_path))
    assert list(forward.model.graph.inputs[0].shape or ())[:2] == [8, 6]


def test_what_is_given_is_taken(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, features] x) => (float[batch, k] y) { y = MatMul (x, w) }
    """
    path = write(parse(text, {"w": W}), tmp_path)
    for given in ({"dims": {"features": 4}}, {"shapes": {"x": (2, 4)}}):
        with pytest.raises(ModelError, match=r"MatMul .* does not fit its inputs"):
            load(path, **given)  # type: ignore[arg-type]


def test_a_batch_is_not_told(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 5] x) => (float[batch, 3] y) { h = Add (x, b) y = MatMul (h, w) }
    """
    forward = load(write(parse(text, {"b": normal(0, 1, 5), "w": W}), tmp_path))
    assert "dimension 'batch' is 8 by default" in forward.notes
