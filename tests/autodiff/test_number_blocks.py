"""Formulas that go number by number, in blocks: the same numbers, and less memory."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph
from ckplan.autodiff.builder import Device
from ckplan.autodiff.rules.elementwise import number_blocks
from ckplan.runtime.executing.executed import expected_timeline
from tests.autodiff.gradcheck import (
    build_training_graph,
    check_same_results,
    check_training_graph,
    onnxruntime_run,
    parse,
    values,
)

SHAPE = (3, 4, 16)
FORMULAS = {
    "Gelu": 'y = Gelu <approximate = "tanh"> (h)',
    "SiLU": "s = Sigmoid(h) y = Mul(s, h)",
    "Mish": "y = Mish(h)",
    "HardSwish": "y = HardSwish(h)",
}


@pytest.fixture(autouse=True)
def _small_tensors_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_blocks, "_BLOCK", 16)


def network(formula: str, shape: tuple[int, ...] = SHAPE, dtype: type = np.float32) -> ir.Model:
    kind = "double" if dtype is np.float64 else "float"
    text = f"g ({kind}[1] x) => ({kind} loss) {{ h = Mul(p0, x) {FORMULAS[formula]} z = Mul(y, y) "
    return parse(text + "loss = ReduceSum <keepdims = 0> (z) }", p0=values(*shape, low=-4.0, high=4.0).astype(dtype))


def trained(model: ir.Model, device: Device = "cpu") -> TrainingGraph:
    return build_training_graph(model, wrt=["p0"], device=device)


def scans(training: TrainingGraph) -> list[int]:
    """How many blocks each Scan goes over."""
    found = [node for node in training.model.graph if node.op_type == "Scan"]
    return [node.inputs[0].shape[0] for node in found]


@pytest.mark.parametrize("formula", ["Gelu", "SiLU", "Mish"])
def test_gradients_by_blocks(formula: str) -> None:
    training = trained(network(formula, dtype=np.float64))
    assert scans(training) == [math.prod(SHAPE) // 16]
    check_training_graph(training, {"x": np.ones(1)})


def test_second_derivatives_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def second() -> TrainingGraph:
        first = trained(network("Gelu", dtype=np.float64))
        return build_training_graph(first.model, loss="sum-of-squares:p0_grad", wrt=["p0"])

    blocks = second()
    assert set(scans(blocks)) == {math.prod(SHAPE) // 16}
    monkeypatch.setattr(number_blocks, "_FEWEST", 2**30)
    check_same_results(blocks, second(), {"x": np.ones(1)})


@pytest.mark.parametrize("formula", FORMULAS)
def test_blocks_have_the_bits_of_the_whole_and_take_less(formula: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_blocks, "_BLOCK", 2**8)
    blocks = trained(network(formula, (64, 1024)))
    monkeypatch.setattr(number_blocks, "_FEWEST", 2**30)
    whole = trained(network(formula, (64, 1024)))
    assert scans(blocks) == [256]
    assert not scans(whole)
    feeds = {"x": np.ones(1, np.float32)}
    expected = onnxruntime_run(whole.model, feeds)
    for name, found in onnxruntime_run(blocks.model, feeds).items():
        np.testing.assert_array_equal(found, expected[name])
    taken = [expected_timeline(training.model).peak_activations for training in (blocks, whole)]
    # As many tensors are whole in that of a SiLU, and three blocks beside them.
    assert taken[0] < taken[1] + (4 * 3 * 2**8 if formula == "SiLU" else -4 * 32 * 1024)


@pytest.mark.parametrize(("shape", "count"), [((7, 16), 0), ((9, 16), 9), ((2, 71), 0), ((5, 51), 15), ((251,), 0)])
def test_what_is_small_or_has_no_divisor_stays_whole(shape: tuple[int, ...], count: int) -> None:
    assert scans(trained(network("Gelu", shape))) == ([count] if count else [])


def test_kernels_of_a_gpu_see_all_numbers_at_once() -> None:
    assert not scans(trained(network("Gelu"), device="cuda"))
