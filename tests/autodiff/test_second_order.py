"""Gradients of gradients: training graphs that are differentiated again, from memory and from their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.errors import ModelError
from ckplan.model.files.own_files import forget_training
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, reference, values
from tests.autodiff.test_engine import FEEDS, MLP, WEIGHTS

PLANS = ["none", "sqrt", "memory"]


def first() -> TrainingGraph:
    return build_training_graph(parse(MLP, **WEIGHTS))


def single() -> TrainingGraph:
    return build_training_graph(
        parse(MLP.replace("double", "float"), **{k: v.astype(np.float32) for k, v in WEIGHTS.items()})
    )


def hessian_product(training: TrainingGraph, feeds: dict, direction: dict, step: float = 1e-5) -> dict:
    """Differences of gradients along a direction of the parameters."""
    ends = []
    for sign in (1, -1):
        moved = training.model.clone()
        for name, array in direction.items():
            value = moved.graph.initializers[name]
            value.const_value = ir.tensor(value.const_value.numpy() + sign * step * array, name=name)
        ends.append(reference(moved, feeds))
    return {name: (ends[0][grad] - ends[1][grad]) / (2 * step) for name, grad in training.gradients.items()}


def test_product_of_the_hessian_and_a_vector():
    training = first()
    second = build_training_graph(training.model, grad_ys=list(training.gradients.values()))
    assert list(second.gradients) == ["w1", "b1", "w2"]
    direction = {name: values(*array.shape, seed=7) for name, array in WEIGHTS.items()}
    given = {f"{training.gradients[name]}_given_grad": array for name, array in direction.items()}
    found = reference(second.model, {**FEEDS, **given})
    expected = hessian_product(training, FEEDS, direction)
    for name, array in expected.items():
        np.testing.assert_allclose(found[second.gradients[name]], array, rtol=1e-6, atol=1e-7, err_msg=name)


def test_penalty_on_the_norm_of_the_gradient():
    training = first()
    losses = ["loss", *(f"sum-of-squares:{name}" for name in training.gradients.values())]
    second = build_training_graph(training.model, loss=losses)
    assert second.notes == ()
    check_training_graph(second, FEEDS)


def test_third_derivatives():
    second = build_training_graph(first().model, loss="sum:w1_grad", wrt=["w1", "w2"])
    third = build_training_graph(second.model, loss=f"sum:{second.gradients['w1']}")
    check_training_graph(third, FEEDS)


@pytest.mark.parametrize("plan", PLANS)
def test_a_file_is_read_as_what_it_computes(plan: str, tmp_path: Path):
    training = single()
    problem = ckplan.problem_of(training.model)
    emitted = ckplan.emit(training.model, ckplan.parse_strategy(plan).solve(problem))
    ckplan.save(emitted, tmp_path / "training.onnx")
    forward = ckplan.load(tmp_path / "training.onnx")
    assert "the model is a training graph of 'loss'" in forward.notes[0]
    keys = {key for node in forward.model.graph for key in node.metadata_props}
    assert not keys & {"pkg.ckplan.phase", "pkg.ckplan.role", "pkg.ckplan.recompute_of"}
    assert len(forward.model.graph) <= len(training.model.graph)
    assert [value.name for value in forward.model.graph.inputs] == ["x"]
    second = build_training_graph(forward.model, loss=["loss", "sum-of-squares:w1_grad"])
    assert (list(second.gradients), second.notes) == (["w1", "b1", "w2"], ())
    onnx.checker.check_model(ir.to_proto(second.model), full_check=True)
    feeds = {"x": FEEDS["x"].astype(np.float32)}
    direct = build_training_graph(training.model, loss=["loss", "sum-of-squares:w1_grad"])
    found, expected = onnxruntime_run(second.model, feeds), onnxruntime_run(direct.model, feeds)
    for name, gradient in direct.gradients.items():
        np.testing.assert_allclose(found[second.gradients[name]], expected[gradient], rtol=1e-4, atol=1e-4)
    # And the second training graph can be planned in turn.
    problem = ckplan.problem_of(second.model)
    planned = ckplan.emit(second.model, ckplan.parse_strategy("sqrt").solve(problem))
    again = onnxruntime_run(planned, feeds)
    for gradient in second.gradients.values():
        np.testing.assert_array_equal(again[gradient], found[gradient])


def test_parameters_that_were_frozen_stay_so_unless_asked_for():
    training = build_training_graph(parse(MLP, **WEIGHTS), no_grad=["b1"])
    assert list(build_training_graph(training.model).gradients) == ["w1", "w2"]
    assert list(build_training_graph(training.model, wrt=["b1"]).gradients) == ["b1"]


def test_the_loss_of_a_training_graph_is_its_own():
    text = MLP.replace("(double loss)", "(double loss, double scalar)").replace("(s)\n", "(s) scalar = Mul(loss, p)\n")
    training = build_training_graph(parse(text, p=np.float64(2), **WEIGHTS), loss="scalar", wrt=["p"])
    again = build_training_graph(training.model)
    assert (training.gradients, again.loss) == ({"p": "p_grad"}, "scalar")


def test_other_models_are_left_alone():
    model = parse(MLP, **WEIGHTS)
    before = ir.to_proto(model).SerializeToString()
    assert forget_training(model) == ()
    assert ir.to_proto(model).SerializeToString() == before


def test_damaged_metadata():
    model = first().model
    model.metadata_props["pkg.ckplan.parameters"] = "w1, w2"
    with pytest.raises(ModelError, match=r"the metadata entry `pkg.ckplan.parameters` is damaged"):
        forget_training(model)
