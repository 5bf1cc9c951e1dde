"""Convolutions that take the mean over numbered bins, as heads of detectors hold them."""

from __future__ import annotations

import numpy as np
import pytest

import ckplan
from tests.model.models import normal, parse
from tests.model.torch_files import LINE, PREFIX

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[2,3,4] x) => (float[2,1,4] y) {
    h = Conv(x, "box.weight") p = Softmax<axis = 1>(h) y = Conv(p, "dfl.weight")
}"""


@pytest.mark.parametrize("known", [True, False], ids=["default exporter", "old exporter"])
@pytest.mark.parametrize(("spread", "trained"), [(0.0, False), (0.1, True)])
def test_numbers_of_bins_are_not_trained(known: bool, spread: float, trained: bool) -> None:
    """Though torch's default exporter calls them a parameter; anything but the numbers is one."""
    bins = np.arange(16, dtype=np.float32) + np.float32(spread) * normal(1, 16)
    model = parse(TEXT, {"box.weight": normal(0, 16, 3, 1), "dfl.weight": bins.reshape(1, 16, 1)})
    model.producer_name = "pytorch"
    if known:
        names = {"p_box": "box.weight", "p_dfl": "dfl.weight"}
        listed = "".join(f"{name}: PARAMETER target='{target}'\n" for name, target in names.items())
        model.graph.metadata_props.add(
            key=f"{PREFIX}.ExportedProgram.graph_signature", value=f"\n# inputs\n{listed}x: USER_INPUT"
        )
        for node, operands in zip(model.graph.node, ("%x, %p_box", "%h", "%p, %p_dfl"), strict=True):
            node.metadata_props.add(
                key=LINE, value=f"%made : [num_users=1] = call_function[target=f](args = ({operands}))"
            )
    step = ckplan.open_model(model, loss="mse")
    assert ("dfl.weight" in step.training.gradients) is trained
    assert any("'dfl.weight': counts from zero" in note for note in step.notes) is not trained
    assert "box.weight" in step.training.gradients
