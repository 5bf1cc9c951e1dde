"""What torch's exporter computed of parameters that are in the file as well."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.training.export import with_weights
from tests.model.models import normal, parse, run, write
from tests.model.torch_files import add_source, exported, loaded

FOLDED = "pkg.onnxscript.optimizer.folded_from"
FUNCTIONS = {
    "sub_5": lambda x: 1 - x,
    "add_1": lambda x: 1 + x,
    "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "neg_2": lambda x: -np.exp(x),
    "sqrt": np.sqrt,
    "pow_1": lambda x: x * x,
    "exp_2": lambda x: np.exp(-x),
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "mul_3": lambda x: np.float32(2.5) * x,
    "div_1": lambda x: x / np.sqrt((x * x).sum()),
    "div_2": lambda x: x / x.sum(),
    "div_3": lambda x: x / np.abs(x).max(),
    "div_4": lambda x: x / np.sqrt((x * x).sum()),
    "add_4": lambda x: x + np.float32(0.7),
    "relu": lambda x: np.maximum(x, 0),
    "abs_1": np.abs,
}


def mixed(
    name: str, values: np.ndarray, parameter: np.ndarray, source: str = "a.mix", way: str = "val_1"
) -> onnx.ModelProto:
    """As of a time mix: x times a parameter, plus its square times what was computed of the parameter."""
    model = exported(
        f"h = Mul(x, a.mix) s = Mul(x, x) t = Mul(s, {name}) y = Add(h, t)",
        {"a.mix": parameter, name: values.astype(np.float32)},
        {"p_a_mix": ("PARAMETER", "a.mix"), "p_a_gone": ("PARAMETER", "a.gone")},
        [
            "aten.mul](args = (%x, %p_a_mix))",
            "aten.mul](args = (%x, %x))",
            f"aten.mul](args = (%s, %{name}))",
            "aten.add",
        ],
    )
    info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, values.shape)
    info.metadata_props.add(key=FOLDED, value=f"['{source}', '{way}']")
    model.graph.value_info.append(info)
    return model


DIRECT = ("exp", "log", "sqrt", "sigmoid", "tanh")
TORCH = {
    "neg_2": lambda p: -p.exp(),
    "exp_2": lambda p: (-p).exp(),
    "softplus": lambda p: p.exp().log1p(),
    "mul_3": lambda p: 2.5 * p,
    "div_1": lambda p: p / p.norm(),
    "div_3": lambda p: p / p.abs().max(),
    "div_4": lambda p: p / p.norm(),
    "relu": lambda p: p.relu(),
    "abs_1": lambda p: p.abs(),
}
PARAMETER = np.abs(normal(3, 4)) + np.float32(0.5)
SIGNED = normal(3, 4)
"""For functions that differ by the sign."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_computed_again_and_has_a_gradient(name: str) -> None:
    torch = pytest.importorskip("torch")
    parameter = {"relu": SIGNED, "abs_1": SIGNED, "div_4": normal(3, 2, 4)}.get(name, PARAMETER)
    model = mixed(name, FUNCTIONS[name](parameter), parameter)
    forward, notes = loaded(model)
    assert f"'{name}' of 'a.mix': computed by torch's exporter, and in the step again" in notes
    assert set(forward.graph.initializers) <= {"a.mix", "one", "factor"}
    x = normal(0, 2, 4)
    np.testing.assert_allclose(run(forward, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-6)

    step = ckplan.open_model(model, loss="mse")
    assert set(step.training.gradients) == {"a.mix"}
    target = normal(1, 2, 4)
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    found = session.run(list(step.training.gradients.values()), {"x": x, "target": target})[0]
    mix = torch.tensor(parameter, requires_grad=True)
    values = TORCH.get(name, FUNCTIONS[name])(mix) if name not in DIRECT else getattr(torch, name)(mix)
    read = torch.from_numpy(x)
    torch.nn.functional.mse_loss(read * mix + read * read * values, torch.from_numpy(target)).backward()
    np.testing.assert_allclose(found, mix.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_equal_values_are_told_apart_by_torch_s_name() -> None:
    ones = np.ones(4, np.float32)
    assert "in the step again" in loaded(mixed("reciprocal", ones, ones))[1]
    assert "in the step again" not in loaded(mixed("view", ones, ones))[1]


def test_what_is_not_known_is_noted() -> None:
    for number in (PARAMETER, PARAMETER[:1], np.full_like(PARAMETER, 0.3)):
        _, notes = loaded(mixed("sin_3", np.sin(number), number))
        assert "1 tensor(s) were computed by torch's exporter of parameters" in notes
        assert "'sin_3' of 'a.mix'; their gradients lack that part" in notes


def test_a_penalty_that_was_computed_of_parameters_is_not_trained_by_itself() -> None:
    """It would fall without end, and the loss with it, whatever the parameters are."""
    penalty = mixed("mul_1", (PARAMETER**2).sum().reshape(()), PARAMETER)
    step = ckplan.open_model(penalty, loss="mse")
    assert set(step.training.gradients) == {"a.mix"}
    assert any("'mul_1': a number of parameters that are trained themselves" in note for note in step.notes)
    scale = mixed("sin_3", np.sin(PARAMETER[:1]), PARAMETER[:1])
    assert set(ckplan.open_model(scale, loss="mse").training.gradients) == {"a.mix", "sin_3"}


def test_zeros_that_were_made_of_a_shape_lack_nothing() -> None:
    """As the sum of an empty bag of embeddings, under whatever name; what is detached may be subtracted from itself."""
    zeros = np.zeros_like(PARAMETER)
    assert "lack that part" not in loaded(mixed("row_result", zeros, PARAMETER))[1]
    assert "lack that part" in loaded(mixed("row_result", zeros, PARAMETER, way="detach"))[1]
    assert "lack that part" in loaded(mixed("row_result", zeros, zeros))[1]


@pytest.mark.parametrize("way", ["dot", "max_1", "detach"])
def test_what_may_have_been_divided_by_a_number_of_its_own_was_not_divided_by_a_constant(way: str) -> None:
    """As by the spectral norm of a weight: another one for other weights."""
    _, notes = loaded(mixed("div_1", PARAMETER * np.float32(0.37), PARAMETER, way=way))
    assert "'div_1' of 'a.mix'; their gradients lack that part" in notes


@pytest.mark.parametrize(
    ("name", "way", "known"),
    [
        ("mul_3", "val_1", True),
        ("add_3", "scalar_tensor_default", True),
        ("sub_3", "val_1", False),
        ("mul", "mul_1", False),
    ],
)
def test_one_number_was_scaled_or_shifted_if_its_name_says_so(name: str, way: str, known: bool) -> None:
    """As the halves of a learnt step: of ``p - 2`` and ``2 - p``, which have one name, either may be right."""
    number = np.full(1, 3.07, np.float32)
    again = name not in loaded(mixed(name, number / 2, number, way=way))[0].graph.initializers
    assert again == known


@pytest.mark.parametrize("way", ["norm", "slice_2"])
def test_forms_of_one_parameter_that_are_trained_apart_are_told(way: str) -> None:
    """Parts of it are independent indeed."""
    model = mixed("sub_3", normal(1, 4), PARAMETER, source="a.gone", way=way)
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(2, 4), "slice_1"))
    model.graph.node[0].input[1] = "slice_1"
    if way != "norm":
        model.graph.node[2].input[1] = "slice_3"
        model.graph.initializer[1].name = "slice_3"
        model.graph.value_info[-1].name = "slice_3"
    add_source(model, "slice_1", "a.gone", "val_1")
    told = "several tensors that torch's exporter computed of them, trained as if they were independent"
    assert (told in loaded(model)[1]) == (way == "norm")


