"""Training graphs that ckplan built, as measurement sees them: scaled losses, overflow in the backward pass, phases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import ckplan
from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.isolation.arrays import save_arrays
from ckplan.meter.facts import file_facts
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.meter.numbers.nonfinite import find_origin
from ckplan.meter.problems import describe_origin
from ckplan.meter.types import NonFinite
from tests.autodiff.gradcheck import parse, values

NETWORK = """
g (float[6,3] x) => (float loss) {
    a = MatMul(x, w1)
    h = Tanh(a)
    e = Exp(h)
    c = MatMul(e, w2)
    s = Mul(c, c)
    loss = ReduceSum <keepdims = 0> (s)
}
"""


def network(text: str = NETWORK, **options) -> TrainingGraph:
    weights = {"w1": values(3, 4).astype(np.float32), "w2": values(4, 2, seed=2).astype(np.float32)}
    return build_training_graph(parse(text, **weights), **options)


def origin(training: TrainingGraph, folder: Path, **feeds: np.ndarray):
    """What the search says of a run with these inputs whose gradients hold NaN."""
    ckplan.save(training.model, folder / "m.onnx")
    save_arrays(folder / "inputs", {"x": values(6, 3, seed=3).astype(np.float32), **feeds})
    order = [node.name or "" for node in training.model.graph]
    bad = [NonFinite("w1_grad", 1, 0)]
    return find_origin(request_for(folder / "m.onnx", folder / "inputs", "cpu", 1), bad, order)


def test_an_overflow_in_the_backward_pass_is_named_with_what_it_led_to(tmp_path: Path):
    found = origin(network(loss_scale="input"), tmp_path, loss_scale=np.asarray(1e38, np.float32))
    assert found is not None
    assert found.backward
    assert found.node.startswith("MatMul_")
    assert found.cause is not None
    assert (found.cause.kind, found.cause.op_type, found.cause.backward) == ("inf", "Mul", True)
    assert "/grad/" in found.cause.node
    text = describe_origin(found)
    assert f"the first NaN comes from {found.op_type} '{found.node}' in the backward pass" in text
    assert f"of an infinity that comes from Mul '{found.cause.node}' in the backward pass" in text


def test_infinite_inputs_have_no_cause(tmp_path: Path):
    found = origin(network(loss_scale=8), tmp_path, x=np.full((6, 3), np.inf, np.float32))
    assert found is not None
    assert (found.op_type, found.backward, found.cause) == ("MatMul", False, None)


def test_an_overflow_in_the_forward_pass_is_named(tmp_path: Path):
    text = NETWORK.replace("e = Exp(h)", "t = Mul(h, big) r = Exp(t) n = Neg(r) e = Add(r, n)")
    weights = {"w1": values(3, 4).astype(np.float32), "w2": values(4, 2, seed=2).astype(np.float32)}
    training = build_training_graph(parse(text, big=np.full(4, 200, np.float32), **weights), no_grad=["big"])
    found = origin(training, tmp_path)
    assert found is not None
    assert found.cause is not None
    assert (found.op_type, found.backward, found.cause.op_type, found.cause.backward) == ("Add", False, "Exp", False)


def test_verify_says_so(tmp_path: Path):
    training = network(loss_scale="8e37")
    ckplan.save(training.model, tmp_path / "scaled.onnx")
    paths = tmp_path / "scaled.onnx", tmp_path / "scaled.onnx"
    found = ckplan.verify(*paths, device="cpu", runs=1, threads=1, heap=False)
    assert any("of an infinity that comes from Mul" in problem for problem in found.problems)
    assert "cause" in found.to_json()["numerics"]["base_origin"]


def test_a_loss_scale_that_is_an_input_gets_a_plausible_value():
    made = make_inputs(network(loss_scale="input").model)
    assert made.arrays["loss_scale"] == 1024
    assert "input 'loss_scale' is the loss scale: 1024" in made.notes


@pytest.mark.parametrize("order", [1, 2])
def test_phases_are_those_of_the_file(order: int):
    training = network()
    if order == 2:
        training = build_training_graph(training.model, loss="sum-of-squares:w1_grad")
    facts = file_facts(training.model)
    backward = [node.name for node in training.model.graph if node.metadata_props["pkg.ckplan.phase"] == "backward"]
    assert {name for name in facts.order if facts.is_backward(name)} == set(backward)
    assert facts.is_backward("fused/grad/MatMul_0")
    assert not facts.is_backward("fused")


def test_fields_of_the_metadata_survive_a_file(tmp_path: Path):
    training = network(retain_grad=["h"], loss_scale="input")
    ckplan.save(training.model, tmp_path / "m.onnx")
    properties = ir.load(tmp_path / "m.onnx").metadata_props
    assert properties["pkg.ckplan.retained_gradients"] == '{"h": "h_grad"}'
    assert properties["pkg.ckplan.loss_scale"] == "loss_scale"
