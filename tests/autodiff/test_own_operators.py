"""Operators of one's own: shapes declared in the file, a rule registered by the user, with and without a body."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ckplan import build_training_graph, load
from ckplan.autodiff.registry import collect
from ckplan.errors import ModelError, UnsupportedOperatorsError
from ckplan.operators import gradients
from ckplan.pipeline import step_of

GRAPH = """<ir_version: 10, opset_import: ["" : {version}, "my.ops" : 1]>
model (float[batch, 4] x) => (float[batch, 3] y)
<float[4, 3] v = {{{v}}}, float[4, 4] w = {{{w}}}, float[batch, 4] f>
{{
    h = MatMul(x, w)
    f = my.ops.Fancy<alpha = 2.0>(h)
    y = MatMul(f, v)
}}
"""
BODY = """<domain: "my.ops", opset_import: ["" : VERSION, "my.ops" : 1]>
Fancy <alpha> (x) => (y) {
    a = Constant<value_float: float = @alpha>()
    t = my.ops.Inner(x)
    y = Mul(a, t)
}
<domain: "my.ops", opset_import: ["" : VERSION]>
Inner (x) => (y) { y = Tanh(x) }
"""


@pytest.fixture
def rules(monkeypatch):
    """Rules registered in a test are gone after it."""
    collect()
    monkeypatch.setattr(gradients, "_RULES", {key: list(found) for key, found in gradients._RULES.items()})


def write(folder, body=True, version=17, declared=True):
    generator = np.random.default_rng(3)
    numbers = {
        name: ", ".join(map(str, generator.standard_normal(n).astype(np.float32))) for name, n in (("v", 12), ("w", 16))
    }
    text = GRAPH.format(version=version, **numbers)
    if not declared:
        text = text.replace(", float[batch, 4] f>", ">")
    proto = onnx.parser.parse_model(text + (BODY.replace("VERSION", str(version)) if body else ""))
    path = folder / "own.onnx"
    onnx.save(proto, path)
    return path


def register(factor=1.0):
    @gradients.rule("Fancy", domain="my.ops")
    def fancy(op, node, dy):
        """A tanh times alpha; ``factor`` makes it another rule than that of the body."""
        alpha = node.attributes["alpha"].as_float()
        t = op.Mul(node.outputs[0], 1 / alpha)
        return [op.Mul(dy[0], op.Mul(op.Sub(1.0, op.Mul(t, t)), factor * alpha))]


def run(model: ir.Model, x):
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, {"x": x}), strict=True))


@pytest.mark.parametrize("version", [17, 21])
def test_the_rule_wins_over_the_body(tmp_path, rules, version):
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    plain = build_training_graph(load(write(tmp_path, version=version), dims={"batch": 2}).model, loss="sum-of-squares")
    register()
    same = build_training_graph(load(write(tmp_path, version=version), dims={"batch": 2}).model, loss="sum-of-squares")
    gradients._RULES.pop(("my.ops", "Fancy"))
    register(factor=3.0)
    scaled = build_training_graph(
        load(write(tmp_path, version=version), dims={"batch": 2}).model, loss="sum-of-squares"
    )
    results = [run(made.model, x) for made in (plain, same, scaled)]
    for name in ("y", "v_grad"):
        for result in results[1:]:
            if name in results[0]:
                np.testing.assert_array_equal(result[name], results[0][name])
    np.testing.assert_allclose(results[1]["w_grad"], results[0]["w_grad"], rtol=1e-5)
    np.testing.assert_allclose(results[2]["w_grad"], 3 * results[0]["w_grad"], rtol=1e-5)


def test_the_body_of_a_function_with_a_rule_is_in_the_training_graph(tmp_path, rules):
    register()
    made = build_training_graph(load(write(tmp_path), dims={"batch": 2}).model)
    assert not made.model.functions
    assert {node.domain for node in made.model.graph} == {""}
    forward = [node for node in made.model.graph if node.metadata_props.get("pkg.ckplan.phase") == "forward"]
    assert "Tanh" in {node.op_type for node in forward}
    assert any(output.name == "f" for node in forward for output in node.outputs)


def test_a_model_that_is_only_run_has_the_body_too(tmp_path, rules):
    register()
    forward = load(write(tmp_path), dims={"batch": 2}).model
    assert forward.functions
    step = step_of(forward)
    assert not step.model.functions
    assert [value.name for value in step.model.graph.outputs] == ["y"]


def test_a_model_output_keeps_its_name_when_a_function_made_it(tmp_path, rules):
    register()
    text = """<ir_version: 10, opset_import: ["" : 21, "my.ops" : 1]>
    model (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}> {
        h = MatMul(x, w)
        y = my.ops.Fancy<alpha = 2.0>(h)
    }
    """
    path = tmp_path / "output.onnx"
    onnx.save(onnx.parser.parse_model(text + BODY.replace("VERSION", "17")), path)
    made = build_training_graph(load(path).model, grad_ys=["y"])
    assert "y" in [value.name for value in made.model.graph.outputs]
    assert not made.model.functions


def test_an_operator_without_a_body_takes_its_declared_shape(tmp_path, rules):
    register()
    forward = load(write(tmp_path, body=False), dims={"batch": 5})
    fancy = next(node for node in forward.model.graph if node.op_type == "Fancy")
    assert tuple(fancy.outputs[0].shape) == (5, 4)
    made = build_training_graph(forward.model)
    assert set(made.gradients) == {"v", "w"}
    assert any(node.domain == "my.ops" for node in made.model.graph)


def test_a_rule_may_emit_operators_of_its_own_domain(tmp_path, rules):
    @gradients.rule("Fancy", domain="my.ops")
    def fancy(op, node, dy):
        """Another operator of the domain."""
        x = node.inputs[0]
        return [op.emit("FancyGrad", x, dy[0], _domain="my.ops", _shape=x.shape, alpha=2.0)]

    made = build_training_graph(load(write(tmp_path, body=False), dims={"batch": 2}).model)
    found = next(node for node in made.model.graph if node.op_type == "FancyGrad")
    assert (found.domain, found.attributes["alpha"].as_float()) == ("my.ops", 2.0)
    assert tuple(found.outputs[0].shape) == (2, 4)


def test_without_a_rule_one_can_be_registered_or_what_stands_before_it_frozen(tmp_path):
    forward = load(write(tmp_path, body=False), dims={"batch": 2})
    with pytest.raises(UnsupportedOperatorsError, match=r"my.ops::Fancy .*register a gradient rule.*--no-grad 'w'"):
        build_training_graph(forward.model)
    made = build_training_graph(forward.model, no_grad=["w"])
    assert set(made.gradients) == {"v"}


def test_without_a_declared_shape_the_error_says_what_to_do(tmp_path):
    with pytest.raises(ModelError, match=r"Fancy .* has no shape.*--custom-ops"):
        load(write(tmp_path, body=False, declared=False), dims={"batch": 2})


def test_an_operator_named_like_one_of_onnx_is_not_it(tmp_path, rules):
    text = """<ir_version: 10, opset_import: ["" : 21, "my.ops" : 1]>
    model (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}> {
        h = MatMul(x, w)
        y = my.ops.Round(h)
    }
    """
    path = tmp_path / "round.onnx"
    onnx.save(onnx.parser.parse_model(text), path)

    @gradients.rule("Round", domain="my.ops")
    def rounded(op, node, dy):
        """A rounding that passes gradients on."""
        return [dy[0]]

    made = build_training_graph(load(path).model)
    assert set(made.gradients) == {"w"}