def test_one_number_is_computed_again_if_torch_names_how() -> None:
    """The exponent of a generalised mean: of one number several functions may be right."""
    power = np.full(1, 3.07, np.float32)
    assert "mul_3" in loaded(mixed("mul_3", 1 / power, power))[0].graph.initializers
    assert "mul_3" not in loaded(mixed("mul_3", 1 / power, power, way="reciprocal"))[0].graph.initializers


TIED = normal(11, 6, 4)
TIES = {
    "transposed": ("h = MatMul(x, val_0) y = MatMul(h, val_1)", TIED.T, TIED),
    "kernel": ("h = MatMul(x, val_0) u = Unsqueeze(h, one) v = Transpose <perm=[0,2,1]> (u) c = Conv(v, val_1) "
               "y = Squeeze(c, two)", TIED.T, TIED.T[..., None]),
    "squares": ("h = MatMul(x, val_0) y = Add(h, val_1)", TIED.T, (TIED * TIED).sum(1)),
    "norms": ("h = MatMul(x, val_0) y = Add(h, val_1)", TIED.T, np.sqrt((TIED * TIED).sum(1))),
}  # fmt: skip


@pytest.mark.parametrize("case", TIES)
def test_what_was_computed_of_one_parameter_twice_is_computed_of_one(case: str) -> None:
    """As of an autoencoder with tied weights, or of distances from the rows of a table."""
    torch = pytest.importorskip("torch")
    nodes, first, second = TIES[case]
    model = exported(
        nodes,
        {"val_0": first, "val_1": second, "one": np.array([1]), "two": np.array([2])},
        {"p_a_w": ("PARAMETER", "a.w")},
        ["aten.any"] * nodes.count(" = "),
    )
    for name in ("val_0", "val_1"):
        add_source(model, name, "a.w", "val_7")
    step = ckplan.open_model(model, loss="mse")
    (name,) = step.training.gradients
    x = normal(0, 2, 4)
    (want,) = run(model, {"x": x})
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    target = normal(1, *want.shape)
    (found,) = session.run(list(step.training.gradients.values()), {"x": x, "target": target})
    w, read = torch.tensor(TIED, requires_grad=True), torch.from_numpy(x)
    h = read @ w.T
    result = {
        "transposed": lambda: h @ w,
        "kernel": lambda: h @ w,
        "squares": lambda: h + (w * w).sum(1),
        "norms": lambda: h + w.norm(dim=1),
    }[case]()
    torch.nn.functional.mse_loss(result, torch.from_numpy(target)).backward()
    np.testing.assert_allclose(found, w.grad.numpy().T.reshape(found.shape), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("number", [PARAMETER, PARAMETER[:1]], ids=["numbers", "one"])
def test_the_two_halves_of_a_gate_are_of_one_parameter(number: np.ndarray, tmp_path: Path) -> None:
    gate = 1 / (1 + np.exp(-number))
    model = mixed("sub", 1 - gate, PARAMETER, source="a.gone", way="sigmoid_1")
    model.graph.initializer.append(onnx.numpy_helper.from_array(gate.astype(np.float32), "sigmoid"))
    model.graph.node[0].input[1] = "sigmoid"
    info = onnx.helper.make_tensor_value_info("sigmoid", onnx.TensorProto.FLOAT, gate.shape)
    info.metadata_props.add(key=FOLDED, value="['a.gone']")
    model.graph.value_info.append(info)
    forward, notes = loaded(model)
    assert "'sub' of 'sigmoid': computed by torch's exporter, and in the step again" in notes
    x = normal(0, 2, 4)
    np.testing.assert_allclose(run(forward, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-6)
    assert set(ckplan.open_model(model, loss="mse").training.gradients) == {"sigmoid_free"}

    onnx.save(model, tmp_path / "model.onnx")
    trained = with_weights(tmp_path / "model.onnx", {"sigmoid_free": (number / 2).astype(np.float32)})
    new = 1 / (1 + np.exp(-number / 2))
    np.testing.assert_allclose(run(trained, {"x": x})[0], x * new + x * x * (1 - new), rtol=1e-5)


WEIGHT = normal(7, 6, 4)
NORMS = np.sqrt((WEIGHT * WEIGHT).sum(1, keepdims=True))
CLASSIFIER = 'w = Div("a.w", "onnx::Div_9") t = Transpose <perm=[1,0]> (w) y = MatMul(x, t)'
SUM = 'v = Add("a.w", "onnx::Add_9") t = Transpose <perm=[1,0]> (v) y = MatMul(x, t)'
LENGTH = (
    'n = ReduceL2<keepdims=0>("onnx::ReduceL2_9") w = Div("a.w", n) t = Transpose <perm=[1,0]> (w) y = MatMul(x, t)'
)
MIX = 's = Neg(x) a = Mul(x, "a.w") b = Mul(s, "onnx::Mul_9") y = Add(a, b)'


def older(nodes: str, weight: np.ndarray, made: np.ndarray, opset: int) -> onnx.ModelProto:
    """As torch's older exporter writes it: what it folded has a number, and no word of what it is of."""
    name = re.search(r"onnx::\w+", nodes)[0]
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2,4] x) => (float[2,n] y) {{ {nodes} }}'
    return parse(text, {"a.w": weight, name: made})


