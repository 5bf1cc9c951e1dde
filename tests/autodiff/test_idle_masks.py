"""Masks that mask nothing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import infer, onnxruntime_run, values, weighed

SEEN = np.ones((2, 1, 5, 5), dtype=bool)
EVERY_KEY = {"seen": SEEN, "zero": np.zeros(()), "low": np.asarray(-1e9)}
CHOICE = onnx.helper.make_node("Where", ["seen", "zero", "low"], ["mask"])


def sums(mask: list[onnx.NodeProto], constants: dict[str, np.ndarray], operands: tuple[str, str]) -> list[str]:
    """Operators of the forward pass of a training graph behind a sum, whose values are checked."""
    nodes = [*mask, onnx.helper.make_node("Add", operands, ["s"]), onnx.helper.make_node("Tanh", ["s"], ["y0"])]
    arrays = {"p0": values(2, 4, 5, 5), **constants}
    model = weighed(nodes, [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()], ["y0"])
    training = build_training_graph(infer(model), wrt=["p0"])
    before, after = onnxruntime_run(infer(model)), onnxruntime_run(training.model)
    np.testing.assert_array_equal(after[training.loss], next(iter(before.values())))
    return [node.op_type for node in training.model.graph if "/grad/" not in str(node.name)]


@pytest.mark.parametrize("operands", [("p0", "mask"), ("mask", "p0")])
def test_a_sum_with_a_mask_of_zeros_is_left_out(operands):
    assert not {"Add", "Where"} & set(sums([CHOICE], EVERY_KEY, operands))
    assert "Add" not in sums([], {"mask": np.zeros((4, 1, 5))}, operands)


def test_where_a_condition_picks_the_other_table():
    other = {"seen": ~SEEN, "zero": np.asarray(-1e9), "low": np.zeros(())}
    assert "Add" not in sums([CHOICE], other, ("p0", "mask"))


def test_what_masks_or_broadcasts_stays():
    one_hidden = SEEN.copy()
    one_hidden[1, 0, 2, 3] = False
    assert {"Add", "Where"} <= set(sums([CHOICE], {**EVERY_KEY, "seen": one_hidden}, ("p0", "mask")))
    assert "Add" in sums([], {"mask": np.zeros((3, 2, 4, 5, 5))}, ("p0", "mask"))
    assert "Add" in sums([], {"mask": np.full((5,), 1e-30)}, ("p0", "mask"))


def test_a_parameter_that_is_zero_for_now_stays():
    assert "Add" in sums([], {"layer.bias": np.zeros(5)}, ("p0", "layer.bias"))
