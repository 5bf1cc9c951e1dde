"""A Squeeze with an empty list of axes is one without axes, in every operator set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckplan
from ckplan.model import load
from tests.model.models import normal, parse, run, write

SQUEEZES = {
    11: "s = Squeeze <axes : ints = []> (p)",
    13: "a = Constant <value_ints : ints = []> () s = Squeeze(p, a)",
    21: "s = Squeeze(p, none)",
}


@pytest.mark.parametrize("opset", SQUEEZES)
def test_all_axes_of_one_element_go(tmp_path: Path, opset: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[1,3,1,4] x) => (float[3,4] y)
        <int64[0] none = {{}}> {{ p = Mul(x, w) {SQUEEZES[opset]} y = Mul(s, v) }}"""
    path = write(parse(text, {"w": normal(1, 1, 3, 1, 4), "v": normal(2, 3, 4)}), tmp_path)
    assert load(path).model.graph.outputs[0].shape == (3, 4)
    x = normal(3, 1, 3, 1, 4)
    training = ckplan.build_training_graph(path, loss="sum", wrt=["w", "v"])
    names = [output.name for output in training.model.graph.outputs]
    found = dict(zip(names, run(training.model, {"x": x}), strict=True))
    np.testing.assert_allclose(found[training.gradients["w"]], x * normal(2, 3, 4)[None, :, None], rtol=1e-6)