@pytest.mark.parametrize(
    ("nodes", "weight", "made", "opset"),
    [
        (CLASSIFIER, WEIGHT, NORMS, 13),
        (CLASSIFIER, WEIGHT, NORMS, 18),
        (SUM, WEIGHT, WEIGHT * WEIGHT, 17),
        (LENGTH, WEIGHT, WEIGHT.reshape(-1), 17),
        (MIX, np.float32(0.3), np.float32(0.7), 17),
    ],
    ids=["norms", "norms-18", "squares", "length", "mix"],
)
def test_what_the_older_exporter_folded_is_told_by_its_values(
    nodes: str, weight: np.ndarray, made: np.ndarray, opset: int
) -> None:
    torch = pytest.importorskip("torch")
    model = older(nodes, weight, made, opset)
    forward, notes = loaded(model)
    assert "of 'a.w': computed by torch's exporter, and in the step again" in notes
    x = normal(0, 2, 4)
    (want,) = run(model, {"x": x})
    np.testing.assert_allclose(run(forward, {"x": x})[0], want, rtol=1e-5)

    step = ckplan.open_model(model, loss="mse", wrt=["a.w"])
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    target = normal(1, *want.shape)
    (found,) = session.run(list(step.training.gradients.values()), {"x": x, "target": target})
    w, read = torch.tensor(weight, requires_grad=True), torch.from_numpy(x)
    results = {
        CLASSIFIER: lambda: read @ (w / w.norm(dim=1, keepdim=True)).T,
        SUM: lambda: read @ (w + w * w).T,
        LENGTH: lambda: read @ (w / w.norm()).T,
    }.get(nodes, lambda: w * read - (1 - w) * read)()
    torch.nn.functional.mse_loss(results, torch.from_numpy(target)).backward()
    np.testing.assert_allclose(found, w.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "weight", "made"),
    [
        (SUM, WEIGHT, WEIGHT + np.float32(1.5)),
        (CLASSIFIER, WEIGHT, NORMS * np.float32(1.01)),
        ('b = Mul(x, "onnx::Mul_9") c = Exp("a.w") y = Add(b, c)', np.float32(0.3), np.float32(0.7)),
    ],
    ids=["no function", "no norms", "no mix"],
)
def test_what_the_older_exporter_did_not_fold_stays(nodes: str, weight: np.ndarray, made: np.ndarray) -> None:
    assert "in the step again" not in loaded(older(nodes, weight, made, 17))[1]


