"""What torch's module detaches, told by the lines of the program that nodes bear."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.keys import DETACHED
from ckplan.model.torch_files.detached import detached_inputs
from tests.model.models import normal, parse
from tests.model.torch_files import exported, loaded

STRAIGHT_THROUGH = "h = MatMul(x, a.weight) q = Round(h) s = Sub(q, h) %s y = Mul(z, z)"
"""z is the product, to the nearest integer, with the product's gradient."""
LINES = [
    "aten.matmul.default](args = (%x, %p_a_weight))",
    "aten.round.default](args = (%h,))",
    "aten.sub.Tensor](args = (%q, %h))",
]
SQUARE = "aten.mul.Tensor](args = (%z, %z))"
FORMS = {
    "default": ("z = Add(h, s)", ["aten.add.Tensor](args = (%h, %detach))"]),
    "renumbered": ("z = Add(s, h)", ["aten.add.Tensor](args = (%detach_3, %h))"]),
    "identity": (
        "d = Identity(s) z = Add(h, d)", ["torch.ops.aten.detach.default](args = (%s,))", "aten.add](args = (%h, %d))"]
    ),
    "no-op": ("d = Concat<axis = 0>(s) z = Add(h, d)", ["aten.cat](args = (%detach,))", "aten.add](args = (%h, %d))"]),
}  # fmt: skip


def straight_through(form: str) -> onnx.ModelProto:
    nodes, lines = FORMS[form]
    weights = {"a.weight": normal(0, 4, 4)}
    return exported(
        STRAIGHT_THROUGH % nodes, weights, {"p_a_weight": ("PARAMETER", "a.weight")}, [*LINES, *lines, SQUARE]
    )


def gradient(step: ckplan.Step, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    found: np.ndarray = session.run([step.training.gradients["a.weight"]], feeds)[0]
    return found


@pytest.mark.parametrize("form", FORMS)
def test_gradients_stop_where_torch_detaches(form: str) -> None:
    torch = pytest.importorskip("torch")
    step = ckplan.open_model(straight_through(form), loss="mse")
    assert any("gradients stop where torch's module detaches: 's'" in note for note in step.notes)
    feeds = {"x": normal(1, 2, 4), "target": normal(2, 2, 4)}
    weight = torch.tensor(normal(0, 4, 4), requires_grad=True)
    h = torch.from_numpy(feeds["x"]) @ weight
    z = h + (torch.round(h) - h).detach()
    torch.nn.functional.mse_loss(z * z, torch.from_numpy(feeds["target"])).backward()
    assert np.abs(weight.grad.numpy()).max() > 0
    np.testing.assert_allclose(gradient(step, feeds), weight.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert not any("detached" in str(value.name) for node in step.model.graph for value in node.outputs)


def test_gradients_stop_in_files_that_are_converted_to_a_newer_operator_set() -> None:
    model = straight_through("default")
    model.opset_import[0].version = 17
    found = ckplan.open_model(model, loss="mse")
    feeds = {"x": normal(1, 2, 4), "target": normal(2, 2, 4)}
    assert any("converted from opset 17" in note for note in found.notes)
    expected = gradient(ckplan.open_model(straight_through("default"), loss="mse"), feeds)
    assert np.abs(expected).max() > 0
    np.testing.assert_array_equal(gradient(found, feeds), expected)


def test_where_nothing_else_reaches_the_loss_it_is_said() -> None:
    model = exported(
        "h = MatMul(x, a.weight) y = Mul(h, x)",
        {"a.weight": normal(0, 4, 4)},
        {"p_a_weight": ("PARAMETER", "a.weight")},
        ["aten.matmul.default](args = (%x, %p_a_weight))", "aten.mul.Tensor](args = (%detach, %detach_1))"],
    )
    with pytest.raises(ckplan.CkplanError, match="only through what is detached"):
        ckplan.open_model(model, loss="mse")


def test_what_cannot_be_told_is_noted() -> None:
    model = exported(
        "h = MatMul(x, a.weight) s = Sin(x) y = Mul(h, s)",
        {"a.weight": normal(0, 4, 4)},
        {"p_a_weight": ("PARAMETER", "a.weight")},
        ["aten.matmul.default](args = (%x, %p_a_weight))", "aten.sin](args = (%x,))", "aten.mul](args = (%detach,))"],
    )
    forward, notes = loaded(model)
    assert "torch detaches something" in notes
    assert all(DETACHED not in node.metadata_props for node in forward.graph)


def test_marks_are_numbers_of_inputs() -> None:
    forward, _ = loaded(straight_through("default"))
    (marked,) = [node for node in forward.graph if DETACHED in node.metadata_props]
    assert (marked.op_type, json.loads(marked.metadata_props[DETACHED])) == ("Add", [1])


def test_a_value_that_is_multiplied_by_itself_detached_is_one_factor() -> None:
    model = exported(
        "h = MatMul(x, w) y = Mul(h, h)",
        {"w": normal(0, 4, 4)},
        {"p_w": ("PARAMETER", "w")},
        ["aten.mm](args = (%x, %p_w))", "aten.mul](args = (%h, %detach))"],
    )
    found, notes = loaded(model)
    assert [detached_inputs(node) for node in found.graph] == [[], [1]]
    assert "gradients stop where torch's module detaches: 'h'" in notes


def test_a_number_of_what_is_detached_is_no_loss() -> None:
    """As a module tells how far its codes are from what they stand for."""
    model = exported(
        "y = MatMul(x, w) cost = ReduceSum<keepdims = 0>(y) far = ReduceMax<keepdims = 0>(y)",
        {"w": normal(0, 4, 4)},
        {"p_w": ("PARAMETER", "w")},
        ["aten.mm](args = (%x, %p_w))", "aten.sum](args = (%mm,))", "aten.amax](args = (%detach,))"],
    )
    del model.graph.output[:]
    for name in ("cost", "far"):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ()))
    assert ckplan.open_model(model).training.loss == "cost"


