"""Dropout in training form: masks, their seeds, and what is read of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan import keys
from ckplan.errors import ModelError
from tests.autodiff.gradcheck import onnxruntime_run, parse, values


def dropped(inputs: str = "r, yes", attributes: str = "", **constants: np.ndarray) -> ir.Model:
    given = {"r": np.float32(0.25), "yes": np.array(False), **constants}
    used = {name: np.asarray(array) for name, array in given.items() if name in inputs.split(", ")}
    comma = ", " if inputs else ""
    return parse(
        f"""g () => (float loss) {{
            h = Tanh (p)
            d = Dropout{attributes} (h{comma}{inputs})
            q = Mul (d, w)
            loss = ReduceSum <keepdims = 0> (q)
        }}""",
        p=values(6, 50).astype(np.float32),
        w=values(6, 50, seed=1).astype(np.float32),
        **used,
    )


def with_mask(training: ckplan.TrainingGraph) -> tuple[ir.Model, str]:
    """The model with the mask among its outputs."""
    (mask,) = (node.outputs[0] for node in training.model.graph if keys.ONCE in node.metadata_props)
    training.model.graph.outputs.append(mask)
    return training.model, str(mask.name)


@pytest.mark.parametrize(("inputs", "ratio"), [("r, yes", 0.25), ("r", 0.25), ("", 0.5)])
def test_dropout_drops_and_scales(inputs, ratio):
    training = ckplan.build_training_graph(dropped(inputs), training=True, wrt=["p"])
    model, name = with_mask(training)
    ran = onnxruntime_run(model)
    mask = ran[name]
    assert mask.dtype == np.bool_
    assert mask.mean() == pytest.approx(1 - ratio, abs=0.1)
    h, w = np.tanh(values(6, 50)), values(6, 50, seed=1)
    np.testing.assert_allclose(ran[training.loss], (h * mask / (1 - ratio) * w).sum(), rtol=1e-4)
    np.testing.assert_allclose(ran["p_grad"], w * mask / (1 - ratio) * (1 - h**2), rtol=1e-4, atol=1e-6)


def test_a_fed_ratio():
    model = dropped("r")
    ratio = model.graph.initializers["r"]
    del model.graph.initializers["r"]
    model.graph.inputs.append(ratio)
    ratio.const_value = None
    training = ckplan.build_training_graph(model, training=True, wrt=["p"])
    model, name = with_mask(training)
    for share in (0.1, 0.75):
        ran = onnxruntime_run(model, {"r": np.array(share, np.float32)})
        mask, h, w = ran[name], np.tanh(values(6, 50)), values(6, 50, seed=1)
        assert mask.mean() == pytest.approx(1 - share, abs=0.1)
        np.testing.assert_allclose(ran["p_grad"], w * mask / (1 - share) * (1 - h**2), rtol=1e-4, atol=1e-6)


def test_each_step_draws_a_mask_of_its_own_and_each_session_the_same_ones():
    model, name = with_mask(ckplan.build_training_graph(dropped(), training=True))
    content = ir.to_proto(model).SerializeToString()

    def masks() -> list[np.ndarray]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return [session.run([name], {})[0] for _ in range(3)]

    first, second = masks(), masks()
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(first, second)


def test_seeds_are_those_of_the_file_or_follow_names():
    def seed(model: ir.Model) -> float:
        graph = ckplan.build_training_graph(model, training=True).model.graph
        return next(node.attributes["seed"].as_float() for node in graph if node.op_type == "RandomUniformLike")

    assert seed(dropped(attributes=" <seed = 7>")) == 7
    other = dropped()
    next(node for node in other.graph if node.op_type == "Dropout").name = "another"
    assert seed(dropped()) == seed(dropped()) != seed(other)


def test_a_mask_is_drawn_once_and_its_use_may_be_repeated():
    problem = ckplan.problem_of(ckplan.build_training_graph(dropped(), training=True).model)
    held = {problem.tensors[tensor].name for tensor in problem.always_held}
    named = {tensor.name: tensor for tensor in problem.tensors}
    (mask,) = (name for name in held if "GreaterOrEqual" in name)
    assert named[mask].bytes == 6 * 50
    assert named["d"].bytes == 4 * 6 * 50
    assert "d" not in held


def test_a_ratio_of_zero_drops_nothing():
    training = ckplan.build_training_graph(dropped(r=np.float32(0)), training=True)
    assert "RandomUniformLike" not in {node.op_type for node in training.model.graph}


@pytest.mark.parametrize("ratio", [1.0, -0.5])
def test_an_impossible_ratio_is_refused(ratio):
    with pytest.raises(ModelError, match=r"Dropout '.*' drops a share of"):
        ckplan.build_training_graph(dropped(r=np.float32(ratio)), training=True)


def test_a_mode_that_is_fed_stays():
    model = dropped()
    mode = model.graph.initializers["yes"]
    del model.graph.initializers["yes"]
    mode.const_value = None
    model.graph.inputs.append(mode)
    training = ckplan.build_training_graph(model, training=True)
    assert "Dropout" in {node.op_type for node in training.model.graph}
    assert any("stay as they are" in note for note in training.notes)


def test_a_mask_that_the_model_reads_is_the_one_that_was_drawn():
    model = parse(
        """g () => (float loss) {
            d, k = Dropout (p)
            f = Cast <to = 1> (k)
            q = Mul (d, f)
            loss = ReduceSum <keepdims = 0> (q)
        }""",
        p=values(6, 50).astype(np.float32),
    )
    training = ckplan.build_training_graph(model, training=True)
    model, name = with_mask(training)
    assert name == "k"
    ran = onnxruntime_run(model)
    np.testing.assert_array_equal(ran["p_grad"], 2 * ran[name].astype(np.float32))