def test_all_parameters_whose_gradients_lack_a_part_are_named() -> None:
    """As of the first step of a cell that begins with learnt states, where several states give it."""
    weight, bias, state = normal(0, 4, 4), normal(1, 4), normal(2, 4)
    weight[3] = weight[2]
    first = np.tile(state @ weight + bias, (2, 1))
    model = exported(
        "m = MatMul(x, weight) b = Add(m, r.bias) y = Add(b, linear)",
        {"weight": weight, "r.bias": bias, "linear": first},
        {"p_w": ("PARAMETER", "r.weight"), "p_b": ("PARAMETER", "r.bias"), "p_s": ("PARAMETER", "state")},
        ["aten.mm](args = (%x, %p_w))", "aten.add](args = (%m, %p_b))", "aten.add](args = (%b, %linear))"],
    )
    info = onnx.helper.make_tensor_value_info("linear", onnx.TensorProto.FLOAT, first.shape)
    info.metadata_props.add(key=FOLDED, value="['expand', 'r.bias', 'r.weight', 'state']")
    model.graph.value_info.append(info)
    notes = loaded(model)[1]
    assert "'linear_row' of 'r.bias' and 'r.weight'; their gradients lack that part" in notes
    assert "('state')" in notes


def first_step(
    row: bool, bias: bool = True, zeros: bool = False, results: int = 9
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """As of a recurrent cell: W h + b of a state that two samples begin with, and of x; the state may be read, too."""
    weights = {
        "r.weight": normal(0, results, 4),
        "r.bias": normal(1, results) * bias,
        "head.weight": normal(3, results, 4),
    }
    state = normal(2, 1, 4)
    first = np.tile(state @ weights["r.weight"].T * (not zeros) + weights["r.bias"], (2, 1)).astype(np.float32)
    model = exported(
        f"m = Gemm<transB=1>(x, r.weight, {'r.bias' if bias else ''}) s = Add(m, linear) t = Tanh(s) "
        f"u = MatMul(t, head.weight) y = Mul(u, {'expand' if row else 'x'})",
        weights | {"linear": first} | ({"expand": np.tile(state, (2, 1))} if row else {}),
        {f"p_{name.replace('.', '_')}": ("PARAMETER", name) for name in (*weights, "state")},
        [
            "aten.linear](args = (%x, %p_r_weight, %p_r_bias))",
            "aten.add](args = (%m, %linear))",
            "aten.tanh](args = (%s,))",
            "aten.mm](args = (%t, %p_head_weight))",
            "aten.mul](args = (%u, %expand))",
        ],
    )
    add_source(model, "linear", "r.weight", *["r.bias"] * bias, *["state"] * (not zeros), "expand")
    if row:
        add_source(model, "expand", "state", "val_1")
    return model, weights | {"state": state}


@pytest.mark.parametrize("row", [True, False], ids=["read elsewhere", "gone"])
@pytest.mark.parametrize("bias", [True, False], ids=["a bias", "none"])
@pytest.mark.parametrize("results", [9, 4], ids=["gates", "square"])
def test_the_first_step_from_a_state_that_is_learnt_is_computed_again(
    row: bool, bias: bool, results: int, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    model, arrays = first_step(row, bias, results=results)
    x, target = normal(4, 2, 4), normal(5, 2, 4)
    step = ckplan.open_model(model, loss="mse")
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    names = list(step.training.gradients)
    found = session.run([step.training.gradients[name] for name in names], {"x": x, "target": target})
    w, b, head, h = (torch.tensor(arrays[name], requires_grad=True) for name in arrays)
    read = torch.from_numpy(x)
    made = torch.tanh(read @ w.T + b + h @ w.T + b) @ head
    torch.nn.functional.mse_loss(made * (h if row else read), torch.from_numpy(target)).backward()
    expected = {"r.weight": w, "head.weight": head, "expand_row" if row else "linear_row_state": h}
    expected |= {"r.bias": b} if bias else {}
    assert sorted(names) == sorted(expected)
    for name, gradient in zip(names, found, strict=True):
        np.testing.assert_allclose(gradient, expected[name].grad.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)

    trained = with_weights(write(model, tmp_path), {"r.weight": 2 * arrays["r.weight"]})
    first = run(trained, {"x": np.zeros_like(x)})
    if row:
        made = np.tanh(2 * arrays["state"] @ arrays["r.weight"].T + 2 * arrays["r.bias"]) @ arrays["head.weight"]
        np.testing.assert_allclose(first[0], np.tile(made * arrays["state"], (2, 1)), rtol=1e-4)


def test_zeros_with_which_a_cell_begins_are_no_state_that_is_learnt() -> None:
    """They solve the equations as well, but no parameter is gone."""
    forward, _ = loaded(first_step(row=False, zeros=True)[0])
    weights = {name for name, value in forward.graph.initializers.items() if value.dtype == ir.DataType.FLOAT}
    assert weights == {"head.weight", "r.bias", "r.weight"}


@pytest.mark.parametrize("turned", [False, True])
def test_what_was_concatenated_is_computed_of_the_part_that_is_read_elsewhere(turned: bool) -> None:
    part, rest = normal(0, 4, 2), normal(1, 4, 2)
    arrays = {"a.p": np.ascontiguousarray(part.T) if turned else part, "cat": np.concatenate([part, rest], 1)}
    model = exported(
        f"c = MatMul(x, cat) d = Gemm<transB={int(turned)}>(x, a.p) e = ReduceSum<keepdims=1>(d) y = Add(c, e)",
        arrays,
        {"p_p": ("PARAMETER", "a.p"), "p_q": ("PARAMETER", "a.q")},
        [
            "aten.mm](args = (%x, %cat))",
            "aten.mm](args = (%x, %p_p))",
            "aten.sum](args = (%d,))",
            "aten.add](args = (%c, %e))",
        ],
    )
    add_source(model, "cat", "a.p", "a.q")
    forward, notes = loaded(model)
    assert "'cat' of 'a.p': computed by torch's exporter, and in the step again" in notes
    assert "their gradients lack that part" not in notes
    assert sorted(forward.graph.initializers) == ["a.p", "cat_part"]
    np.testing.assert_array_equal(forward.graph.initializers["cat_part"].const_value.numpy(), rest)
    x = normal(2, 2, 4)
    np.testing.assert_allclose(run(forward, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-5)


def test_what_is_left_of_a_parameter_stands_for_it() -> None:
    step = ckplan.open_model(mixed("neg", -normal(5, 4), PARAMETER, source="a.gone"), loss="mse")
    assert set(step.training.gradients) == {"a.mix", "neg"}
    assert any("'neg' of 'a.gone'" in note for note in step.notes)


def test_a_trained_parameter_is_computed_with_in_the_exported_file(tmp_path: Path) -> None:
    onnx.save(mixed("sub_5", 1 - PARAMETER, PARAMETER), tmp_path / "model.onnx")
    new, x = PARAMETER * 3, normal(0, 2, 4)
    found = run(with_weights(tmp_path / "model.onnx", {"a.mix": new}), {"x": x})[0]
    np.testing.assert_allclose(found, x * new + x * x * (1 - new), rtol=1e-6)


@pytest.mark.parametrize("row", [PARAMETER, np.zeros(4, np.float32)], ids=["numbers", "zeros"])
def test_a_bias_that_was_repeated_is_expanded(row: np.ndarray) -> None:
    """The first step of a recurrent cell: of zeros times a weight, plus a bias, the bias is left."""
    model = mixed("linear_2", np.tile(row, (2, 1)), row)
    forward, _ = loaded(model)
    assert ("linear_2" in forward.graph.initializers) == (not row.any())
    x = normal(0, 2, 4)
    np.testing.assert_array_equal(run(forward, {"x": x})[0], run(model, {"x": x})[0])


def test_what_only_resembles_a_repeated_bias_stays() -> None:
    values = np.tile(PARAMETER, (2, 1))
    values[1, 3] += 1
    assert "linear_2" in loaded(mixed("linear_2", values, PARAMETER))[0].graph.initializers