VIEWS = "".join(
    f"i{k} = Shape(h) j{k} = Shape(h) a{k} = Gather(i{k}, zero) b{k} = Gather(j{k}, one) "
    f"t{k} = Concat<axis = 0>(a{k}, b{k}) v{k} = Reshape({f'v{k - 1}' if k else 'r'}, t{k}) "
    for k in range(5)
)
"""Views of what is rounded, in shapes that are computed, as of a batch that is free."""
ESTIMATES = {
    "added": ("q = Round(h) s = Sub(q, h) z = Add(h, s)", True),
    "added to": ("q = Round(h) s = Sub(q, h) z = Add(s, h)", True),
    "subtracted": ("r = Floor(h) q = Neg(r) s = Sub(h, q) z = Sub(h, s)", True),
    "signs of a scaled one": ("g = Sign(h) m = Abs(h) q = Mul(g, m) s = Sub(q, h) z = Add(h, s)", True),
    "in views": (
        "zero = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>() "
        f"r = Round(h) {VIEWS} q = Identity(v4) s = Sub(q, h) z = Add(h, s)",
        True,
    ),
    "a smooth function": ("q = Tanh(h) s = Sub(q, h) z = Add(h, s)", False),
    "another difference": ("q = Round(h) s = Sub(h, q) z = Add(h, s)", False),
}  # fmt: skip


@pytest.mark.parametrize("form", ESTIMATES)
def test_a_straight_through_estimate_is_told_by_its_form(form: str) -> None:
    """As torch's older exporter and tf2onnx write it: nodes bear no lines of a program."""
    torch = pytest.importorskip("torch")
    nodes, is_straight = ESTIMATES[form]
    text = f"g (float[2,4] x) => (float[2,4] y) {{ h = MatMul(x, w) {nodes} y = Mul(z, z) }}"
    step = ckplan.open_model(
        parse('<ir_version: 8, opset_import: ["": 17]> ' + text, {"w": normal(0, 4, 4)}), loss="mse"
    )
    assert any("straight through 1 quantisation(s)" in note for note in step.notes) == is_straight
    feeds = {"x": normal(1, 2, 4), "target": normal(2, 2, 4)}
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    (found,) = session.run([step.training.gradients["w"]], feeds)
    weight = torch.tensor(normal(0, 4, 4), requires_grad=True)
    h = torch.from_numpy(feeds["x"]) @ weight
    q = {"subtracted": -torch.floor(h), "signs of a scaled one": h.sign() * h.abs(), "a smooth function": h.tanh()}
    hidden = q.get(form, torch.round(h))
    z = h + (hidden - h).detach() if is_straight else hidden if form == "a smooth function" else 2 * h - hidden
    torch.nn.functional.mse_loss(z * z, torch.from_numpy(feeds["target"])).backward()
    np.testing.assert_allclose(found, weight.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_a_gradient_that_is_scaled_by_itself() -> None:
    """As learnt steps of a quantiser do: `(x - x c).detach() + x c`."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float y) {
        c = Constant <value_float = 0.25> () h = Mul(x, a.w) g = Mul(h, c)
        s = Sub(h, g) z = Add(s, g) y = ReduceSum <keepdims = 0> (z)
    }""".replace("a.w", '"a.w"')
    step = ckplan.open_model(parse(text, {"a.w": normal(0, 4)}))
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    x = normal(1, 2, 4)
    (found,) = session.run([step.training.gradients["a.w"]], {"x": x})
    np.testing.assert_allclose(found, x.sum(0) / 4, rtol=1e-5)
